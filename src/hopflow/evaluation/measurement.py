"""Measurement: the mean of a quantity over sequences or texts, with its standard error."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from ..bounds.estimate import known, mean_and_error, plus_minus


@dataclass(frozen=True)
class Measurement:
    """A value, its standard error over n independent sequences or texts (NaN for n = 1), and its unit."""

    quantity: str
    value: float
    stderr: float
    n: int
    unit: str

    @classmethod
    def mean(cls, quantity: str, values: Shaped[Tensor, " n"], unit: str) -> "Measurement":
        """The mean of one value per sequence."""
        return cls(quantity, *mean_and_error(values), len(values), unit)

    @classmethod
    def ratio(
        cls, quantity: str, parts: Shaped[Tensor, " n"], wholes: Shaped[Tensor, " n"], unit: str
    ) -> "Measurement":
        """Σ parts / Σ wholes; its error by the delta method, since both sums vary with the sequences."""
        parts, wholes = parts.double(), wholes.double()
        n, total = len(parts), float(wholes.sum())
        value = float(parts.sum()) / total
        spread = float((parts - value * wholes).square().sum())
        return cls(quantity, value, math.sqrt(n / (n - 1) * spread) / total if n > 1 else math.nan, n, unit)

    def exp(self, quantity: str, unit: str) -> "Measurement":
        """exp of the value, such as a perplexity from nats; the error by the delta method."""
        return Measurement(quantity, math.exp(self.value), math.exp(self.value) * self.stderr, self.n, unit)

    def times(self, factor: float, quantity: str, unit: str) -> "Measurement":
        """The value and its error times a factor, under another name."""
        return Measurement(quantity, factor * self.value, factor * self.stderr, self.n, unit)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "stderr": known(self.stderr)}

    def __str__(self) -> str:
        return f"{self.quantity} {plus_minus(self.value, self.stderr)} {self.unit} (n={self.n})"
