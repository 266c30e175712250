"""Expected hops of a perfect network, predicted from pairs of the run's own coupling and OT batch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Int
from torch import Tensor

from ..estimate import mean_and_error
from ..schedules import Schedule
from .forecast import Forecast
from .journey import SECONDS
from .means import Means, binned
from .numbers import Error
from .trained import Trained, Unknown

BATCHES = 16
"""OT batches that are coupled at most."""
TRIAL, PATIENCE = 512, 60.0
"""Rows of a batch that is coupled for its time alone, and the most seconds that a prediction may take."""


@dataclass(frozen=True)
class Expected:
    """Hops by step and position, from n OT batches of the run's own size; n = 0 where they need no pairs."""

    jumps: tuple[float, Error]
    by_step: Means
    by_position: Means
    batches: int
    rows: int
    """Rows of an OT batch, as in the training: a coupling saves more the more rows it can choose from."""

    @classmethod
    def of(cls, forecast: Forecast, schedule: Schedule, times: Sequence[float], batches: int, rows: int) -> "Expected":
        if not batches:  # certain: two batches that agree have an error of 0, one would have an unknown error
            forecast = Forecast(forecast.differ.expand(2, -1))
        by_step = forecast.by_step(schedule, torch.tensor(times, dtype=torch.float64))
        jumps = mean_and_error(forecast.total())
        return cls(jumps, Means.of(by_step), Means.of(binned(forecast.differ)), batches, rows)


def expect(trained: Trained, times: Sequence[float]) -> Expected:
    """Between these times, from pairs of the run's training text; a disjoint source needs no pairs."""
    schedule, rows = trained.flow.schedule, trained.ot_batch
    if trained.flow.source.disjoint:
        return Expected.of(Forecast.certain(trained.length), schedule, times, 0, rows)
    pairs = _pairs(trained, rows)
    return Expected.of(Forecast.of(pairs), schedule, times, len(pairs), rows)


def check_time(trained: Trained, rows: int) -> None:
    """Raise Unknown if two OT batches of this size would take too long to couple on this machine."""
    if rows <= TRIAL:
        return
    trial = trained.pairs(TRIAL)
    next(trial)  # the first one also loads the text
    seconds = 2 * _seconds(lambda: next(trial)) * (rows / TRIAL) ** 2
    if seconds > PATIENCE:
        raise Unknown(f"two OT batches of {rows:,} rows would take about {seconds:.0f} s to couple here")


def _pairs(trained: Trained, rows: int) -> list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
    """The first OT batches, at least two: one has no error."""
    check_time(trained, rows)
    found: list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]] = []
    started = time.perf_counter()
    for pairs in islice(trained.pairs(rows), BATCHES):
        found.append(pairs)
        if len(found) > 1 and time.perf_counter() - started > SECONDS:
            break
    return found


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
