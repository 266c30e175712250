"""Blocks: attention and a feed-forward layer, each a branch of a residual stream, and the stack of both transformers.

Every branch starts at zero, with or without time: a new network is its embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import gelu, layer_norm
from torch.utils.checkpoint import checkpoint

from ..kernels import gelu_mlp, residual_norm
from ..network.precision import autocast_dtype
from ..vocab import IDS
from .attention import Attention, KeyValueCache, Rotation, rotation
from .model import Model
from .sizes import Size


class ResidualStream(NamedTuple):
    """x + gate·dropout(update). The sum is computed together with the next layer norm, in one pass on a GPU."""

    x: Tensor
    """(B, L, D)"""
    update: Tensor | None = None
    """Output of the last branch, (B, L, D)."""
    gate: Tensor | None = None
    """(B or 1, 1, D); None means 1."""
    dropout: float = 0.0
    """Dropout probability of the update; 0 unless in training mode."""

    def normed(
        self, norm: nn.LayerNorm, dtype: torch.dtype, modulation: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum, and its layer norm computed in `dtype`.

        The norm has its own weights, or those of a modulation (shift, scale): norm·(1 + scale) + shift.
        """
        if self.update is not None and self.x.is_cuda and residual_norm.supports(self.x):
            shift, scale = (norm.bias[None, None], norm.weight[None, None]) if modulation is None else modulation
            gate = torch.ones_like(scale[:1]) if self.gate is None else self.gate
            offset = 0.0 if modulation is None else 1.0
            return residual_norm.residual_norm(
                self.x, self.update, gate, scale, shift, offset, self.dropout, norm.eps, dtype
            )
        x = self.sum()
        normed = layer_norm(x.to(dtype), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        if modulation is None:
            return x, normed
        shift, scale = (at_least_float32(part, x) for part in modulation)
        return x, (normed * (1 + scale) + shift).to(normed.dtype)

    def sum(self) -> Tensor:
        """x with the update added."""
        if self.update is None:
            return self.x
        update = drop(self.update, self.dropout)
        return (self.x + (update if self.gate is None else at_least_float32(self.gate, self.x) * update)).to(
            self.x.dtype
        )


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


class Norm(nn.LayerNorm):
    """The norm before the head, without time."""

    def forward(self, stream: ResidualStream, clock: Tensor | None, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        return stream.normed(self, dtype)[1]


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

    def __init__(
        self,
        branch: Callable[[int, Attention | FeedForward, float], Branch],
        attention: Attention,
        size: Size,
        dropout: float,
    ) -> None:
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


class BlockStack(Model):
    """Base class of the transformers: a token embedding, blocks, a norm, and a head that starts at zero.

    With the zero head, a new network finds every token equally likely. `recompute` is activation checkpointing per
    block: less memory, about a third more time, the same gradients; it may be changed at any time. The initial weights
    come from torch's global random state.
    """

    def __init__(
        self, tokens: int, outputs: int, size: Size, blocks: Sequence[Block], norm: nn.Module, recompute: bool
    ) -> None:
        super().__init__()
        self.size, self.recompute = size, recompute
        self.embedding = nn.Embedding(tokens, size.width)
        nn.init.uniform_(self.embedding.weight, -(size.width**-0.5), size.width**-0.5)  # like the linear layers
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = zero(nn.Linear(size.width, outputs))

    @property
    def table(self) -> Float[Tensor, "V D"]:
        """The token embeddings, which a transport cost in embedding space reads."""
        return self.embedding.weight

    def run_blocks(
        self,
        x: Float[Tensor, "B L D"],
        clock: Float[Tensor, "B C"] | None = None,
        start: int = 0,
        caches: Sequence[KeyValueCache | None] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """All blocks and the norm; the first row is at position `start`.

        Under autocast the residual stream is kept in the autocast type, and sums are computed in float32; the returned
        features are float32.
        """
        stream, rotary = self.open_stream(x, start)
        for block, cache in zip(self.blocks, caches or [None] * self.size.layers, strict=True):
            stream = self.run_block(block, stream, clock, rotary, cache)
        return self.close_stream(stream, clock)

    def open_stream(self, x: Float[Tensor, "B L D"], start: int = 0) -> tuple[ResidualStream, Rotation]:
        """Embeddings as a residual stream, and the rotations of their positions."""
        stream = ResidualStream(x.to(autocast_dtype(x) or x.dtype))
        return stream, rotation(stream.x, self.size, start)

    def run_block(self, block: nn.Module, stream: ResidualStream, *more: Any) -> ResidualStream:
        """One block, with activation checkpointing if `recompute`."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(_summed, block, stream, *more, use_reentrant=False)
        out: ResidualStream = block(stream, *more)
        return out

    def close_stream(self, stream: ResidualStream, clock: Float[Tensor, "B C"] | None) -> Float[Tensor, "B L D"]:
        """The features of a residual stream: its final norm."""
        out: Tensor = self.norm(stream, clock, torch.float32 if autocast_dtype(stream.x) else stream.x.dtype)
        return out


def _summed(block: nn.Module, stream: ResidualStream, *more: Any) -> ResidualStream:
    """A block with its last update added: a checkpointed block then stores one tensor and not two."""
    out: ResidualStream = block(stream, *more)
    return ResidualStream(out.sum())


def check_tokens(x: Tensor) -> None:
    """Reject tensors that an embedding would reject with a less readable error."""
    if x.dtype not in IDS or x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(
            f"token ids must be int64 or int32 of shape (B, L) with L ≥ 1, got {x.dtype} of shape {tuple(x.shape)}"
        )


def check_dropout(dropout: float) -> None:
    """Reject a dropout probability outside [0, 1)."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a probability ≥ 0 and < 1, got {dropout}")


def zero(layer: nn.Linear) -> nn.Linear:
    """The same layer with all parameters set to 0."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def at_least_float32(shared: Tensor, x: Tensor) -> Tensor:
    """`shared` in the type of x, but at least float32: in bf16, 1 + scale would lose its digits."""
    return shared.to(torch.promote_types(x.dtype, torch.float32))
