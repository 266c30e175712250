"""The autoregressive transformer: the baseline, and a judge of generated text."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.checkpoint import checkpoint

from ..kernels.fused_head import head_kernels
from ..network.network import Network, evaluation_mode
from ..paths import uniform
from ..sampling.filters import Filter
from ..sampling.random_draws import categorical
from ..scores import linear_head_terms
from .attention import CausalAttention, KeyValueCache
from .blocks import Block, BlockStack, Norm, PlainBranch, check_dropout, check_tokens
from .sizes import Size

CHUNK = 1 << 26
"""Logits per chunk: 256 MiB of float32."""
PIECE = 64
"""Sequences per batch of `pieces`."""


class Causal(BlockStack):
    """x -> logits of every token given those before it.

    A learned vector precedes the first token, so that all L tokens are predicted and -log p(x) is exact.
    """

    is_autoregressive = True

    def __init__(
        self, vocab_size: int, size: str | Size = "small", *, dropout: float = 0.1, recompute: bool = False
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be an integer ≥ 1, got {vocab_size}")
        size = Size.of(size)
        check_dropout(dropout)
        blocks = [Block(PlainBranch, CausalAttention(size), size, dropout) for _ in range(size.layers)]
        super().__init__(vocab_size, vocab_size, size, blocks, Norm(size.width), recompute)
        self.vocab_size, self.dropout = vocab_size, dropout
        self.start = nn.Parameter(torch.empty(size.width).uniform_(-(size.width**-0.5), size.width**-0.5))

    def forward(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L Vd"]:
        """logits[:, i] predict x[:, i] from x[:, :i]."""
        out: Tensor = self.head(self.features(x))
        return out

    def features(self, x: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """The input of the head: `head(features(x))` are the logits."""
        check_tokens(x)
        before = torch.cat([self.start.expand(len(x), 1, -1), self.embedding(x[:, :-1])], 1)
        return self.run_blocks(before)

    def nll(
        self, x: Int[Tensor, "B L"], keep: Bool[Tensor, "B L"] | None = None, body: Network | None = None
    ) -> Float[Tensor, " B"]:
        """-log p(x) in nats, summed over the positions in `keep` (default: all). Full logits are never stored.

        `body` replaces `features`, for example by a compiled version.
        """
        features, tokens = (body or self.features)(x).flatten(0, 1), x.flatten().long()
        nats = self._nats(features, tokens).view(x.shape)
        return (nats if keep is None else torch.where(keep, nats, 0.0)).sum(1)

    def _nats(self, features: Float[Tensor, "n D"], tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """-log p of each token: by the kernels of the loss where they run, else in chunks of rows."""
        if head_kernels(self.head, features) is not None:
            others, own, _ = linear_head_terms(self.head, features, tokens, tokens).unbind(1)
            return softplus(others - own)
        rows = max(1, CHUNK // self.vocab_size)
        pieces = zip(features.split(rows), tokens.split(rows), strict=True)
        return torch.cat([checkpoint(self._chunk_nats, *piece, use_reentrant=False) for piece in pieces])

    def _chunk_nats(self, features: Tensor, tokens: Tensor) -> Tensor:
        logits = self.head(features)
        # bf16 softmax over 50k tokens loses the tail
        return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens, reduction="none")

    def pieces(
        self, n: int, length: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Iterator[Int[Tensor, "m L"]]:
        """n sequences in batches of PIECE, which limits the memory of cached keys and values."""
        for start in range(0, n, PIECE):
            yield self.generate(min(PIECE, n - start), length, generator, temperature)

    def generate(
        self, n: int, length: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Int[Tensor, "n L"]:
        """n sequences, token by token; temperature 0 always takes the most likely token."""
        if n < 1 or length < 1:
            raise ValueError(f"n and length must be integers ≥ 1, got n={n}, length={length}")
        filtered = Filter(temperature)
        tokens = torch.empty(n, length, dtype=torch.long, device=self.start.device)
        caches = [KeyValueCache() for _ in self.blocks]
        with evaluation_mode(self):
            x = self.start.expand(n, 1, -1)
            for i in range(length):
                log_p = filtered(self.head(self.run_blocks(x, None, i, caches))[:, 0].log_softmax(1))
                tokens[:, i] = categorical(log_p, uniform(tokens[:, i], generator))
                x = self.embedding(tokens[:, i : i + 1])
        return tokens
