"""Blocks: attention and a feed-forward layer, each a branch whose output is added to the residual stream.

Every branch starts at zero, with or without time: a new network is its embedding.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from ..kernels import gelu_mlp
from .attention import Attention, KeyValueCache, Rotation
from .residual_stream import ResidualStream
from .sizes import Size

TIME_WIDTH = 128
"""Width of the time embedding. App. C [C]"""
FREQUENCIES = 128
"""Frequencies of the time embedding, from 1000 down to 0.1 radians per unit of t."""


class FeedForward(nn.Module):
    """Linear, GELU, linear, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        if x.is_cuda and gelu_mlp.supports(x, self.inner, self.out):
            return gelu_mlp.gelu_mlp(x, self.inner, self.out)
        out: Tensor = self.out(gelu(self.inner(x), approximate="tanh"))
        return out


class Branch(nn.Module, ABC):
    """A residual branch: norm, then attention or feed-forward, added to the stream."""

    def __init__(self, norm: nn.LayerNorm, inner: Attention | FeedForward, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.inner = inner
        self.dropout = dropout

    def forward(
        self, stream: ResidualStream, clock: Tensor | None, *more: Rotation | KeyValueCache | None
    ) -> ResidualStream:
        x, normed, gate = self.normed(stream, clock)
        return ResidualStream(x, self.inner(normed, *more), gate, self.dropout if self.training else 0.0)

    @abstractmethod
    def normed(self, stream: ResidualStream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The stream's sum, its norm, and the gate of this branch's output."""


class PlainBranch(Branch):
    """x + inner(norm(x)), without time. The last layer starts at zero."""

    def __init__(self, width: int, inner: Attention | FeedForward, dropout: float) -> None:
        super().__init__(nn.LayerNorm(width), inner, dropout)
        zero(inner.out)

    def normed(self, stream: ResidualStream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        return *stream.normed(self.norm, stream.x.dtype), None


class TimedBranch(Branch):
    """x + gate·inner(norm(x)·(1 + scale) + shift), all three linear in the time embedding, initially 0 (adaLN-zero)."""

    def __init__(self, width: int, inner: Attention | FeedForward, dropout: float) -> None:
        super().__init__(nn.LayerNorm(width, elementwise_affine=False), inner, dropout)
        self.modulation = zero(nn.Linear(TIME_WIDTH, 3 * width))

    def normed(self, stream: ResidualStream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        shift, scale, gate = modulations(self.modulation, clock, 3)
        return *stream.normed(self.norm, stream.x.dtype, (shift, scale)), gate


class Norm(nn.LayerNorm):
    """The norm before the head, without time."""

    def forward(self, stream: ResidualStream, clock: Tensor | None, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        return stream.normed(self, dtype)[1]


class TimedNorm(nn.Module):
    """The norm before the head: norm(x)·(1 + scale) + shift, both linear in the time embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zero(nn.Linear(TIME_WIDTH, 2 * width))

    def forward(self, stream: ResidualStream, clock: Tensor | None, dtype: torch.dtype) -> Tensor:
        shift, scale = modulations(self.modulation, clock, 2)
        return stream.normed(self.norm, dtype, (shift, scale))[1]


class TimeEmbedding(nn.Module):
    """t as sines and cosines, through two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * FREQUENCIES, TIME_WIDTH)
        self.outer = nn.Linear(TIME_WIDTH, TIME_WIDTH)

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        steps = torch.arange(FREQUENCIES, dtype=t.dtype, device=t.device)
        speed = 1000 * torch.exp(-math.log(1e4) / FREQUENCIES * steps)
        angle = t[:, None] * speed
        waves = torch.cat([angle.cos(), angle.sin()], 1).to(self.inner.weight.dtype)
        return silu(self.outer(silu(self.inner(waves))))


class PartialFeatures(NamedTuple):
    """The last block before its attention, at all positions; it is finished at the positions that are needed."""

    x: Tensor
    normed: Tensor
    gate: Tensor | None
    keys_values: Tensor
    """(B, L, 2, H, W)"""
    clock: Tensor | None
    rotary: Rotation

    def clock_of(self, row: Int[Tensor, " m"]) -> Tensor | None:
        """The time embeddings of these rows."""
        return None if self.clock is None else self.clock[row]


class Block(nn.Module):
    """Attention, then feed-forward."""

    def __init__(self, branch: type[PlainBranch] | type[TimedBranch], attention: Attention, size: Size, dropout: float):
        super().__init__()
        self.attention = branch(size.width, attention, dropout)
        self.perceptron = branch(size.width, FeedForward(size.width), dropout)  # the name is part of saved files

    def forward(
        self, stream: ResidualStream, clock: Tensor | None, rotary: Rotation, cache: KeyValueCache | None = None
    ) -> ResidualStream:
        return self._feed_forward(self.attention(stream, clock, rotary, cache), clock)

    def begin(self, stream: ResidualStream, clock: Tensor | None, rotary: Rotation) -> PartialFeatures:
        """The part that every position needs, whichever positions are finished. Without dropout."""
        x, normed, gate = self.attention.normed(stream, clock)
        return PartialFeatures(x, normed, gate, self._attention.keys_values(normed), clock, rotary)

    def finish(self, partial: PartialFeatures, row: Int[Tensor, " m"], position: Int[Tensor, " m"]) -> ResidualStream:
        """The stream at these positions, as m sequences of length 1, (m, 1, D)."""
        normed = partial.normed[row, position]
        update = self._attention.forward_at(normed, row, position, partial.keys_values, partial.rotary)
        gate = None if partial.gate is None else partial.gate[row]
        stream = ResidualStream(partial.x[row, position][:, None], update[:, None], gate)
        return self._feed_forward(stream, partial.clock_of(row))

    def finish_all(self, partial: PartialFeatures) -> ResidualStream:
        """The stream at every position."""
        stream = ResidualStream(partial.x, self._attention(partial.normed, partial.rotary), partial.gate)
        return self._feed_forward(stream, partial.clock)

    @property
    def _attention(self) -> Attention:
        return cast(Attention, self.attention.inner)

    def _feed_forward(self, stream: ResidualStream, clock: Tensor | None) -> ResidualStream:
        out: ResidualStream = self.perceptron(stream, clock)
        return out


def modulations(layer: nn.Linear, clock: Tensor | None, count: int) -> tuple[Tensor, ...]:
    """The linear layer of the time embedding, split into `count` parts of (B, 1, D)."""
    return layer(clock)[:, None].chunk(count, -1)


def zero(layer: nn.Linear) -> nn.Linear:
    """The same layer with all parameters set to 0."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
