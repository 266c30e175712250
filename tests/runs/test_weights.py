"""Weights of a file that others may have written."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from hopflow.runs.weights import DamagedFile, fill, pack, tensors_of, verify


def test_a_sparse_terabyte_in_place_of_weights_is_refused_before_it_is_hashed(tmp_path, monkeypatch):
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)

    def hashed(*arguments):
        raise AssertionError("hashing a terabyte takes an hour")

    monkeypatch.setattr(hashlib, "file_digest", hashed)
    with pytest.raises(DamagedFile, match=r"model\.safetensors is damaged"):
        verify(tmp_path / "model.safetensors", "0" * 64)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_type_that_torch_only_stores_is_refused(tmp_path, dtype, device):
    model = nn.Linear(3, 2, device=device)
    weights = {name: torch.zeros(tensor.shape).to(dtype) for name, tensor in model.state_dict().items()}
    (tmp_path / "model.safetensors").write_bytes(save(weights))
    with pytest.raises(ValueError, match=r"weights of type torch\.float8.*allowed are torch\.float16"):
        fill(model, [tmp_path / "model.safetensors"], torch.device("cpu"), convert=True)


def test_a_message_shortens_the_names_of_tensors(tmp_path):
    model = nn.Linear(3, 2)
    (tmp_path / "model.safetensors").write_bytes(save({"x" * 100_000: torch.zeros(1)}))
    with pytest.raises(ValueError, match="belongs to another network") as error:
        fill(model, [tmp_path / "model.safetensors"], torch.device("cpu"))
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_weights_are_loaded_from_a_folder_whose_name_is_not_utf8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    folder.mkdir()
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    content = pack(tensors_of(model))
    (folder / "model.safetensors").write_bytes(content)
    verify(folder / "model.safetensors", hashlib.sha256(content).hexdigest())
    fill(other, [folder / "model.safetensors"], torch.device("cpu"))
    assert torch.equal(model.weight, other.weight)
