"""Mistakes that no other test makes: each is refused with a message that names it."""

import re
from pathlib import Path

import pytest
import torch
from texts import Letters
from torch import nn

import hopflow as hf
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.evaluation.evaluated_model import EvaluatedModel
from hopflow.evaluation.judge import CausalJudge
from hopflow.evaluation.sample_rows import SampleEvaluation
from hopflow.evaluation.transport import transport_costs
from hopflow.models import Causal, Size
from hopflow.runs import checkpoint
from hopflow.runs.weights import fill
from hopflow.sampling import prompts
from hopflow.sources import Source
from hopflow.training.settings import Settings
from hopflow.training.train import train
from hopflow.transport.assignment import certificate

SMALL = Size(layers=1, width=16, heads=2)
FLOW = hf.Flow(hf.Mask(hf.Vocab(5, 1)))
COUNTS = torch.ones(5, dtype=torch.int64)
X1 = torch.zeros(2, 3, dtype=torch.int64)


def logits(xt, t):
    return torch.zeros(*xt.shape, 5)


def text(folder: Path, name: str = "a.txt", content: bytes = b"some words of a text " * 40) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def drawn(**keys) -> hf.Generation:
    return hf.generate(logits, FLOW, n=2, length=3, **keys)


def saved_half(folder: Path) -> None:
    hf.save_pretrained(folder / "half", Causal(256, SMALL).half(), tokenizer=Bytes(), recipe={"length": 8})
    fill(Causal(256, SMALL), [folder / "half" / "model.safetensors"], torch.device("cpu"), convert=False)


def judged_without_tokenizer(_: Path) -> None:
    model = EvaluatedModel(logits, FLOW)
    SampleEvaluation(n=1, steps=(2,), judge=CausalJudge(Causal(256, SMALL), Bytes(), 8)).check(model)


def group_that_is_not_there(folder: Path) -> None:
    found = checkpoint.save(folder, checkpoint.Checkpoint(3, {"model": {"w": torch.ones(2)}}))
    checkpoint.group(found or folder / "step-3", "optimizer")


MISTAKES = {
    "a tokenizer, not a text: use tokens=gpt2": lambda folder: hf.data.load("gpt2", length=8, cache=folder),
    "UTF-16, but must be UTF-8": lambda folder: hf.data.load(
        text(folder, content="some words".encode("utf-16")), length=8
    ),
    "symbols must be distinct": lambda _: Characters("aa"),
    "symbols must be distinct characters in the order": lambda _: Characters("ba"),
    "dropout must be a probability ≥ 0 and < 1, got 1.0": lambda _: Causal(5, SMALL, dropout=1.0),
    "the hops were not recorded": lambda _: drawn(steps=2).at(0.5),
    "pass either steps=": lambda _: drawn(steps=2, sampler=hf.Euler(3)),
    "is not a sampling option": lambda _: drawn(stesp=2),
    "must be valid UTF-8": lambda _: prompts.prompt("a\udc80", Bytes()),
    "prompts must be in a .txt file": lambda folder: prompts.read(text(folder, "a.csv")),
    "Uniform has no masks, got masks=2": lambda _: hf.Uniform.fit(COUNTS, 2),
    "BagOfWords has no masks, got masks=2": lambda _: hf.BagOfWords.fit(COUNTS, 2),
    "pass either embedding= or run=, not both": lambda folder: transport_costs(
        logits, FLOW, X1, embedding=torch.ones(5, 2), run=folder
    ),
    "pass either settings or keywords such as lr=": lambda folder: train(
        nn.Identity(), FLOW, Letters(), out=folder, settings=Settings(), lr=1.0
    ),
    "NaN or infinite": lambda _: certificate(torch.tensor([[0.0, torch.nan], [1.0, 0.0]]), torch.arange(2)),
    "gamma must lie in": lambda _: hf.reversal_bound(logits, FLOW, X1, steps=2, gamma=-0.1),
    "gamma must lie in [0, 1]": lambda _: hf.reversal_bound(logits, FLOW, X1, steps=2, gamma=1.1),
    "at least one sequence": lambda _: hf.reversal_bound(logits, FLOW, X1[:0], steps=2),
    "convert the network first with model.to": saved_half,
    "leave the judge out": judged_without_tokenizer,
    "has no optimizer.safetensors; it has": group_that_is_not_there,
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_refused_with_its_reason(message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        MISTAKES[message](tmp_path)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_reversal_bound_takes_both_ends_of_gamma(gamma):
    assert hf.reversal_bound(logits, FLOW, X1, steps=2, gamma=gamma).plain.nats > 0


@pytest.mark.parametrize("source", [hf.Uniform, hf.BagOfWords])
def test_a_source_without_masks_is_fitted_with_none(source: type[Source]):
    for masks in (None, 0):
        assert source.fit(COUNTS, masks).vocab == hf.Vocab(5)
