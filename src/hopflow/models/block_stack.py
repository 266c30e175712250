"""BlockStack: embedding, blocks, norm and head, the parts of both transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..system.autocast import autocast_dtype
from ..vocab import IDS
from .attention import KeyValueCache, Rotation, rotation
from .blocks import Block, Norm, TimedNorm, zero
from .model import Model
from .residual_stream import ResidualStream
from .sizes import Size


class BlockStack(Model):
    """Base class of the transformers: a token embedding, blocks, a norm, and a head that starts at zero.

    With the zero head, a new network finds every token equally likely. `recompute` is activation checkpointing per
    block: less memory, about a third more time, the same gradients; it may be changed at any time. The initial weights
    come from torch's global random state.
    """

    def __init__(
        self, tokens: int, outputs: int, size: Size, blocks: Sequence[Block], norm: Norm | TimedNorm, recompute: bool
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
