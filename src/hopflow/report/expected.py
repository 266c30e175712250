"""Expected: the jumps that a run's coupling predicts of a perfect network, as a report keeps and shows them."""

import time
from collections.abc import Sequence
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
from .trained import Trained

BATCHES, LARGEST = 16, 512
"""OT batches that are coupled, and the most rows of one: more take long, and tell little more."""


@dataclass(frozen=True)
class Expected:
    """Jumps by step and position, from so many OT batches of so many rows; from none where they are certain."""

    jumps: tuple[float, float]
    by_step: Means
    by_position: Means
    batches: int
    rows: int
    trained: int
    """Rows of an OT batch of the training."""

    @classmethod
    def of(
        cls, forecast: Forecast, schedule: Schedule, times: Sequence[float], batches: int, rows: int, trained: int
    ) -> "Expected":
        by_step = forecast.by_step(schedule, torch.tensor(times, dtype=torch.float64))
        jumps = mean_and_error(forecast.total())
        return cls(jumps, Means.of(by_step), Means.of(binned(forecast.differ)), batches, rows, trained)


def expect(trained: Trained, times: Sequence[float]) -> Expected:
    """Between these times, from pairs of the run's own text; of a disjoint source nothing need be read."""
    schedule, ot_batch = trained.flow.schedule, trained.ot_batch
    if trained.flow.source.disjoint:
        return Expected.of(Forecast.certain(trained.length), schedule, times, 0, 0, ot_batch)
    rows = min(ot_batch, LARGEST)
    pairs = _pairs(trained, rows)
    return Expected.of(Forecast.of(pairs), schedule, times, len(pairs), rows, ot_batch)


def _pairs(trained: Trained, rows: int) -> list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
    """As many batches as come in time, and at least two: one has no error."""
    found: list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]] = []
    started = time.perf_counter()
    for pairs in islice(trained.pairs(rows), BATCHES):
        found.append(pairs)
        if len(found) > 1 and time.perf_counter() - started > SECONDS:
            break
    return found
