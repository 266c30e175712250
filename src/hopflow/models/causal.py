"""The autoregressive transformer: baseline and judge."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from ..categorical import categorical
from ..filters import Filter
from ..network import Network, resting
from ..paths import uniform
from .attention import CausalAttention, Past
from .blocks import Block, Norm, PlainBranch
from .sizes import Size
from .stack import Stack, check_dropout, check_tokens

CHUNK = 1 << 26
"""Numbers that a chunk of logits may hold: 256 MiB of float32."""
PIECE = 64
"""Sequences that are drawn at once, where many are wanted."""


class Causal(Stack):
    """x -> logits of every token given those before it.

    A learned vector stands before the first token, so that all L tokens are predicted and -log p(x) is exact.
    """

    def __init__(
        self, vocab_size: int, size: str | Size = "small", *, dropout: float = 0.1, recompute: bool = False
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"a vocabulary has at least one token; got {vocab_size}")
        size = Size.of(size)
        check_dropout(dropout)
        blocks = [Block(PlainBranch, CausalAttention(size), size, dropout) for _ in range(size.layers)]
        super().__init__(vocab_size, vocab_size, size, blocks, Norm(size.width), recompute)
        self.vocab_size, self.dropout = vocab_size, dropout
        self.start = nn.Parameter(torch.empty(size.width).uniform_(-(size.width**-0.5), size.width**-0.5))

    def forward(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L Vd"]:
        """logits[:, i] are of x[:, i] given x[:, :i]."""
        out: Tensor = self.head(self.features(x))
        return out

    def features(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """What the head reads: `head(features(x))` are the logits."""
        check_tokens(x)
        before = torch.cat([self.start.expand(len(x), 1, -1), self.embedding(x[:, :-1])], 1)
        return self.through(before)

    def nll(
        self, x: Int[Tensor, "B L"], keep: Bool[Tensor, "B L"] | None = None, body: Network | None = None
    ) -> Float[Tensor, " B"]:
        """-log p(x) in nats, over the positions to keep, all unless said; full logits never exist.

        `body` stands for `features`, such as a compiled one.
        """
        features, tokens = (body or self.features)(x).flatten(0, 1), x.flatten().long()
        rows = max(1, CHUNK // self.vocab_size)
        pieces = zip(features.split(rows), tokens.split(rows), strict=True)
        nats = torch.cat([checkpoint(self._nats, *piece, use_reentrant=False) for piece in pieces]).view(x.shape)
        return (nats if keep is None else torch.where(keep, nats, 0.0)).sum(1)

    def _nats(self, features: Tensor, tokens: Tensor) -> Tensor:
        logits = self.head(features)
        # bf16 softmax over 50k tokens loses the tail
        return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens, reduction="none")

    def pieces(
        self, n: int, length: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Iterator[Int[Tensor, "m L"]]:
        """n sequences, some at a time: of all that it draws at once, a network remembers everything so far."""
        for start in range(0, n, PIECE):
            yield self.generate(min(PIECE, n - start), length, generator, temperature)

    def generate(
        self, n: int, length: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Int[Tensor, "n L"]:
        """n sequences, token by token; temperature 0 takes the likeliest."""
        if n < 1 or length < 1:
            raise ValueError(f"generate needs n ≥ 1 sequences of length ≥ 1; got n={n}, length={length}")
        narrowed = Filter(temperature)
        tokens = torch.empty(n, length, dtype=torch.long, device=self.start.device)
        pasts = [Past() for _ in self.blocks]
        with resting(self):
            x = self.start.expand(n, 1, -1)
            for i in range(length):
                log_p = narrowed(self.head(self.through(x, None, i, pasts))[:, 0].log_softmax(1))
                tokens[:, i] = categorical(log_p, uniform(tokens[:, i], generator))
                x = self.embedding(tokens[:, i : i + 1])
        return tokens
