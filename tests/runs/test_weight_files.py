"""Weights of a saved network in several files."""

import json

import pytest
import torch

import hopflow as hf
from hopflow.runs import pretrained
from hopflow.runs.weights import DamagedFile, split


@pytest.fixture
def model():
    torch.manual_seed(0)
    return hf.Transformer(hf.Vocab(7, 1), "micro")


def weight_files(folder):
    return sorted(file.name for file in folder.glob("*.safetensors"))


def test_a_network_in_several_files_is_loaded_as_it_was_saved(model, tmp_path):
    hf.save_pretrained(tmp_path, model, largest_file=200_000)
    names = weight_files(tmp_path)
    count = len(names)
    assert count > 1
    assert names == sorted(f"model-{number}-of-{count}.safetensors" for number in range(1, count + 1))
    assert all((tmp_path / name).stat().st_size <= 200_000 for name in names)
    found = hf.from_pretrained(tmp_path)
    assert set(found.sha256) == set(names)
    for name, value in model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)


def test_a_second_save_replaces_all_files_of_the_first(model, tmp_path):
    for largest in (200_000, None, 150_000, 200_000):
        hf.save_pretrained(tmp_path, model, largest_file=largest)
        listed = set(json.loads((tmp_path / "config.json").read_text())["sha256"]) - {"config.json"}
        assert listed == set(weight_files(tmp_path))
        hf.from_pretrained(tmp_path)


def test_a_missing_or_changed_part_is_named(model, tmp_path):
    hf.save_pretrained(tmp_path, model, largest_file=200_000)
    part = tmp_path / weight_files(tmp_path)[1]
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(DamagedFile, match=part.name):
        hf.from_pretrained(tmp_path)
    part.unlink()
    with pytest.raises(FileNotFoundError, match="the weights are missing") as error:
        hf.from_pretrained(tmp_path)
    assert error.value.filename == str(part)


def test_a_config_that_lists_only_some_parts_is_damaged(model, tmp_path):
    hf.save_pretrained(tmp_path, model, largest_file=200_000)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sha256"][weight_files(tmp_path)[0]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match="all parts of one set"):
        hf.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name", ["model-0-of-2.safetensors", "model-1-of-2.bin", "../model.safetensors", "model-١-of-2.safetensors"]
)
def test_no_other_file_name_is_taken_for_weights(name):
    assert pretrained.WEIGHTS.fullmatch(name) is None


def test_a_tensor_that_fits_into_no_file_is_refused():
    with pytest.raises(ValueError, match=r"table has 4,000 bytes, more than the largest file of 1,000"):
        split({"table": torch.zeros(1000)}, 1000)
