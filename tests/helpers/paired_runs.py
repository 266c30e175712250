"""Runs of the pairing pipeline for its tests, importable by its workers."""

import gc
import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hopflow import (
    Coupling,
    ExactOT,
    Flow,
    Hamming,
    Independent,
    OneStepLikelihood,
    SinkhornOT,
    SquaredEmbedding,
    Uniform,
    Vocab,
)
from hopflow.couplings import CouplingNumbers, Match
from hopflow.runs.rng import stream
from hopflow.training.pairing.pairs import Pairing

VOCAB = Vocab(10, 10)
LENGTH, BATCH, OT_BATCH, WIDTH = 12, 8, 32, 16
EMBEDDED = ExactOT(SquaredEmbedding())


@dataclass(frozen=True)
class Slow(Coupling):
    """Takes its time in a worker, and not in place."""

    then: Coupling = EMBEDDED
    seconds: float = 0.3

    @property
    def reads(self):
        return self.then.reads

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name == "hopflow.training.pairing.worker":
            time.sleep(self.seconds)
        return self.then.match(x0, x1, generator, embedding=embedding)


@dataclass(frozen=True)
class Witness(Coupling):
    """Reports the table that it saw in place of a cost."""

    reads = ("embedding",)

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        return Match(torch.arange(len(x0)), CouplingNumbers(float(embedding[0, 0]), 0.0))


@dataclass(frozen=True)
class Shuffled(Coupling):
    """Draws from its generator; breaks the contract where it is told to."""

    also_data: bool = False

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        return Match(torch.randperm(len(x0), generator=generator), CouplingNumbers(0.0, 0.0))

    def pair(self, x0, x1, generator=None, **tables):
        pairs = super().pair(x0, x1, generator, **tables)
        return replace(pairs, x1=x1.flip(0)) if self.also_data else pairs


@dataclass(frozen=True)
class Grumbling(Coupling):
    """Warns of the same thing each time; so does Sinkhorn, which is given too little time."""

    then: Coupling = SinkhornOT(Hamming(), eps=0.001, max_iterations=1)

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        warnings.warn("again", DeprecationWarning, stacklevel=1)  # one that Python hides by default
        return self.then.match(x0, x1, generator)


class Net(torch.nn.Module):
    """A network whose weights are other ones at every step, and which notes in which mode it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB.size, VOCAB.data)
        self.drop = torch.nn.Dropout(0.5)
        self.calls = []

    def at(self, step: int) -> "Net":
        with torch.no_grad():
            self.embed.weight.copy_(table(step)[:, : VOCAB.data])
        return self

    def forward(self, xt, t):
        self.calls.append((self.training, torch.is_grad_enabled(), t.unique().tolist()))
        return self.drop(self.embed(xt)) + self.embed(xt).mean(1, keepdim=True)


LEARNED = ExactOT(OneStepLikelihood(batch=16))
PERMUTATIONS = {"independent": Independent(), "hamming": ExactOT(Hamming()), "embedded": EMBEDDED, "drawn": Shuffled()}
COUPLINGS = {**PERMUTATIONS, "learned": LEARNED, "sinkhorn": SinkhornOT(SquaredEmbedding(), eps=0.05)}


def rows(index: int, ot_batch: int = OT_BATCH) -> torch.Tensor:
    """The data rows of an OT batch."""
    return torch.randint(0, VOCAB.data, (ot_batch, LENGTH), generator=stream(5, "data", index))


def labels(index: int) -> torch.Tensor:
    """A group for each data row of an OT batch; the last one has one row."""
    return torch.randint(0, 3, (OT_BATCH,), generator=stream(7, "labels", index)).index_fill(0, torch.tensor(11), 3)


def table(step: int) -> torch.Tensor:
    """An embedding table that is another one at every step."""
    return torch.randn(VOCAB.size, WIDTH, generator=stream(6, "table", step))


def pairing(coupling: Coupling, batches=rows, **options) -> Pairing:
    options = {"length": LENGTH, "batch": BATCH, "ot_batch": OT_BATCH, "seed": 3, "workers": 0, **options}
    return Pairing(Flow(Uniform(VOCAB), coupling=coupling), batches, **options)


def until_ready(paired: Pairing) -> Pairing:
    """Wait for every worker, so that the test does not run in place."""
    paired.wait_until_ready()
    return paired


def run(paired: Pairing, steps) -> torch.Tensor:
    """(steps, 2, B, L)"""
    net = Net()
    return torch.stack([torch.stack(paired.step(step, table(step), net.at(step))) for step in steps])


def plain(coupling: Coupling, steps, **options) -> torch.Tensor:
    """The same steps of a run from step 0, in place."""
    with pairing(coupling, workers=0, **options) as paired:
        return run(paired, range(steps[-1] + 1))[steps[0] :]


def children() -> set[int]:
    """Of this process, by /proc; zombies too."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has just ended
                continue
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(entry.name))
    return found


def belongings() -> dict[str, object]:
    """What a process could leave behind: children, threads, descriptors, mapped and named shared memory."""
    gc.collect()
    shared = Path("/dev/shm")
    return {
        "children": children(),
        "threads": (threading.active_count(), len(list(Path("/proc/self/task").iterdir()))),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "mapped": Path("/proc/self/maps").read_text().count("memfd:hopflow"),
        "named": {f.name for f in shared.iterdir() if "hopflow" in f.name or str(os.getpid()) in f.name},
    }
