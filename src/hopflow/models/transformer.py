"""The diffusion transformer for text, and how its blocks are conditioned on time. App. C [C]"""

import math
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu

from ..network.network import NO_LABEL
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
MOST_LABELS = 1 << 20
FREQUENCIES = 128
"""Frequencies of the time embedding, from 1000 down to 0.1 radians per unit of t."""


class Transformer(BlockStack):
    """(xt, t) -> logits over data tokens, with bidirectional attention and every block conditioned on t.

    It embeds data tokens and masks, and predicts data tokens only. With a disjoint source the prediction does not
    depend on t (Prop. A.3): `time=False` omits the conditioning, t is ignored, and the norms have their own weights.

    With `labels=N` it learns a distribution for each of N labels: it takes labels (B,) from 0 to N - 1 as a third
    argument and adds an embedding of the label to that of the time. -1, or no third argument, means no label, which has
    an embedding, too.

    size: a name (micro, tiny, mini, small, medium) or a Size. dropout: dropout probability. recompute: activation
    checkpointing, which needs less memory and is slower.

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
        labels: int = 0,
    ) -> None:
        require_vocab(vocab)
        _check_label_count(labels)
        size = Size.of(size)
        check_dropout(dropout)
        branch, norm = (TimedBranch, TimedNorm) if time or labels else (PlainBranch, Norm)
        blocks = [Block(branch, Attention(size), size, dropout) for _ in range(size.layers)]
        super().__init__(vocab.size, vocab.data, size, blocks, norm(size.width), recompute)
        self.vocab, self.dropout, self.time = vocab, dropout, time
        self.clock = TimeEmbedding() if time else None  # the name is part of saved files
        self.predict_x0, self.x0_width = predict_x0, x0_width
        # last, so that the other weights do not change
        self.x0_head = X0Head(size.width, vocab, x0_width, branch, norm) if predict_x0 else None
        self.labels = labels
        self.label_embedding = LabelEmbedding(labels) if labels else None

    def forward(
        self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"], labels: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B L Vd"]:
        given = (xt, t) if labels is None else (xt, t, labels)  # a subclass may override features(xt, t)
        out: Tensor = self.head(self.features(*given))
        return out

    def features(
        self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"], labels: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """The input of the head: `head(features(xt, t))` are the logits."""
        return self.run_blocks(*self._embed(xt, t, labels))

    def x0_features(
        self,
        features: Float[Tensor, "B L D"],
        xt: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        labels: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B L W"]:
        """The input of `x0_head`, from `features(xt, t)`."""
        if self.x0_head is None:
            raise ValueError("this network does not predict x0: build it with predict_x0=True")
        with torch.no_grad():
            embedded, clock = self._embed(xt, t, labels)
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

    def begin_features(
        self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"], labels: Int[Tensor, " B"] | None = None
    ) -> PartialFeatures:
        """First part of `features`, for all positions: everything but most of the last block."""
        if self.training:
            raise ValueError("begin_features needs evaluation mode (no dropout): call eval() first")
        x, clock = self._embed(xt, t, labels)
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

    def _embed(self, xt: Tensor, t: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The embeddings of the tokens, and the conditioning: the sum of the embeddings of time and label."""
        check_tokens(xt)
        clock = self.clock(t) if self.clock is not None else None
        if self.label_embedding is None:
            if labels is not None:
                raise ValueError("this Transformer has no labels: build it with labels=N, the number of labels")
            return self.embedding(xt), clock
        label = self.label_embedding(torch.full_like(xt[:, 0], NO_LABEL) if labels is None else labels)
        return self.embedding(xt), label if clock is None else clock + label


class TimeEmbedding(nn.Module):
    """t as sines and cosines, through two linear layers; `fastest` is the largest number of radians per unit of t."""

    def __init__(self, width: int = TIME_WIDTH, fastest: float = 1000.0) -> None:
        super().__init__()
        self.fastest = fastest
        self.inner = nn.Linear(2 * FREQUENCIES, width)
        self.outer = nn.Linear(width, width)

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        steps = torch.arange(FREQUENCIES, dtype=t.dtype, device=t.device)
        speed = self.fastest * torch.exp(-math.log(1e4) / FREQUENCIES * steps)
        angle = t[:, None] * speed
        waves = torch.cat([angle.cos(), angle.sin()], 1).to(self.inner.weight.dtype)
        return silu(self.outer(silu(self.inner(waves))))


class LabelEmbedding(nn.Module):
    """An embedding of each label as wide as that of the time, the last one for no label (-1)."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(labels + 1, TIME_WIDTH)

    def forward(self, labels: Int[Tensor, " B"]) -> Float[Tensor, "B C"]:
        out: Tensor = self.embedding(torch.where(labels == NO_LABEL, len(self.embedding.weight) - 1, labels))
        return out


def _check_label_count(labels: object) -> None:
    if not isinstance(labels, int) or isinstance(labels, bool) or not 0 <= labels <= MOST_LABELS:
        raise ValueError(f"labels must be the number of labels, an integer from 0 to {MOST_LABELS}, got {labels!r}")


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
