"""A network of a user's own class is trained, resumed, saved, sampled, evaluated and reported.

Its class is found only if the user has named it: nothing in a file causes an import.
"""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import hopflow as hf
from hopflow.flow import Flow
from hopflow.models.model import Model
from hopflow.recipes import build, resolve
from hopflow.runs import config_file, custom_network
from hopflow.runs.custom_network import load_class
from hopflow.sources import Mask
from hopflow.vocab import Vocab

TEXT = "the cat sat on the mat, and the dog sat on the log. " * 30
SMALL = {"steps": 2, "batch": 4, "warmup": 1, "eval_rows": 4, "eval_samples": 2, "eval_steps": 4, "threads": 1}
KEYS = [f"{key}={value}" for key, value in SMALL.items()]
MODULE = '''
from torch import nn
from hopflow.vocab import Vocab

class Net(nn.Module):
    """One hidden layer per position."""

    def __init__(self, vocab: Vocab, width: int = 8):
        super().__init__()
        self.vocab, self.width = vocab, width
        self.inner, self.head = nn.Embedding(vocab.size, width), nn.Linear(width, vocab.data)

    def forward(self, xt, t):
        return self.head(self.inner(xt))

class Hidden(Net):
    """A network whose constructor argument cannot be stored."""

    def __init__(self, vocab: Vocab, layer=nn.Identity()):
        super().__init__(vocab)
        self.layer = layer

not_a_class = 3
'''


class Plain(nn.Module):
    """A user's network without annotations: its arguments are its attributes."""

    def __init__(self, vocab, width=4):
        super().__init__()
        self.vocab, self.width = vocab, width
        self.inner, self.head = nn.Embedding(vocab.size, width), nn.Linear(width, vocab.data)
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, xt, t):
        return self.head(self.inner(xt)) * self.scale


class Configured(Plain):
    """A user's network whose arguments are not attributes, but returned by config()."""

    def __init__(self, tokens: int, masks: int):
        super().__init__(Vocab(tokens, masks))

    def config(self):
        return {"tokens": self.vocab.data, "masks": self.vocab.masks}


class Unstorable(Plain):
    """A user's network with an argument that JSON cannot hold, and no config()."""

    def __init__(self, vocab, activation):
        super().__init__(vocab)
        self.activation = activation


class Derived(Model):
    """A user's subclass of hopflow's base class."""

    def __init__(self, vocab: Vocab, width: int = 4):
        super().__init__()
        self.vocab, self.width = vocab, width
        self.inner, self.head = nn.Embedding(vocab.size, width), nn.Linear(width, vocab.data)
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, xt, t):
        return self.head(self.inner(xt)) * self.scale


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    """As in a new process: no class has been named."""
    monkeypatch.setattr(custom_network, "_KNOWN", {})


@pytest.fixture
def forget(monkeypatch):
    """Imitate another process, in which the classes have not been named."""
    return custom_network._KNOWN.clear


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return hf.data.load(tmp_path / "text.txt", length=16, holdout=0.1)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module in the current directory."""
    (tmp_path / "my_network.py").write_text(MODULE)
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    yield "my_network:Net"
    sys.modules.pop("my_network", None)


def flow_for(corpus) -> Flow:
    return Flow(Mask(Vocab(corpus.vocab_size, 1)))


def make(cls, corpus) -> nn.Module:
    return cls(corpus.vocab_size, 1) if cls is Configured else cls(Vocab(corpus.vocab_size, 1))


def train(cls, corpus, out, **keys):
    return hf.train(make(cls, corpus), flow_for(corpus), corpus, out=out, device="cpu", **{**SMALL, **keys})


@pytest.mark.parametrize("cls", [Plain, Configured, Derived])
def test_a_custom_network_is_trained_resumed_loaded_and_sampled(tmp_path, corpus, forget, cls):
    torch.manual_seed(0)
    train(cls, corpus, tmp_path / "run")
    torch.manual_seed(0)
    result = train(cls, corpus, tmp_path / "run", steps=4)
    assert result.step == 4
    forget()
    found = hf.from_pretrained(tmp_path / "run", model_class=cls)
    assert type(found.model) is cls
    assert found.model.scale.item() == 0.5  # a buffer that is not saved comes from the constructor
    assert not found.model.training
    rows = hf.generate(found.model, found.flow, n=2, length=16, steps=4, seed=0)
    assert rows.tokens.shape == (2, 16)


@pytest.mark.parametrize("cls", [Plain, Configured, Derived])
def test_a_custom_network_that_was_trained_here_is_evaluated_and_reported_by_its_folder(tmp_path, corpus, hopflow, cls):
    folder = str(tmp_path / "run")
    train(cls, corpus, folder)
    hf.save_pretrained(
        tmp_path / "saved", hf.from_pretrained(folder).model, flow_for(corpus), tokenizer=corpus.tokenizer
    )
    found = hf.from_pretrained(tmp_path / "saved")
    rows = hf.evaluate(found.model, found.flow, corpus.test[:4])
    assert {row.quantity for row in rows} >= {"b0"}
    result = hopflow("report", folder)
    assert result.code == 0, result.err


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_custom_network_keeps_its_type_and_its_weights_and_draws_no_random_numbers(tmp_path, dtype):
    network = Plain(Vocab(5, 3)).to(dtype)
    hf.save_pretrained(tmp_path, network)
    before = torch.random.get_rng_state()
    found = hf.from_pretrained(tmp_path, model_class=Plain).model
    assert torch.equal(torch.random.get_rng_state(), before)
    state = network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())
    assert found.head.weight.dtype == dtype


def test_without_its_class_a_custom_network_is_refused_with_what_to_do(tmp_path, forget):
    hf.save_pretrained(tmp_path, Plain(Vocab(5, 3)))
    forget()
    with pytest.raises(
        ValueError, match=r"test_custom_network.Plain, which is not part of hopflow.* pass model_class="
    ):
        hf.from_pretrained(tmp_path)
    assert type(hf.from_pretrained(tmp_path, model_class=Plain).model) is Plain


def test_arguments_that_cannot_be_stored_leave_the_weights_and_the_error_says_what_to_do(tmp_path, corpus):
    def network():
        return Unstorable(Vocab(corpus.vocab_size, 1), torch.relu)

    hf.train(network(), flow_for(corpus), corpus, out=tmp_path / "run", device="cpu", **SMALL)
    with pytest.raises(
        ValueError, match=r"without its constructor arguments: .*model=….* give the class a method config"
    ):
        hf.from_pretrained(tmp_path / "run", model_class=Unstorable)
    filled = hf.from_pretrained(tmp_path / "run", model=network())
    assert isinstance(filled.model, Unstorable)
    assert hf.train(network(), flow_for(corpus), corpus, out=tmp_path / "run", device="cpu", **{**SMALL, "steps": 3})


def test_a_config_method_that_returns_something_else_is_named_in_a_warning(tmp_path):
    class Wrong(Plain):
        def config(self):
            return {"vocab": self.vocab, "width": torch.zeros(1)}

    with pytest.warns(RuntimeWarning, match=r"Wrong.config\(\) must return a dict of constructor arguments"):
        hf.save_pretrained(tmp_path, Wrong(Vocab(5, 3)))
    assert json.loads((tmp_path / "config.json").read_text())["model"].keys() == {"kind", "class"}


def test_a_config_of_the_first_version_without_arguments_is_still_read(tmp_path):
    hf.save_pretrained(tmp_path, Plain(Vocab(5, 3)))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model"]["arguments"]
    config["sha256"]["config.json"] = config_file.digest(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(hf.from_pretrained(tmp_path, model=Plain(Vocab(5, 3))).model) is Plain


def test_a_model_class_for_another_kind_of_network_is_refused(tmp_path):
    hf.save_pretrained(tmp_path, hf.models.Transformer(Vocab(5, 3), hf.models.Size(1, 8, 2)))
    with pytest.raises(ValueError, match="contains a Transformer, not a Plain: omit model_class"):
        hf.from_pretrained(tmp_path, model_class=Plain)


def test_a_constructor_that_fails_is_named_with_its_arguments(tmp_path):
    hf.save_pretrained(tmp_path, Configured(5, 3))
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["arguments"]["tokens"] = 0
    config["sha256"]["config.json"] = config_file.digest(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"Configured\(tokens=0, masks=3\) fails"):
        hf.from_pretrained(tmp_path, model_class=Configured)


# -- named on the command line ---------------------------------------------------------------------------------------


def test_a_class_in_the_current_directory_is_imported_because_the_user_typed_it(module):
    before = list(sys.path)
    cls = load_class(module)
    assert (cls.__module__, cls.__name__) == ("my_network", "Net")
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no_such_module:Net", r"cannot be imported: there is no module no_such_module. Run hopflow in the folder"),
        ("my_network:Nut", r"my_network has no Nut; its networks are: Hidden, Net"),
        ("my_network:not_a_class", "is not a subclass of torch.nn.Module"),
        ("my_network:Vocab", "is not a subclass of torch.nn.Module"),
        ("my_network", "write model=package.module:Class"),
        ("my_network:", "write model=package.module:Class"),
        ("../my_network:Net", "write model=package.module:Class"),
        ("my network:Net", "write model=package.module:Class"),
        ("broken:Net", r"cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_class_that_cannot_be_imported_is_refused_with_what_to_do(module, text, says):
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=says):
        load_class(text)


def test_a_custom_network_is_trained_resumed_sampled_evaluated_and_reported_on_the_command_line(module, hopflow):
    result = hopflow("train", "text.txt", f"model={module}", "tokens=char", "length=16", "out=run", *KEYS)
    assert result.code == 0, result.err
    result = hopflow("train", "run", f"model={module}", "steps=3")
    assert result.code == 0, result.err
    for command in (("sample", "run", "n=2", "steps=4"), ("eval", "run"), ("report", "run")):
        result = hopflow(*command)
        assert result.code == 0, result.err


def test_a_run_folder_does_not_cause_an_import_of_the_class_it_names(module, hopflow, forget):
    assert hopflow("train", "text.txt", f"model={module}", "tokens=char", "length=16", "out=run", *KEYS).code == 0
    forget()
    del sys.modules["my_network"]
    for command in (("train", "run", "steps=3"), ("sample", "run", "n=2"), ("eval", "run")):
        result = hopflow(*command)
        assert result.code != 0
        assert "model=" in result.err
        assert "my_network" not in sys.modules
    load_class(module)
    assert hopflow("sample", "run", "n=2", "steps=4").code == 0


def test_a_recipe_file_does_not_cause_an_import_of_the_class_it_names(module):
    Path("own.toml").write_text(f'base = "text"\ndata = "text.txt"\nmodel = "{module}"\n')
    with pytest.raises(ValueError, match=r"a file never causes an import: add model=my_network:Net"):
        build(resolve("own.toml"))
    assert "my_network" not in sys.modules


def test_a_class_with_an_argument_that_no_setting_provides_is_refused(module, hopflow):
    Path("my_network.py").write_text(MODULE.replace("width: int = 8", "depth: int, width: int = 8"))
    result = hopflow("train", "text.txt", f"model={module}", "tokens=char", "out=run", *KEYS)
    assert result.code != 0
    assert "needs depth, which no setting provides" in result.err


def test_saving_a_network_without_config_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.save_pretrained(tmp_path, Unstorable(Vocab(5, 3), torch.relu))


# -- what is printed -------------------------------------------------------------------------------------------------


def test_a_loaded_network_prints_its_folder_class_flow_and_tokenizer(tmp_path, corpus):
    network = make(Plain, corpus)
    hf.save_pretrained(tmp_path / "net", network, flow_for(corpus), tokenizer=corpus.tokenizer, recipe={"name": "own"})
    text = str(hf.from_pretrained(tmp_path / "net"))
    assert text.splitlines()[0] == f"saved network in {tmp_path / 'net'}"
    assert "Plain, " in text
    assert f"char, {corpus.vocab_size} tokens" in text
    assert "Mask" in text
    assert "name=own" in text


def test_a_run_prints_its_folder_steps_and_newest_metrics(tmp_path, corpus):
    text = str(train(Plain, corpus, tmp_path / "run"))
    assert text.splitlines()[0] == f"run in {tmp_path / 'run'}"
    assert "steps taken  2" in text
    assert "perplexity bound b0" in text
    assert "hf.from_pretrained(" in text
