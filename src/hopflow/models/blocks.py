"""Blocks: attention and a perceptron, each as a branch that is added to the stream of features.

A branch starts shut, timed or not: a new network is its embedding, and learns how much of each block to let in.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from .attention import Attention, Past, Rotation
from .gelu_linear import gelu_linear
from .sizes import Size

CLOCK = 128
"""Numbers that tell a block the time. App. C [C]"""
WAVES = 128
"""Frequencies of the clock, from 1000 down to 0.1 radians per unit of t."""


class Perceptron(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        out: Tensor = self.out(gelu_linear(x, self.inner))
        return out


class Branch(nn.Module):
    """x + inner(norm(x)). The last layer starts at zero."""

    def __init__(self, width: int, inner: Attention | Perceptron, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = inner
        self.dropout = nn.Dropout(dropout)
        zero(inner.out)

    def forward(self, x: Tensor, clock: Tensor | None, *more: Rotation | Past | None) -> Tensor:
        return (x + self.dropout(self.inner(self.norm(x), *more))).to(x.dtype)


class TimedBranch(nn.Module):
    """x + gate·inner(norm(x)·(1 + scale) + shift): the clock says all three, and 0 at first (adaLN-zero)."""

    def __init__(self, width: int, inner: Attention | Perceptron, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.inner = inner
        self.dropout = nn.Dropout(dropout)
        self.modulation = zero(nn.Linear(CLOCK, 3 * width))

    def forward(self, x: Tensor, clock: Tensor | None, *more: Rotation | Past | None) -> Tensor:
        shift, scale, gate = modulations(self.modulation, clock, x, 3)
        seen = modulated(self.norm(x), shift, scale)
        return (x + gate * self.dropout(self.inner(seen, *more))).to(x.dtype)


class Norm(nn.LayerNorm):
    """A layer norm that has no use for the clock."""

    def forward(self, x: Tensor, clock: Tensor | None = None) -> Tensor:
        return super().forward(x)


class TimedNorm(nn.Module):
    """norm(x)·(1 + scale) + shift, as the clock says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zero(nn.Linear(CLOCK, 2 * width))

    def forward(self, x: Tensor, clock: Tensor | None) -> Tensor:
        shift, scale = modulations(self.modulation, clock, x, 2)
        return modulated(self.norm(x), shift, scale)


class Clock(nn.Module):
    """t as sines and cosines, through two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * WAVES, CLOCK)
        self.outer = nn.Linear(CLOCK, CLOCK)

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        speed = 1000 * torch.exp(-math.log(1e4) / WAVES * torch.arange(WAVES, dtype=t.dtype, device=t.device))
        angle = t[:, None] * speed
        waves = torch.cat([angle.cos(), angle.sin()], 1).to(self.inner.weight.dtype)
        return silu(self.outer(silu(self.inner(waves))))


class Block(nn.Module):
    """Look around, then think."""

    def __init__(self, branch: type[Branch] | type[TimedBranch], attention: Attention, size: Size, dropout: float):
        super().__init__()
        self.attention = branch(size.width, attention, dropout)
        self.perceptron = branch(size.width, Perceptron(size.width), dropout)

    def forward(self, x: Tensor, clock: Tensor | None, turn: Rotation, past: Past | None = None) -> Tensor:
        x = self.attention(x, clock, turn, past)
        return self.perceptron(x, clock)


def modulations(layer: nn.Linear, clock: Tensor | None, x: Tensor, count: int) -> tuple[Tensor, ...]:
    """(B, 1, D) each, float32 at least: 1 + scale would lose its digits in bf16."""
    return layer(clock).to(torch.promote_types(x.dtype, torch.float32))[:, None].chunk(count, -1)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return (x * (1 + scale) + shift).to(x.dtype)


def zero(layer: nn.Linear) -> nn.Linear:
    """The same layer, giving 0 for everything."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
