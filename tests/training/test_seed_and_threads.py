"""The seed decides, whatever other threads of the process do meanwhile."""

import threading

import pytest
import torch
from texts import Letters
from torch import nn

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.recipes import Recipe, build
from hopflow.runs.metrics import read
from hopflow.runs.rng import Seeded
from hopflow.training.train import train

QUICK = {"workers": 0, "log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "batch": 8, "threads": 1}

LAYERS = {
    "linear": lambda: nn.Linear(40, 30),
    "embedding": lambda: nn.Embedding(20, 7),
    "convolution": lambda: nn.Conv1d(8, 8, 3),
    "truncated": lambda: nn.ParameterList([nn.init.trunc_normal_(torch.empty(9, 9))]),
    "orthogonal": lambda: nn.ParameterList([nn.init.orthogonal_(torch.empty(9, 9))]),
}


def equal(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def at_once(count: int, work) -> list:
    """The results of `count` threads that do `work` together."""
    together, found = threading.Barrier(count), []

    def go():
        together.wait()
        found.append(work())

    threads = [threading.Thread(target=go) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_weights_are_those_of_the_global_generator_with_the_same_seed_which_is_left_alone(layer):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = LAYERS[layer]()
        before = torch.get_rng_state()
        with Seeded(5):
            found = LAYERS[layer]()
        assert torch.equal(torch.get_rng_state(), before)
    assert equal(found, expected)
    with Seeded(6):
        assert not equal(LAYERS[layer](), expected)


def test_an_explicit_generator_is_used_and_an_operation_without_generator_is_refused():
    with Seeded(5):
        own = torch.empty(5).normal_(generator=torch.Generator().manual_seed(3))
        with pytest.raises(ValueError, match="takes no generator"):
            torch.rand(3)
    assert torch.equal(own, torch.randn(5, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("model", ["transformer", "convolutional", "causal"])
def test_six_builds_at_once_equal_the_one_alone(tmp_path, monkeypatch, model):
    """While a seventh thread draws from the global generator and seeds it."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    recipe = Recipe(name="x", data=str(tmp_path / "text.txt"), length=16, size="tiny", model=model, device="cpu")
    alone, over = build(recipe).model, threading.Event()

    def disturb():
        while not over.is_set():
            torch.manual_seed(1)
            torch.rand(10)

    with torch.random.fork_rng(devices=[]):
        other = threading.Thread(target=disturb)
        other.start()
        found = at_once(6, lambda: build(recipe).model)
        over.set()
        other.join()
    assert [equal(alone, network) for network in found] == [True] * 6


def run(out, logger=None):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    with Seeded(0):
        model = Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=0.2)
    return train(model, flow, corpus, out=out, steps=4, logger=logger, **QUICK)


def losses(folder):
    return [row["loss"] for row in read(folder / "metrics.jsonl")]


def test_of_six_trainings_at_once_one_runs_with_its_own_losses_and_five_are_refused(tmp_path):
    run(tmp_path / "alone")
    refused = []

    def meanwhile(row):
        if row["step"] == 1:
            at_once(5, attempt)

    def attempt():
        try:
            run(tmp_path / f"other-{threading.get_ident()}")
        except ValueError as error:
            refused.append(str(error))

    run(tmp_path / "together", meanwhile)
    assert len(refused) == 5
    assert all("another training is running in this process" in reason for reason in refused)
    assert losses(tmp_path / "together") == losses(tmp_path / "alone")
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["alone", "together"]


def test_after_a_training_failed_or_ended_the_next_one_can_start(tmp_path):
    def fail(row):
        raise RuntimeError("a fault of the logger")

    with pytest.raises(RuntimeError, match="a fault"):
        run(tmp_path / "failed", fail)
    assert at_once(1, lambda: run(tmp_path / "next").step) == [4]
