"""Hops of sequences that are drawn for the report, by step and by position."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..estimate import mean_and_error
from ..generation import Generation
from ..network import Network, clock_dtype, home, resting
from ..samplers import Euler
from ..sampling import generate
from .film import film
from .means import Means, binned, width
from .numbers import Error
from .trained import Trained, Unknown

STEPS, FEWER, SEED = 32, 8, 0
"""Euler steps, fewer Euler steps for a slow network, and the seed."""
MOST, SECONDS, PATIENCE = 64, 2.0, 20.0
"""Sequences at most, seconds that drawing them may take, and seconds that the first one may take."""


@dataclass(frozen=True)
class Journey:
    """Hops of n sequences, drawn with η = 0."""

    n: int
    length: int
    sampler: str
    dtype: str
    jumps: tuple[float, Error]
    """Of a sequence: the mean and its standard error."""
    times: tuple[float, ...]
    """At which steps begin, and the last one ends."""
    by_step: Means
    """Of a sequence."""
    positions: tuple[float, ...]
    """The middles of the bins, counted from 1."""
    bin: int
    by_position: Means
    """Of one position."""
    film: dict[str, Any]

    @classmethod
    def of(cls, out: Generation, tokenizer: Any, data: int, dtype: str) -> "Journey":
        """From sequences of one length that were drawn in Euler steps, with their hops."""
        assert isinstance(out.sampler, Euler)
        times, length = out.sampler.grid.times(out.sampler.steps), out.tokens.shape[1]
        return cls(
            len(out.tokens),
            length,
            out.sampler.label,
            dtype,
            mean_and_error(out.jumps),
            tuple(times.tolist()),
            Means.of(hops_by_step(out, times)),
            tuple(binned(torch.arange(1.0, length + 1)[None])[0].tolist()),
            width(length),
            Means.of(binned(out.changes.cpu().double())),
            film(out, tokenizer, data),
        )


def draw(trained: Trained) -> Journey:
    """Sequences of the length of the training, as many as there is time for."""
    some = trained.flow.source.sample(4, trained.length, generator=torch.Generator().manual_seed(SEED))
    n, steps = affordable(trained.model, some)
    out = generate(trained.model, trained.flow, n=n, length=trained.length, steps=steps, trajectory=True, seed=SEED)
    return Journey.of(out, trained.tokenizer, trained.flow.vocab.data, trained.dtype)


def hops_by_step(out: Generation, times: Float[Tensor, " N1"]) -> Float[Tensor, "n N"]:
    """Hops of each sequence between one of these times and the next."""
    assert out.hops is not None
    step = torch.searchsorted(times, out.hops.t.cpu().to(times), right=True) - 1
    counts = torch.zeros(len(out.tokens), len(times) - 1, dtype=torch.float64)
    return counts.index_put((out.hops.row.cpu(), step), torch.ones((), dtype=torch.float64), accumulate=True)


def affordable(model: Network, rows: Int[Tensor, "n L"]) -> tuple[int, int]:
    """How many sequences to draw and in how many steps, from the time of a network call on these rows."""
    there = home(model)
    rows, t = rows.to(there), torch.full((len(rows),), 0.5, dtype=clock_dtype(model), device=there)
    with resting(model):
        call = _seconds(lambda: float(model(rows[:1], t[:1]).sum()))
        if call * STEPS < PATIENCE:  # the first call is slower than later ones
            call = min(_seconds(lambda: float(model(rows, t).sum())) for _ in range(3)) / len(rows)
    for steps in (STEPS, FEWER):
        if call * steps <= PATIENCE:
            return max(1, min(MOST, int(SECONDS / (call * steps)))), steps
    raise Unknown(f"one sequence would take about {call * FEWER:.0f} s to draw here")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
