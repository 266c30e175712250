"""A column of metrics as points to draw, for runs of any length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .numbers import finite

MOST = 600
"""Points beyond which neighbours are drawn as one."""
WINDOWS, FEWEST = 40, 8
"""Of a trend, and the values that each must have."""


@dataclass(frozen=True, eq=False)
class Series:
    """Means of neighbouring values by step, with their minimum and maximum."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: np.ndarray
    """Standard error of each mean, from the values it is of; NaN for a single one."""
    count: int
    """Number of values."""

    @property
    def thinned(self) -> bool:
        return self.count > len(self.steps)

    def as_json(self) -> dict[str, Any]:
        content = {"steps": self.steps.tolist(), "mean": self.mean.tolist(), "count": self.count}
        if not self.thinned:
            return content
        return {**content, "low": self.low.tolist(), "high": self.high.tolist(), "stderr": self.error.tolist()}


@dataclass(frozen=True, eq=False)
class Column:
    """All finite values of one metric, in the order of steps."""

    steps: np.ndarray
    values: np.ndarray
    dropped: int
    """Number of values that are not finite, which are not drawn."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], key: str) -> "Column":
        numbers = [row for row in rows if isinstance(row.get(key), int | float)]
        pairs = [(row["step"] + 1, row[key]) for row in numbers if finite(row[key])]
        steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
        return cls(steps, values, len(numbers) - len(pairs))

    def series(self, most: int = MOST) -> Series:
        """A point for every value; neighbours are averaged so that there are at most `most` points."""
        count = len(self.values)
        if not count:
            none = self.values
            return Series(none, none, none, none, none, 0)
        edges = np.linspace(0, count, min(most, count) + 1).astype(int)
        size, starts = np.diff(edges), edges[:-1]
        mean = np.add.reduceat(self.values, starts) / size
        spread = np.add.reduceat((self.values - np.repeat(mean, size)) ** 2, starts)
        return Series(
            np.add.reduceat(self.steps, starts) / size,
            mean,
            np.minimum.reduceat(self.values, starts),
            np.maximum.reduceat(self.values, starts),
            np.where(size > 1, np.sqrt(spread / np.maximum(size - 1, 1) / size), np.nan),
            count,
        )

    def trend(self) -> Series | None:
        """Means of windows with their errors; None where there are too few values for windows."""
        windows = min(WINDOWS, len(self.values) // FEWEST)
        return self.series(windows) if windows >= 4 else None
