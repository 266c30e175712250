"""Means and standard errors of many quantities over independent units; positions are averaged in bins."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..estimate import mean_and_error
from .numbers import Error

BINS = 32
"""Points that are drawn at most; neighbouring positions are averaged."""


@dataclass(frozen=True)
class Means:
    """Means over sequences or batches, and their standard errors; NaN for an unknown error."""

    mean: tuple[float, ...]
    stderr: tuple[Error, ...]

    @classmethod
    def of(cls, values: Shaped[Tensor, "n points"]) -> "Means":
        found = [mean_and_error(column) for column in values.T]
        return cls(tuple(mean for mean, _ in found), tuple(error for _, error in found))


def width(length: int) -> int:
    """Positions of a bin."""
    return -(-length // BINS)


def binned(values: Float[Tensor, "n L"]) -> Float[Tensor, "n bins"]:
    """Means over neighbouring positions; the last bin may hold fewer."""
    return torch.stack([part.mean(1) for part in values.split(width(values.shape[1]), 1)], 1)
