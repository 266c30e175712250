"""The network of the repository: trained, stored in small bf16 files with a card, and found by its name."""

import json
import signal
import sys
from dataclasses import replace

import pytest
import torch

import hopflow as hf
from hopflow import cli
from hopflow.cli import trained_network
from hopflow.evaluation.evaluated_model import EvaluatedModel
from hopflow.reproduce import network
from hopflow.runs import named_networks
from hopflow.training.signals import Interrupted

SMALL = {"data": "docs", "tokens": "bpe:300", "size": "micro", "batch": 4, "rows": 4, "samples": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder with pretrained/novels: a stand-in of a few steps, stored in files of at most 80 kB."""
    home = tmp_path_factory.mktemp("clone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        patch.setattr(network, "LARGEST_FILE", 80_000)
        patch.setattr(network, "network_recipe", short(network.network_recipe))
        network.run(home / "pretrained" / "novels", work=home / "run", steps=3, commit="c", offline=True, **SMALL)
    return home


def short(whole):
    """The recipe with sequences of 16 tokens."""
    return lambda *words, **keys: replace(whole(*words, **keys), length=16, workers=0)


@pytest.fixture
def command(clone, monkeypatch, capsys):
    monkeypatch.setenv("HOPFLOW_CACHE", str(clone / "cache"))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return run


def test_the_network_is_stored_in_bf16_files_that_are_small(clone):
    folder = clone / "pretrained" / "novels"
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    assert all(file.stat().st_size <= 80_000 for file in files)
    found = hf.from_pretrained(folder)
    assert {parameter.dtype for parameter in found.model.parameters()} == {torch.bfloat16}
    assert set(found.sha256) == {file.name for file in files}
    assert (found.recipe["steps"], found.recipe["predict_x0"]) == (3, False)


def test_the_model_card_states_training_evaluation_and_licence(clone):
    folder = clone / "pretrained" / "novels"
    card = (folder / "README.md").read_text(encoding="utf-8")
    numbers = json.loads((folder / "evaluation.json").read_text())
    value, error = numbers["bounds"]["br, 32 steps, 8 paths"]
    assert f"| br, 32 steps, 8 paths | {value:.2f} ± {error:.2f} |" in card
    assert f"{numbers['parameters']:,} parameters (micro), stored in bf16" in card
    for word in ("3 steps of 4 sequences", "Apache-2.0", "public domain", "commit c", "hopflow sample novels"):
        assert word in card
    assert set(numbers["bounds"]) == {"b0", "b1", "bk", "br, 32 steps, 8 paths"}


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "novels", "n=1", "steps=2"),
        ("infill", "novels", "the [MASK:3] of", "steps=2"),
        ("eval", "novels", "rows=4", "draws=2", "n=2", "steps=2", "paths=0"),
    ],
    ids=lambda words: words[0],
)
def test_commands_find_the_network_by_its_name_in_a_clone(command, clone, monkeypatch, words):
    monkeypatch.chdir(clone)
    code, out, err = command(*words)
    assert code == 0, err
    assert out


def test_the_clone_of_the_package_is_searched_from_any_folder(clone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_networks, "_CLONE", clone)
    assert named_networks.network_folder("novels") == clone / "pretrained" / "novels"
    (tmp_path / "novels").mkdir()
    assert named_networks.network_folder("novels").resolve() == tmp_path / "novels"  # a path comes first
    assert str(named_networks.network_folder("runs/mine")) == "runs/mine"


@pytest.mark.parametrize(("is_clone", "said"), [(True, "hopflow reproduce network"), (False, "clone the repository")])
def test_a_network_that_is_not_there_is_explained(command, tmp_path, monkeypatch, is_clone, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_networks, "_CLONE", tmp_path)
    if is_clone:
        (tmp_path / "pyproject.toml").touch()
    for name in ("sample", "eval"):
        code, _, err = command(name, "novels")
        assert code == 2
        assert said in " ".join(err.split())


def test_a_training_that_ran_out_of_time_is_stored_and_continued(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(network, "network_recipe", short(network.network_recipe))
    lines = []
    keys = {"work": tmp_path / "run", "offline": True, "say": lines.append, **SMALL}
    network.run(tmp_path / "out", steps=30, minutes=1e-9, **keys)
    steps = hf.from_pretrained(tmp_path / "out").recipe["steps"]
    assert steps < 30
    assert any("the same command continues" in line for line in lines)
    network.run(tmp_path / "out", steps=steps + 1, **keys)
    assert hf.from_pretrained(tmp_path / "out").recipe["steps"] == steps + 1


def test_a_signal_without_a_time_limit_stops_the_command_and_stores_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(network, "network_recipe", short(network.network_recipe))

    def stop_at_the_first_step(text):
        if text.startswith("step 1 "):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        network.run(
            tmp_path / "out", work=tmp_path / "run", steps=30, offline=True, say=stop_at_the_first_step, **SMALL
        )
    assert not (tmp_path / "out").exists()


def test_a_network_that_is_too_large_is_refused_before_it_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(network, "MOST_PARAMETERS", 1000)
    with pytest.raises(ValueError, match="more than 1,000: choose a smaller size"):
        network.run(tmp_path / "out", work=tmp_path / "run", steps=1, offline=True, **SMALL)
    assert not (tmp_path / "run").exists()


def test_the_default_network_has_at_most_16_million_parameters():
    with torch.device("meta"):
        model = hf.Transformer(hf.Vocab(4096), "mini")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 15_000_000 < count <= network.MOST_PARAMETERS


def test_a_network_stored_in_bf16_is_sampled_and_evaluated_in_float32(clone):
    folder = clone / "pretrained" / "novels"
    assert trained_network.load(str(folder), "cpu").dtype == "float32"
    assert EvaluatedModel.load(folder).dtype == "float32"
