import errno
import json
import os
import pickle
import random
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from toys import generator

import hopflow
from hopflow.costs import SquaredEmbedding
from hopflow.couplings import ExactOT
from hopflow.flow import Flow
from hopflow.models import MLP, Causal, Size, Transformer
from hopflow.runs import config_file, pretrained
from hopflow.runs.pretrained import from_pretrained, save_pretrained
from hopflow.sources import MultiMask, Uniform
from hopflow.system import atomic
from hopflow.vocab import Vocab

VOCAB = Vocab(data=5, masks=3)
SMALL = Size(layers=2, width=8, heads=2)
FLOW = Flow(MultiMask(VOCAB), coupling=ExactOT(SquaredEmbedding()))
RECIPE = {"name": "dfm_mmf", "lr": 3e-4, "steps": 10, "nested": {"a": [1, None, "ü"]}}


def transformer(seed=0, **more) -> Transformer:
    torch.manual_seed(seed)
    network = Transformer(VOCAB, SMALL, **more)
    with torch.no_grad():
        network.head.weight.normal_()
    return network


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def rewrite(folder: Path, **changes) -> None:
    """Edit a config as somebody who knows the format would: the sha256 of its content fits again."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    config["sha256"]["config.json"] = config_file.digest(config)
    (folder / "config.json").write_text(json.dumps(config))


def replace_weights(folder: Path, content: bytes) -> None:
    """Other weights, with the sha256 that belongs to them."""
    (folder / "model.safetensors").write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    config["sha256"]["model.safetensors"] = pretrained.hashlib.sha256(content).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "network",
    [transformer(), transformer(time=False, dropout=0.25), Causal(7, SMALL, dropout=0.0, recompute=True)],
    ids=["timed", "timeless", "causal"],
)
def test_a_network_comes_back_bit_by_bit(tmp_path, network, dtype):
    network = network.to(dtype)
    found = from_pretrained(save_pretrained(tmp_path / "a" / "b", network))
    assert type(found.model) is type(network)
    assert same(found.model, network)
    assert found.model.size == network.size
    assert found.model.dropout == network.dropout
    assert found.model.recompute == network.recompute
    assert not found.model.training
    assert all(parameter.requires_grad for parameter in found.model.parameters())
    assert (found.flow, found.tokenizer, found.recipe) == (None, None, None)


def test_a_loaded_network_has_the_same_outputs_and_can_be_trained(tmp_path):
    network = transformer().eval()
    loaded = from_pretrained(save_pretrained(tmp_path, network)).model
    xt, t = torch.randint(VOCAB.size, (2, 4), generator=generator(0)), torch.tensor([0.2, 0.9])
    assert torch.equal(loaded(xt, t), network(xt, t))
    loaded(xt, t).square().sum().backward()
    torch.optim.SGD(loaded.parameters(), 0.1).step()
    assert not same(loaded, network)
    assert same(from_pretrained(tmp_path).model, network)  # the file is not what was trained


def test_flow_tokenizer_and_recipe_travel_with_the_network(tmp_path, monkeypatch):
    class Tokenizer:
        def __init__(self, letters):
            self.letters = letters

        def to_json(self):
            return {"kind": "char", "letters": self.letters}

        @classmethod
        def from_json(cls, data):
            assert data["kind"] == "char"
            return cls(data["letters"])

    data = ModuleType("hopflow.data")
    data.Tokenizer = Tokenizer
    monkeypatch.setitem(sys.modules, "hopflow.data", data)
    save_pretrained(tmp_path, transformer(), FLOW, tokenizer=Tokenizer("abcdé"), recipe=RECIPE)
    found = from_pretrained(tmp_path)
    assert found.flow == FLOW
    assert found.recipe == RECIPE
    assert found.tokenizer.letters == "abcdé"


def test_the_config_is_readable_and_complete(tmp_path):
    save_pretrained(tmp_path, transformer(), FLOW, recipe=RECIPE)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert config["format"] == "hopflow"
    assert config["version"] == 1
    assert config["model"] == {
        "kind": "Transformer",
        "vocab": {"kind": "Vocab", "data": 5, "masks": 3},
        "size": {"kind": "Size", "layers": 2, "width": 8, "heads": 2},
        "dropout": 0.1,
        "time": True,
        "recompute": False,
        "predict_x0": False,
        "x0_width": 64,
        "labels": 0,
    }
    assert config["flow"]["source"]["kind"] == "MultiMask"
    assert set(config["sha256"]) == {"config.json", "model.safetensors"}


def test_save_pretrained_and_from_pretrained_are_public_names(tmp_path):
    assert hopflow.from_pretrained(hopflow.save_pretrained(str(tmp_path), transformer())).flow is None


def test_a_compiled_network_is_saved_as_what_it_is(tmp_path):
    network = transformer()
    compiled = torch.compile(network, backend="eager")
    assert same(from_pretrained(save_pretrained(tmp_path, compiled)).model, network)
    other = torch.compile(transformer(seed=1), backend="eager")
    from_pretrained(tmp_path, model=other)
    assert same(other._orig_mod, network)


# -- modules of one's own --------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A user's network with tied weights and a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.inner.weight
        self.register_buffer("count", torch.tensor([3]))

    def forward(self, xt, t):
        return self.head(self.inner(xt))[..., :5]


@pytest.mark.parametrize("make", [Tied, lambda: MLP(VOCAB, 4)], ids=["tied", "mlp"])
def test_a_custom_module_is_loaded_from_a_saved_folder(tmp_path, make):
    torch.manual_seed(0)
    mine = make()
    save_pretrained(tmp_path, mine, FLOW)
    other = make()
    assert not same(other, mine)
    found = from_pretrained(tmp_path, model=other)
    assert found.model is other
    assert same(other, mine)
    assert found.flow == FLOW
    if isinstance(other, Tied):
        assert other.head.weight is other.inner.weight


def test_a_module_that_does_not_fit_is_refused_and_left_as_it_was(tmp_path):
    save_pretrained(tmp_path, Tied())
    other = MLP(VOCAB, 4)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(ValueError, match="belongs to another network: missing inner"):
        from_pretrained(tmp_path, model=other)
    with pytest.raises(ValueError, match=r"is torch.float32, in your network it is torch.float64"):
        from_pretrained(tmp_path, model=Tied().double())
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_state_entry_that_is_not_a_tensor_cannot_be_saved(tmp_path):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"code": print}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match="is not a tensor"):
        save_pretrained(tmp_path, Odd(2, 2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", [{"f": print}, {"x": float("nan")}, {"x": {1, 2}}], ids=["function", "NaN", "set"])
def test_a_recipe_that_is_not_plain_is_refused_before_anything_is_written(tmp_path, recipe):
    with pytest.raises(ValueError, match="plain JSON data"):
        save_pretrained(tmp_path / "new", transformer(), recipe=recipe)
    assert not (tmp_path / "new").exists()


def test_a_flow_over_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match="they must be equal"):
        save_pretrained(tmp_path, transformer(), Flow(Uniform(Vocab(5))))
    save_pretrained(tmp_path, transformer(), FLOW)
    rewrite(tmp_path, flow=hopflow.runs.storage.to_plain(Flow(Uniform(Vocab(5)))))
    with pytest.raises(ValueError, match="they must be equal"):
        from_pretrained(tmp_path)


# -- interrupted saves -----------------------------------------------------------------------------------------------


def test_a_second_save_replaces_the_first_and_leaves_nothing(tmp_path):
    for seed in range(4):
        save_pretrained(tmp_path, transformer(seed))
        assert same(from_pretrained(tmp_path).model, transformer(seed))
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", range(4))
def test_a_save_that_fails_anywhere_leaves_the_old_network_or_the_new_one(tmp_path, monkeypatch, call, number):
    save_pretrained(tmp_path, transformer(seed=0))
    done, real = [], getattr(os, call)

    def failing(*args, **more):
        done.append(call)
        if len(done) > number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            save_pretrained(tmp_path, transformer(seed=1))
        except OSError as error:
            failed = error.errno == errno.ENOSPC
        else:
            failed = False
    found = from_pretrained(tmp_path).model
    assert failed == (len(done) > number)
    assert same(found, transformer(seed=0)) or same(found, transformer(seed=1))
    assert same(found, transformer(seed=1)) or failed
    save_pretrained(tmp_path, transformer(seed=2))  # and the folder is good for another save
    assert same(from_pretrained(tmp_path).model, transformer(seed=2))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_is_cut_off_between_its_files_leaves_the_old_network(tmp_path, monkeypatch):
    save_pretrained(tmp_path, transformer(seed=0))
    real = atomic.write

    def cut(path, content):
        if path.name == "config.json":
            raise KeyboardInterrupt
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", cut)
        with pytest.raises(KeyboardInterrupt):
            save_pretrained(tmp_path, transformer(seed=1))
    assert same(from_pretrained(tmp_path).model, transformer(seed=0))


# -- damaged and hostile files ---------------------------------------------------------------------------------------


class Canary:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file: Path):
        self.file = str(file)

    def __reduce__(self):
        return Path.touch, (Path(self.file),)


def damaged(content: bytes, draw: random.Random, canary: Path, at: Path) -> bytes:
    way = draw.choice(["flip", "flip", "flip", "cut", "zero", "grow", "pickle", "torch"])
    place = draw.randrange(len(content))
    if way == "flip":
        return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    if way == "cut":
        return content[:place]
    if way == "zero":
        end = min(len(content), place + draw.randrange(1, 64))
        return content[:place] + bytes(end - place) + content[end:]
    if way == "grow":
        return content[:place] + draw.randbytes(8) + content[place:]
    if way == "torch":
        torch.save(Canary(canary), at)
        return at.read_bytes()
    return pickle.dumps(Canary(canary))


def test_two_hundred_damaged_folders_are_all_found_and_run_no_code(tmp_path):
    good, bad, canary = tmp_path / "good", tmp_path / "bad", tmp_path / "canary"
    network = transformer(time=False)
    save_pretrained(good, network, FLOW, recipe=RECIPE)
    draw, unnoticed, harmless = random.Random(0), [], 0
    for number in range(200):
        shutil.copytree(good, bad, dirs_exist_ok=True)
        file = bad / ("model.safetensors" if number % 2 else "config.json")
        content = file.read_bytes()
        file.write_bytes(mutated := damaged(content, draw, canary, tmp_path / "pickle"))
        try:
            found = from_pretrained(bad)
        except (ValueError, OSError):
            continue
        if mutated == content or (same(found.model, network) and found.flow == FLOW and found.recipe == RECIPE):
            harmless += 1  # a space in the JSON, or zeros where there were zeros
        else:
            unnoticed.append(number)
    assert unnoticed == []
    assert harmless < 10
    assert not canary.exists()


@pytest.mark.parametrize("fits", [False, True], ids=["sha of the old", "sha of the pickle"])
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_is_called_by_its_name_and_not_opened(tmp_path, kind, fits):
    folder = save_pretrained(tmp_path / "run", transformer())
    content = pickle.dumps(Canary(tmp_path / "canary"))
    if kind == "torch":
        torch.save(Canary(tmp_path / "canary"), tmp_path / "file")
        content = (tmp_path / "file").read_bytes()
    if fits:
        replace_weights(folder, content)
    else:
        (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="is a pickle, which hopflow never reads"):
        from_pretrained(folder)
    assert not (tmp_path / "canary").exists()


def edited(folder: Path, change) -> None:
    """Change the tensors, with a sha256 that fits."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "other")
    replace_weights(folder, (folder / "other").read_bytes())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("head.bias"), "missing head.bias; unexpected nothing"),
        (lambda t: t.update(more=torch.zeros(2)), "missing nothing; unexpected more"),
        (lambda t: t.update({"head.bias": torch.zeros(6)}), r"head.bias has shape \[6\], in the network it has \[5\]"),
        (lambda t: t.update({"head.bias": torch.zeros(5, 1)}), r"head.bias has shape \[5, 1\]"),
        (lambda t: t.update({"head.bias": torch.zeros(5, dtype=torch.int64)}), "one floating-point type"),
        (lambda t: t.update({"head.bias": torch.zeros(5, dtype=torch.float64)}), "one floating-point type"),
    ],
    ids=["missing", "extra", "shape", "dimensions", "integers", "mixed"],
)
def test_weights_of_another_network_are_refused(tmp_path, change, says):
    save_pretrained(tmp_path, transformer())
    edited(tmp_path, change)
    with pytest.raises(ValueError, match=says):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "has format 2, this hopflow reads up to 1: upgrade"),
        ({"version": 0}, "must have format 1"),
        ({"version": "1"}, "must have format 1"),
        ({"format": "other"}, "was not written by hopflow"),
        ({"more": 1}, "unknown keys: more"),
        ({"model": None}, "Model must be an object"),
        ({"model": {"kind": "Transformr"}}, "did you mean 'Transformer'"),
        ({"model": {"kind": "BlockStack", "tokens": 1}}, "BlockStack needs"),
        ({"model": {"kind": "os.system"}}, "no Model of kind"),
        ({"recipe": {"lr": float("nan")}}, "NaN is not JSON"),
        ({"recipe": []}, "must be objects, or null"),
        ({"tokenizer": "os.system"}, "must be objects, or null"),
        ({"flow": []}, "Flow must be an object"),
        ({"flow": {"kind": "Flow"}}, "Flow needs source"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(tmp_path, changes, says):
    save_pretrained(tmp_path, transformer())
    rewrite(tmp_path, **changes)
    with pytest.raises(ValueError, match=says):
        from_pretrained(tmp_path)


def size(**changes) -> dict:
    return {"kind": "Size", "layers": 2, "width": 8, "heads": 2, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"size": size(layers=10**12)},
        {"size": size(width=2**16, layers=100)},
        {"size": "huge"},
        {"size": size(heads=3)},
        {"vocab": {"kind": "Vocab", "data": 10**30, "masks": 0}},
        {"vocab": {"kind": "Vocab", "data": 10**15, "masks": 0}},
        {"dropout": 2.0},
        {"dropout": "0.1"},
        {"time": 1},
        {"time": False},
    ],
    ids=str,
)
def test_a_network_that_the_weights_do_not_fit_is_refused_before_it_is_allocated(tmp_path, changes):
    save_pretrained(tmp_path, transformer())
    model = json.loads((tmp_path / "config.json").read_text())["model"]
    rewrite(tmp_path, model={**model, **changes})
    with pytest.raises(ValueError):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": NaN}',
        b'{"format": "hopflow"}',
        b"\x80\x04.",
    ],
    ids=range(9),
)
def test_a_config_that_is_no_config_is_refused(tmp_path, content):
    save_pretrained(tmp_path, transformer())
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json") as refusal:
        from_pretrained(tmp_path)
    assert len(str(refusal.value)) < 600


def test_an_edited_config_is_noticed(tmp_path):
    save_pretrained(tmp_path, transformer())
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="was edited"):
        from_pretrained(tmp_path)


def test_a_config_that_names_weights_outside_of_its_folder_is_refused(tmp_path):
    folder = save_pretrained(tmp_path / "run", transformer())
    config = json.loads((folder / "config.json").read_text())
    config["sha256"]["../other.safetensors"] = config["sha256"].pop("model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="must name one file of weights"):
        from_pretrained(folder)


def test_loading_without_a_folder_config_or_weights_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        from_pretrained(tmp_path / "nowhere")
    (tmp_path / "text.txt").write_text("the fox")
    with pytest.raises(FileNotFoundError, match="it is a file, not a folder"):
        from_pretrained(tmp_path / "text.txt")
    with pytest.raises(FileNotFoundError, match=r"it has no config\.json"):
        from_pretrained(tmp_path)
    save_pretrained(tmp_path, transformer())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="copied in full"):
        from_pretrained(tmp_path)
