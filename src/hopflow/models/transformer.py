"""The diffusion transformer for text, and how its blocks are conditioned on time. App. C [C]"""

import math
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu

from ..vocab import Vocab, require_vocab
from .attention import Attention
from .blocks import (
    Block,
    BlockStack,
    Branch,
    FeedForward,
    Norm,
    PartialFeatures,
    PlainBranch,
    ResidualStream,
    check_dropout,
    check_tokens,
    zero,
)
from .sizes import Size
from .x0_head import WIDTH, X0Head

TIME_WIDTH = 128
"""Width of the time embedding. App. C [C]"""
FREQUENCIES = 128
"""Frequencies of the time embedding, from 1000 down to 0.1 radians per unit of t."""


class Transformer(BlockStack):
    """(xt, t) -> logits over data tokens, with bidirectional attention and every block conditioned on t.

    It embeds data tokens and masks, and predicts data tokens only. With a disjoint source the prediction does not
    depend on t (Prop. A.3): `time=False` omits the conditioning, t is ignored, and the norms have their own weights.
    `predict_x0` adds a head that predicts x0, for the reversal bound of flows with a coupling; `x0_width` is the width
    of its block.
    """

    older_defaults: ClassVar[dict[str, Any]] = {"x0_width": 0}

    def __init__(
        self,
        vocab: Vocab,
        size: str | Size = "small",
        *,
        dropout: float = 0.1,
        time: bool = True,
        recompute: bool = False,
        predict_x0: bool = False,
        x0_width: int = WIDTH,
    ) -> None:
        require_vocab(vocab)
        size = Size.of(size)
        check_dropout(dropout)
        branch, norm = (TimedBranch, TimedNorm) if time else (PlainBranch, Norm)
        blocks = [Block(branch, Attention(size), size, dropout) for _ in range(size.layers)]
        super().__init__(vocab.size, vocab.data, size, blocks, norm(size.width), recompute)
        self.vocab, self.dropout, self.time = vocab, dropout, time
        self.clock = TimeEmbedding() if time else None  # the name is part of saved files
        self.predict_x0, self.x0_width = predict_x0, x0_width
        # last, so that the other weights do not change
        self.x0_head = X0Head(size.width, vocab, x0_width, branch, norm) if predict_x0 else None

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        out: Tensor = self.head(self.features(xt, t))
        return out

    def features(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The input of the head: `head(features(xt, t))` are the logits."""
        return self.run_blocks(*self._embed(xt, t))

    def x0_features(
        self, features: Float[Tensor, "B L D"], xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]
    ) -> Float[Tensor, "B L W"]:
        """The input of `x0_head`, from `features(xt, t)`."""
        if self.x0_head is None:
            raise ValueError("this network does not predict x0: build it with predict_x0=True")
        with torch.no_grad():
            embedded, clock = self._embed(xt, t)
        return self.x0_head.features(features, embedded, clock)

    def supports_partial_features(self) -> bool:
        """Whether `begin_features` and `finish_features` compute what `features` does.

        They do not if `features` is overridden, if a module has hooks, or if the last attention was replaced.
        """
        own = getattr(self.features, "__func__", None) is Transformer.features
        own = own and type(self).run_blocks is BlockStack.run_blocks
        attention = self._last.attention.inner if type(self._last) is Block else None
        usual = type(attention) is Attention and type(attention.qkv) is nn.Linear
        return own and usual and not any(part._forward_hooks or part._forward_pre_hooks for part in self.modules())

    def begin_features(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> PartialFeatures:
        """First part of `features`, for all positions: everything but most of the last block."""
        if self.training:
            raise ValueError("begin_features needs evaluation mode (no dropout): call eval() first")
        x, clock = self._embed(xt, t)
        stream, rotary = self.open_stream(x)
        for block in self.blocks[:-1]:
            stream = self.run_block(block, stream, clock, rotary)
        return self._last.begin(stream, clock, rotary)

    def finish_features(
        self, partial: PartialFeatures, row: Int[Tensor, " m"], position: Int[Tensor, " m"]
    ) -> Float[Tensor, "m D"]:
        """`features(xt, t)[row, position]`."""
        return self.close_stream(self._last.finish(partial, row, position), partial.clock_of(row))[:, 0]

    def finish_all_features(self, partial: PartialFeatures) -> Float[Tensor, "B L D"]:
        """`features(xt, t)`."""
        return self.close_stream(self._last.finish_all(partial), partial.clock)

    @property
    def _last(self) -> Block:
        return cast(Block, self.blocks[-1])

    def _embed(self, xt: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        check_tokens(xt)
        return self.embedding(xt), self.clock(t) if self.clock is not None else None


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


class TimedBranch(Branch):
    """x + gate·inner(norm(x)·(1 + scale) + shift), all three linear in the time embedding, initially 0 (adaLN-zero)."""

    def __init__(self, width: int, inner: Attention | FeedForward, dropout: float) -> None:
        super().__init__(nn.LayerNorm(width, elementwise_affine=False), inner, dropout)
        self.modulation = zero(nn.Linear(TIME_WIDTH, 3 * width))

    def normed(self, stream: ResidualStream, clock: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        shift, scale, gate = modulations(self.modulation, clock, 3)
        return *stream.normed(self.norm, stream.x.dtype, (shift, scale)), gate


class TimedNorm(nn.Module):
    """The norm before the head: norm(x)·(1 + scale) + shift, both linear in the time embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zero(nn.Linear(TIME_WIDTH, 2 * width))

    def forward(self, stream: ResidualStream, clock: Tensor | None, dtype: torch.dtype) -> Tensor:
        shift, scale = modulations(self.modulation, clock, 2)
        return stream.normed(self.norm, dtype, (shift, scale))[1]


def modulations(layer: nn.Linear, clock: Tensor | None, count: int) -> tuple[Tensor, ...]:
    """The linear layer of the time embedding, split into `count` parts of (B, 1, D)."""
    return layer(clock)[:, None].chunk(count, -1)
