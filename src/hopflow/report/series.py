"""Series: a column of metrics as points to draw, however long the run was and whatever it holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BUCKETS = 600
"""Points beyond which neighbours are drawn as one."""
WINDOWS, FEWEST = 40, 8
"""Of a trend, and the points that each must have."""


@dataclass(frozen=True, eq=False)
class Series:
    """Values by the steps taken until then; `low` and `high` are the least and greatest of what a point stands for."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: np.ndarray
    """Standard error of the mean, from the values it is of; nan for a single one."""
    count: int
    """Finite values."""
    dropped: int
    """Values that were not finite, and are not drawn."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], key: str, points: int = BUCKETS) -> "Series":
        """One point for every value, or for as many neighbours as it takes to have no more than `points`."""
        pairs = [(row["step"] + 1, row[key]) for row in rows if isinstance(row.get(key), int | float)]
        steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
        sound = np.isfinite(values)
        steps, values = steps[sound], values[sound]
        edges = np.linspace(0, len(values), min(points, len(values)) + 1).astype(int)[:-1]
        if not len(values):
            return cls(values, values, values, values, values, 0, int((~sound).sum()))
        size = np.diff([*edges, len(values)])
        mean = np.add.reduceat(values, edges) / size
        spread = np.add.reduceat((values - np.repeat(mean, size)) ** 2, edges)
        error = np.sqrt(spread / np.maximum(size - 1, 1) / size)
        return cls(
            np.add.reduceat(steps, edges) / size,
            mean,
            np.minimum.reduceat(values, edges),
            np.maximum.reduceat(values, edges),
            np.where(size > 1, error, np.nan),
            len(values),
            int((~sound).sum()),
        )

    @classmethod
    def trend(cls, rows: Sequence[Mapping[str, Any]], key: str) -> "Series | None":
        """Means of windows with their errors; None where there are too few points for windows."""
        whole = cls.of(rows, key, points=1)
        windows = min(WINDOWS, whole.count // FEWEST)
        return cls.of(rows, key, points=windows) if windows >= 4 else None

    @property
    def thinned(self) -> bool:
        return self.count > len(self.steps)

    def as_json(self) -> dict[str, Any]:
        bands = {"low": self.low.tolist(), "high": self.high.tolist()} if self.thinned else {}
        return {
            "steps": self.steps.tolist(),
            "mean": self.mean.tolist(),
            **bands,
            "count": self.count,
            "dropped": self.dropped,
        }
