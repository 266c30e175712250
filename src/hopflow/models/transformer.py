"""The diffusion transformer for text. App. C [C]"""

from typing import cast

from jaxtyping import Float, Int
from torch import Tensor

from ..linear_rows import plain
from ..vocab import Vocab
from .attention import Attention
from .blocks import Begun, Block, Clock, Norm, PlainBranch, TimedBranch, TimedNorm
from .sizes import Size
from .stack import Stack, check_dropout, check_tokens
from .x0_head import X0Head


class Transformer(Stack):
    """(xt, t) -> logits over data tokens; every position sees every other, and the clock steers every block.

    It embeds data tokens and masks, and predicts data tokens only. With a disjoint source what is to be predicted does
    not depend on time (Prop. A.3): `time=False` leaves the clock out, t is then ignored, and norms have weights of
    their own. `predict_x0` adds a head that predicts x0, for the reversal bound of flows with a coupling.
    """

    ADDED = ("predict_x0",)

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
        size = Size.of(size)
        check_dropout(dropout)
        branch = TimedBranch if time else PlainBranch
        blocks = [Block(branch, Attention(size), size, dropout) for _ in range(size.layers)]
        norm = TimedNorm(size.width) if time else Norm(size.width)
        super().__init__(vocab.size, vocab.data, size, blocks, norm, recompute)
        self.vocab, self.dropout, self.time = vocab, dropout, time
        self.clock = Clock() if time else None
        self.predict_x0 = predict_x0
        self.x0_head = X0Head(size.width, vocab) if predict_x0 else None  # last: the other weights stay as they are

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        out: Tensor = self.head(self.features(xt, t))
        return out

    def features(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """What the head reads: `head(features(xt, t))` are the logits."""
        return self.through(*self._start(xt, t))

    def in_two(self) -> bool:
        """Whether `begin` and `finish` give what `features` does: nobody has overridden or changed what they pass over.

        Hooks, features of one's own, or another layer in the last attention are heard by `features` alone.
        """
        own = getattr(self.features, "__func__", None) is Transformer.features and type(self).through is Stack.through
        looking = self._last.attention.inner if type(self._last) is Block else None
        usual = type(looking) is Attention and plain(looking.qkv)
        return own and usual and not any(part._forward_hooks or part._forward_pre_hooks for part in self.modules())

    def begin(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Begun:
        """Features in two halves, for whoever wants them at a few positions: this one is for all of them.

        It is all but most of the last block.
        """
        if self.training:
            raise ValueError("begin and finish are for a network at rest, nothing is dropped: call eval() first")
        x, clock = self._start(xt, t)
        stream, turn = self.enter(x)
        for block in self.blocks[:-1]:
            stream = self.step(block, stream, clock, turn)
        return self._last.begin(stream, clock, turn)

    def finish(self, begun: Begun, row: Int[Tensor, " m"], position: Int[Tensor, " m"]) -> Float[Tensor, "m D"]:
        """`features(xt, t)[row, position]` of what was begun."""
        return self.leave(self._last.finish(begun, row, position), begun.clock_of(row))[:, 0]

    def finish_all(self, begun: Begun) -> Float[Tensor, "B L D"]:
        """`features(xt, t)` of what was begun."""
        return self.leave(self._last.finish_all(begun), begun.clock)

    @property
    def _last(self) -> Block:
        return cast(Block, self.blocks[-1])

    def _start(self, xt: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        check_tokens(xt)
        return self.embedding(xt), self.clock(t) if self.clock is not None else None
