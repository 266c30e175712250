"""Time grids: the times between which a sampler steps."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


class Grid(ABC):
    """Strictly increasing times from exactly 0 to exactly 1. A new grid implements `times`."""

    @abstractmethod
    def times(self, steps: int) -> Float[Tensor, " N1"]:
        """The N + 1 times of N steps, in float64."""


@dataclass(frozen=True)
class EvenGrid(Grid):
    """Steps of equal length: t = n/N.

    >>> EvenGrid().times(4)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        return torch.arange(steps + 1, dtype=torch.float64) / steps  # an accumulated t would miss 1


@dataclass(frozen=True)
class CosineGrid(Grid):
    """t = 1 - cos(πn/2N): short steps first, long steps at the end."""

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        angle = math.pi / 4 * torch.arange(steps + 1, dtype=torch.float64) / steps
        return torch.cat([2 * angle[:-1].sin().square(), angle.new_ones(1)])  # 1 - cos 2x, without cancellation


@dataclass(frozen=True)
class GivenGrid(Grid):
    """A list of times. It fits one number of steps only; `Euler.at(times)` sets both."""

    at: tuple[float | int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(float(t) for t in self.at))
        rises = all(a < b for a, b in zip(self.at, self.at[1:], strict=False))
        if len(self.at) < 2 or not rises or self.at[0] != 0 or self.at[-1] != 1:
            raise ValueError(f"times must increase from 0 to 1, e.g. (0, 0.3, 1), got {self.at}.")

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        if steps != len(self.at) - 1:
            raise ValueError(f"these times make {len(self.at) - 1} steps, not {steps}. Use Euler.at(times).")
        return torch.tensor(self.at, dtype=torch.float64)


EXAMPLES: tuple[Grid, ...] = (EvenGrid(), CosineGrid())
