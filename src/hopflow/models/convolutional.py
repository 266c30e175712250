"""A small convolutional network, for texts in which only nearby tokens matter, such as Morse code."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import gelu

from ..vocab import Vocab, require_vocab
from .blocks import check_dropout, check_tokens
from .model import Model
from .sizes import Size

KERNEL = 7
"""Tokens that one layer reads, centered at its own position."""


class Convolutional(Model):
    """(xt, t) -> logits over data tokens: residual convolutions of width KERNEL, conditioned on t at the input.

    A position depends on its 3 · layers neighbors on each side. `size` sets layers and width; heads are not used.
    """

    def __init__(self, vocab: Vocab, size: str | Size = "micro", *, dropout: float = 0.0, time: bool = True) -> None:
        super().__init__()
        require_vocab(vocab)
        check_dropout(dropout)
        self.vocab, self.size, self.dropout, self.time = vocab, Size.of(size), dropout, time
        width = self.size.width
        self.embedding = nn.Embedding(vocab.size, width)
        self.clock = nn.Linear(2, width) if time else None
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2) for _ in range(self.size.layers)
        )
        self.head = nn.Linear(width, vocab.data)

    @property
    def table(self) -> Float[Tensor, "V D"]:
        """The token embeddings, which a transport cost in embedding space reads."""
        return self.embedding.weight

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        check_tokens(xt)
        x = self.embedding(xt)
        if self.clock is not None:
            x = x + self.clock(torch.stack([t, t * t], 1))[:, None]
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = x + drop(gelu(layer(x)), self.dropout, self.training)
        logits: Tensor = self.head(x.transpose(1, 2))
        return logits
