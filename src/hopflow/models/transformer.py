"""The diffusion transformer for text. App. C [C]"""

from typing import cast

from jaxtyping import Float, Int
from torch import Tensor

from ..kernels.fused_head import is_plain_linear
from ..vocab import Vocab, require_vocab
from .attention import Attention
from .block_stack import BlockStack, check_dropout, check_tokens
from .blocks import Block, Norm, PartialFeatures, PlainBranch, TimedBranch, TimedNorm, TimeEmbedding
from .sizes import Size
from .x0_head import X0Head


class Transformer(BlockStack):
    """(xt, t) -> logits over data tokens, with bidirectional attention and every block conditioned on t.

    It embeds data tokens and masks, and predicts data tokens only. With a disjoint source the prediction does not
    depend on t (Prop. A.3): `time=False` omits the conditioning, t is ignored, and the norms have their own weights.
    `predict_x0` adds a head that predicts x0, for the reversal bound of flows with a coupling.
    """

    def __init__(
        self,
        vocab: Vocab,
        size: str | Size = "small",
        *,
        dropout: float = 0.1,
        time: bool = True,
        recompute: bool = False,
        predict_x0: bool = False,
    ) -> None:
        require_vocab(vocab)
        size = Size.of(size)
        check_dropout(dropout)
        branch = TimedBranch if time else PlainBranch
        blocks = [Block(branch, Attention(size), size, dropout) for _ in range(size.layers)]
        norm = TimedNorm(size.width) if time else Norm(size.width)
        super().__init__(vocab.size, vocab.data, size, blocks, norm, recompute)
        self.vocab, self.dropout, self.time = vocab, dropout, time
        self.clock = TimeEmbedding() if time else None  # the name is part of saved files
        self.predict_x0 = predict_x0
        self.x0_head = (
            X0Head(size.width, vocab) if predict_x0 else None
        )  # last, so that the other weights do not change

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        out: Tensor = self.head(self.features(xt, t))
        return out

    def features(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The input of the head: `head(features(xt, t))` are the logits."""
        return self.run_blocks(*self._embed(xt, t))

    def supports_partial_features(self) -> bool:
        """Whether `begin_features` and `finish_features` compute what `features` does.

        They do not if `features` is overridden, if a module has hooks, or if the last attention was replaced.
        """
        own = getattr(self.features, "__func__", None) is Transformer.features
        own = own and type(self).run_blocks is BlockStack.run_blocks
        attention = self._last.attention.inner if type(self._last) is Block else None
        usual = type(attention) is Attention and is_plain_linear(attention.qkv)
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
