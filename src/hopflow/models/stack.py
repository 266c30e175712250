"""Stack: what both transformers are made of."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..network import narrow
from ..vocab import IDS
from .attention import Past, Rotation, rotation
from .blocks import Block, Norm, TimedNorm, zero
from .model import Model
from .sizes import Size
from .stream import Stream


class Stack(Model):
    """A table of token embeddings, blocks in a row, a norm, and a head that starts at zero: every token as likely.

    `recompute` keeps only what enters each block and computes the block again for its gradient: less memory, about a
    third more time, the same gradients. It may be changed at any time. The initial weights come from torch's global
    random state.
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
        """The embedding of every token: what a transport cost in embedding space reads."""
        return self.embedding.weight

    def through(
        self,
        x: Float[Tensor, "B L D"],
        clock: Float[Tensor, "B C"] | None = None,
        start: int = 0,
        pasts: Sequence[Past | None] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """All blocks and the norm; the first row is at position `start`.

        Under autocast the stream between the blocks is kept in the narrow type, and added to in float32; features are
        float32.
        """
        stream, turn = self.enter(x, start)
        for block, past in zip(self.blocks, pasts or [None] * self.size.layers, strict=True):
            stream = self.step(block, stream, clock, turn, past)
        return self.leave(stream, clock)

    def enter(self, x: Float[Tensor, "B L D"], start: int = 0) -> tuple[Stream, Rotation]:
        """Embeddings as a stream, and the turns of their positions."""
        stream = Stream(x.to(narrow(x) or x.dtype))
        return stream, rotation(stream.x, self.size, start)

    def step(self, block: nn.Module, stream: Stream, *more: Any) -> Stream:
        """Through one block."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(_finished, block, stream, *more, use_reentrant=False)
        out: Stream = block(stream, *more)
        return out

    def leave(self, stream: Stream, clock: Float[Tensor, "B C"] | None) -> Float[Tensor, "B L D"]:
        """The features of a stream."""
        out: Tensor = self.norm(stream, clock, torch.float32 if narrow(stream.x) else stream.x.dtype)
        return out


def _finished(block: nn.Module, stream: Stream, *more: Any) -> Stream:
    """With nothing left to add: of a block that is computed again, a sum is kept and not its parts."""
    out: Stream = block(stream, *more)
    return Stream(out.added())


def check_tokens(x: Tensor) -> None:
    """Refuse what an embedding would meet with a less readable error."""
    if x.dtype not in IDS or x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(
            f"a transformer reads token ids, int64 or int32 of shape (B, L) with L ≥ 1; "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is a chance in [0, 1); got {dropout}")
