"""Blocks: attention and a perceptron, each as a branch that is added to the stream.

A branch starts shut, timed or not: a new network is its embedding, and learns how much of each block to let in.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu

from .attention import Attention, Past, Rotation
from .sizes import Size
from .stream import Stream
from .two_layers import two_layers

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
        return two_layers(x, self.inner, self.out)


class Branch(nn.Module, ABC):
    """Looks at the stream, and adds to it what it makes of that."""

    def __init__(self, norm: nn.LayerNorm, inner: Attention | Perceptron, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.inner = inner
        self.dropout = dropout

    def forward(self, stream: Stream, clock: Tensor | None, *more: Rotation | Past | None) -> Stream:
        x, seen, gate = self.enter(stream, clock)
        return Stream(x, self.inner(seen, *more), gate, self.dropout if self.training else 0.0)

    @abstractmethod
    def enter(self, stream: Stream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The features, what is seen of them, and how much of what comes of it is let in."""


class PlainBranch(Branch):
    """Adds inner(norm(x)). The last layer starts at zero."""

    def __init__(self, width: int, inner: Attention | Perceptron, dropout: float) -> None:
        super().__init__(nn.LayerNorm(width), inner, dropout)
        zero(inner.out)

    def enter(self, stream: Stream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        return *stream.seen(self.norm, stream.x.dtype), None


class TimedBranch(Branch):
    """Adds gate·inner(norm(x)·(1 + scale) + shift): the clock says all three, and 0 at first (adaLN-zero)."""

    def __init__(self, width: int, inner: Attention | Perceptron, dropout: float) -> None:
        super().__init__(nn.LayerNorm(width, elementwise_affine=False), inner, dropout)
        self.modulation = zero(nn.Linear(CLOCK, 3 * width))

    def enter(self, stream: Stream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        shift, scale, gate = modulations(self.modulation, clock, 3)
        return *stream.seen(self.norm, stream.x.dtype, (shift, scale)), gate


class Norm(nn.LayerNorm):
    """What the head sees of a stream; no use for the clock."""

    def forward(self, stream: Stream, clock: Tensor | None, kind: torch.dtype) -> Tensor:  # type: ignore[override]
        return stream.seen(self, kind)[1]


class TimedNorm(nn.Module):
    """norm(x)·(1 + scale) + shift, as the clock says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zero(nn.Linear(CLOCK, 2 * width))

    def forward(self, stream: Stream, clock: Tensor | None, kind: torch.dtype) -> Tensor:
        shift, scale = modulations(self.modulation, clock, 2)
        return stream.seen(self.norm, kind, (shift, scale))[1]


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


class Begun(NamedTuple):
    """What a block knows of all positions, to be finished at some; without dropout."""

    x: Tensor
    seen: Tensor
    gate: Tensor | None
    offered: Tensor
    """Keys and values (B, L, 2, H, W)."""
    clock: Tensor | None
    turn: Rotation

    def clock_of(self, row: Int[Tensor, " m"]) -> Tensor | None:
        return None if self.clock is None else self.clock[row]


class Block(nn.Module):
    """Look around, then think."""

    def __init__(self, branch: type[PlainBranch] | type[TimedBranch], attention: Attention, size: Size, dropout: float):
        super().__init__()
        self.attention = branch(size.width, attention, dropout)
        self.perceptron = branch(size.width, Perceptron(size.width), dropout)

    def forward(self, stream: Stream, clock: Tensor | None, turn: Rotation, past: Past | None = None) -> Stream:
        return self._think(self.attention(stream, clock, turn, past), clock)

    def begin(self, stream: Stream, clock: Tensor | None, turn: Rotation) -> Begun:
        """What every position must do, wherever it is finished."""
        x, seen, gate = self.attention.enter(stream, clock)
        return Begun(x, seen, gate, self._looking.offered(seen), clock, turn)

    def finish(self, begun: Begun, row: Int[Tensor, " m"], position: Int[Tensor, " m"]) -> Stream:
        """The stream at these positions, as sequences (m, 1, D) of their own."""
        seen = begun.seen[row, position]
        given = self._looking.glance(seen, row, position, begun.offered, begun.turn)
        gate = None if begun.gate is None else begun.gate[row]
        return self._think(Stream(begun.x[row, position][:, None], given[:, None], gate), begun.clock_of(row))

    def finish_all(self, begun: Begun) -> Stream:
        """The stream at every position."""
        return self._think(Stream(begun.x, self._looking(begun.seen, begun.turn), begun.gate), begun.clock)

    @property
    def _looking(self) -> Attention:
        return cast(Attention, self.attention.inner)

    def _think(self, stream: Stream, clock: Tensor | None) -> Stream:
        out: Stream = self.perceptron(stream, clock)
        return out


def modulations(layer: nn.Linear, clock: Tensor | None, count: int) -> tuple[Tensor, ...]:
    """(B, 1, D) each."""
    return layer(clock)[:, None].chunk(count, -1)


def zero(layer: nn.Linear) -> nn.Linear:
    """The same layer, giving 0 for everything."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
