"""The diffusion transformer for text. App. C [C]"""

from jaxtyping import Float, Int
from torch import Tensor

from ..vocab import Vocab
from .attention import Attention
from .blocks import Block, Branch, Clock, Norm, TimedBranch, TimedNorm
from .sizes import Size
from .stack import Stack, check_dropout, check_tokens


class Transformer(Stack):
    """(xt, t) -> logits over data tokens; every position sees every other, and the clock steers every block.

    It embeds data tokens and masks, and predicts data tokens only. With a disjoint source what is to be predicted does
    not depend on time (Prop. A.3): `time=False` leaves the clock out, t is then ignored, and norms have weights of
    their own.
    """

    def __init__(
        self,
        vocab: Vocab,
        size: str | Size = "small",
        *,
        dropout: float = 0.1,
        time: bool = True,
        recompute: bool = False,
    ) -> None:
        size = Size.of(size)
        check_dropout(dropout)
        branch = TimedBranch if time else Branch
        blocks = [Block(branch, Attention(size), size, dropout) for _ in range(size.layers)]
        norm = TimedNorm(size.width) if time else Norm(size.width)
        super().__init__(vocab.size, vocab.data, size, blocks, norm, recompute)
        self.vocab, self.dropout, self.time = vocab, dropout, time
        self.clock = Clock() if time else None

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        out: Tensor = self.head(self.features(xt, t))
        return out

    def features(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """What the head reads: `head(features(xt, t))` are the logits."""
        check_tokens(xt)
        return self.through(self.embedding(xt), self.clock(t) if self.clock is not None else None)
