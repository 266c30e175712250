"""model=package.module:Class: a network of the user's own class on the command line."""

import sys

import jaxtyping
import pytest

NETWORK = """
import hopflow as hf
from torch import nn

class Net(nn.Module):
    def __init__(self, vocab: hf.Vocab, width: int = 8):
        super().__init__()
        self.vocab, self.width = vocab, width
        self.table = nn.Embedding(vocab.size, width)
        self.head = nn.Linear(width, vocab.data)

    def forward(self, xt, t):
        return self.head(self.table(xt))
"""
SAVE = """
import hopflow as hf
from hopflow.data.tokenizers import Characters
from own_network import Net

tokenizer = Characters("\\n abcdefghijklm", ends=True)
flow = hf.Flow(hf.Mask(hf.Vocab(tokenizer.size, 1)))
hf.save_pretrained("saved", Net(flow.vocab), flow, tokenizer=tokenizer, recipe={"length": 12})
"""
OWN = "model=own_network:Net"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A saved network whose class no other test has imported."""
    from hopflow.runs import custom_network

    (tmp_path / "own_network.py").write_text(NETWORK)
    (tmp_path / "fox.txt").write_text("abc bcd cde def efg fgh ghi\n" * 20)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        exec(compile(SAVE, "save.py", "exec"), {})
    forget = {name: cls for name, cls in custom_network._KNOWN.items() if "own_network" not in name}
    monkeypatch.setattr(custom_network, "_KNOWN", forget)
    del sys.modules["own_network"]
    yield tmp_path
    sys.modules.pop("own_network", None)


def test_a_file_never_causes_an_import(hopflow, folder):
    result = hopflow("sample", "saved", "n=1")
    assert result.code == 2
    assert "own_network.Net" in result.message
    assert "model=package.module:Class" in result.message
    assert "own_network" not in sys.modules


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "saved", "n=2", "steps=2"),
        ("infill", "saved", "ab[MASK:3]", "steps=2"),
        ("eval", "saved", "data=fox.txt", "n=2", "steps=2", "rows=4", "draws=2", "seconds=1"),
    ],
)
def test_a_network_of_ones_own_class_is_sampled_infilled_and_evaluated(hopflow, folder, words):
    result = hopflow(*words, OWN)
    assert result.code == 0, result.message
    assert result.out


def test_a_network_of_ones_own_class_is_trained_and_reported(hopflow, folder):
    pytest.importorskip("matplotlib")
    words = ("steps=2", "length=8", "batch=2", "eval_rows=2", "eval_samples=2", "eval_steps=2", "out=run", "device=cpu")
    result = hopflow("train", "fox.txt", OWN, *words)
    assert result.code == 0, result.message
    assert f"hopflow sample run {OWN}" in result.out
    result = hopflow("report", "run", OWN)
    assert result.code == 0, result.message
    assert (folder / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module:Net", "there is no module no_such_module"),
        ("own_network:Nets", "own_network has no Nets"),
        ("own_network", "write model=package.module:Class"),
        ("own_network:nn", "is not a subclass of torch.nn.Module"),
    ],
)
def test_a_class_that_cannot_be_imported_is_one_message(hopflow, folder, text, message):
    result = hopflow("sample", "saved", f"model={text}")
    assert result.code == 2
    assert message in result.message


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("return self.head(self.table(xt))", "return None", "Net fails on tokens of shape"),
        ("return self.head(self.table(xt))", "return {'logits': self.table(xt)}", "Net fails on tokens of shape"),
        ("return self.head(self.table(xt))", "return self.head(xt.float())", "must have shape (batch, length"),
        ("return self.head(self.table(xt))", "return self.forward(xt, t)", "RecursionError"),
        ("return self.head(self.table(xt))", "return self.head(self.table(xt)) * 1j", "must be real numbers"),
        ("self.head = nn.Linear(width, vocab.data)", "self.head = vocab.none", "cannot be built: AttributeError"),
    ],
)
def test_a_mistake_in_ones_own_class_is_not_reported_as_a_bug_of_hopflow(
    hopflow, folder, request, line, instead, message
):
    jaxtyping.config.update("jaxtyping_disable", True)  # the checks of types that tests add
    request.addfinalizer(lambda: jaxtyping.config.update("jaxtyping_disable", False))
    (folder / "own_network.py").write_text(NETWORK.replace(line, instead))
    words = ["length=8", "batch=2", "steps=1", "threads=1", "holdout=0.1", "device=cpu", "tokens=char", "out=new"]
    result = hopflow("train", "fox.txt", OWN, *words)
    assert result.code == 2
    assert message in result.message
    assert not (folder / "new").exists()
