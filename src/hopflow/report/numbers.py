"""Numbers of a report: values with standard errors, means, series over training steps, and all of them as text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Float, Shaped
from pydantic import BeforeValidator, PlainSerializer
from torch import Tensor

from ..bounds.estimate import known as known_or_none
from ..bounds.estimate import mean_and_error

LARGEST = 1e150
"""Larger numbers are not drawn: their squares overflow."""
SIGNIFICANT = 2
"""Two numbers differ if their difference is larger than this many standard errors."""
BINS = 32
"""Points of a curve over positions; neighboring positions are averaged."""
MAX_POINTS = 600
"""Points of a curve over training steps; neighboring steps are averaged."""
WINDOWS, WINDOW_VALUES = 40, 8
"""Windows of a trend at most, and the values that each window must hold."""

StandardError = Annotated[
    float, BeforeValidator(lambda error: math.nan if error is None else error), PlainSerializer(known_or_none)
]
"""A standard error: NaN if it is unknown, null in a file."""


# -- text --------------------------------------------------------------------------------------------------------------


def format_value(value: int | float, error: int | float | None, n: int | None = None, unit: str = "") -> str:
    """A value with two digits of its standard error: `24.31 ± 0.53 (n = 64)`, or `24.31 ± ?` if it is unknown."""
    if math.isinf(value):
        return "infinite" if n is None else f"infinite (n = {n:,})"
    error = standard_error(error, n)
    digits = _decimals(value, error if is_known(error) else 0)
    if abs(value) >= 1e7:
        text = f"{value:.3g} ± {f'{error:.1g}' if is_known(error) else '?'}"
    else:
        text = f"{value:,.{digits}f} ± {f'{error:,.{digits}f}' if is_known(error) else '?'}"
    text += f" {unit}" if unit else ""
    return text if n is None else f"{text} (n = {n:,})"


def format_number(value: int | float) -> str:
    """A number without an error, with thousands separators."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}"


def _decimals(value: int | float, error: int | float) -> int:
    """Decimals that show two digits of the error, or four digits of a number without an error."""
    if error > 0:
        return max(0, 1 - math.floor(math.log10(error)))
    if float(value).is_integer():
        return 0
    return max(0, 3 - math.floor(math.log10(abs(value))))


# -- values and errors -------------------------------------------------------------------------------------------------


def standard_error(error: int | float | None, n: int | None) -> int | float | None:
    """The standard error over n values; None if it is unknown, as for n = 1, where older files contain 0."""
    return None if n == 1 and not error else error if is_known(error) else None


def is_known(error: int | float | None) -> TypeGuard[int | float]:
    """Whether a standard error is known: neither None nor NaN."""
    return error is not None and math.isfinite(error)


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that can be drawn; JSON also allows integers that are too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


@dataclass(frozen=True)
class ValueWithError:
    """A value and its standard error, or None if the error is unknown."""

    value: int | float
    stderr: int | float | None

    @property
    def is_significant(self) -> bool:
        """Whether the value differs from 0 by more than 2 standard errors; False if the error is unknown."""
        return is_known(self.stderr) and abs(self.value) > SIGNIFICANT * self.stderr

    def minus(self, other: "ValueWithError") -> "ValueWithError":
        """The difference of two independent values."""
        return ValueWithError(self.value - other.value, _hypot(self.stderr, other.stderr))

    def percent_below(self, other: "ValueWithError") -> "ValueWithError":
        """100·(1 - self/other), its error by the delta method."""
        ratio = self.value / other.value
        error = _hypot(self.stderr, None if not is_known(other.stderr) else ratio * other.stderr)
        return ValueWithError(100 * (1 - ratio), None if error is None else 100 * error / other.value)

    def __str__(self) -> str:
        return format_value(self.value, self.stderr)


def _hypot(one: int | float | None, other: int | float | None) -> float | None:
    return math.hypot(one, other) if is_known(one) and is_known(other) else None


@dataclass(frozen=True)
class Means:
    """Means of several quantities over sequences or batches, and their standard errors (NaN if unknown)."""

    mean: tuple[float, ...]
    stderr: tuple[StandardError, ...]

    @classmethod
    def of(cls, values: Shaped[Tensor, "n points"]) -> "Means":
        found = [mean_and_error(column) for column in values.T]
        return cls(tuple(mean for mean, _ in found), tuple(error for _, error in found))


def bin_width(length: int) -> int:
    """Positions per bin of a sequence of this length."""
    return -(-length // BINS)


def binned(values: Float[Tensor, "n L"]) -> Float[Tensor, "n bins"]:
    """Means over neighboring positions; the last bin may hold fewer."""
    return torch.stack([part.mean(1) for part in values.split(bin_width(values.shape[1]), 1)], 1)


# -- series over training steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepSeries:
    """Means of neighboring values by training step, with their minimum and maximum."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    error: np.ndarray
    """Standard error of each mean; NaN for the mean of a single value."""
    count: int
    """Number of values."""

    @property
    def is_thinned(self) -> bool:
        """Whether points are means of several values."""
        return self.count > len(self.steps)

    def as_json(self) -> dict[str, Any]:
        content = {"steps": self.steps.tolist(), "mean": self.mean.tolist(), "count": self.count}
        if not self.is_thinned:
            return content
        return {**content, "low": self.low.tolist(), "high": self.high.tolist(), "stderr": self.error.tolist()}


@dataclass(frozen=True, eq=False)
class MetricColumn:
    """All finite values of one metric of metrics.jsonl, in the order of steps."""

    steps: np.ndarray
    values: np.ndarray
    dropped: int
    """Number of values that are not finite."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], key: str) -> "MetricColumn":
        numbers = [row for row in rows if isinstance(row.get(key), int | float)]
        pairs = [(row["step"] + 1, row[key]) for row in numbers if is_finite(row[key])]
        steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
        return cls(steps, values, len(numbers) - len(pairs))

    def series(self, points: int = MAX_POINTS) -> StepSeries:
        """One point per value; neighbors are averaged if there are more values than points."""
        count = len(self.values)
        if not count:
            empty = self.values
            return StepSeries(empty, empty, empty, empty, empty, 0)
        edges = np.linspace(0, count, min(points, count) + 1).astype(int)
        size, starts = np.diff(edges), edges[:-1]
        mean = np.add.reduceat(self.values, starts) / size
        spread = np.add.reduceat((self.values - np.repeat(mean, size)) ** 2, starts)
        return StepSeries(
            np.add.reduceat(self.steps, starts) / size,
            mean,
            np.minimum.reduceat(self.values, starts),
            np.maximum.reduceat(self.values, starts),
            np.where(size > 1, np.sqrt(spread / np.maximum(size - 1, 1) / size), np.nan),
            count,
        )

    def trend(self) -> StepSeries | None:
        """Means over windows with their standard errors; None if there are too few values."""
        windows = min(WINDOWS, len(self.values) // WINDOW_VALUES)
        return self.series(windows) if windows >= 4 else None
