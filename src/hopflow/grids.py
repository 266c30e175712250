"""Grids: at which times a sampler steps."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


class Grid(ABC):
    """Times from exactly 0 to exactly 1, each later than the one before."""

    @abstractmethod
    def times(self, steps: int) -> Float[Tensor, " N1"]:
        """N + 1 times in float64."""


@dataclass(frozen=True)
class EvenGrid(Grid):
    """Steps of equal length: t = n/N."""

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        return torch.arange(steps + 1, dtype=torch.float64) / steps  # an accumulated t would miss 1


@dataclass(frozen=True)
class CosineGrid(Grid):
    """t = 1 - cos(πn/2N): short steps first, while little is known, and long ones at the end."""

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        angle = math.pi / 4 * torch.arange(steps + 1, dtype=torch.float64) / steps
        return torch.cat([2 * angle[:-1].sin().square(), angle.new_ones(1)])  # 1 - cos 2x, without cancellation


@dataclass(frozen=True)
class GivenGrid(Grid):
    """Times of one's own."""

    at: tuple[float | int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(float(t) for t in self.at))
        rises = all(a < b for a, b in zip(self.at, self.at[1:], strict=False))
        if len(self.at) < 2 or not rises or self.at[0] != 0 or self.at[-1] != 1:
            raise ValueError(f"times rise from 0 to 1, e.g. (0, 0.3, 1); got {self.at}")

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        if steps != len(self.at) - 1:
            raise ValueError(f"these times make {len(self.at) - 1} steps, not {steps}; write Euler.at(times)")
        return torch.tensor(self.at, dtype=torch.float64)


EXAMPLES: tuple[Grid, ...] = (EvenGrid(), CosineGrid())
