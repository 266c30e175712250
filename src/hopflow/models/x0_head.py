"""X0Head: a second head that predicts x0, for the reversal bound of coupled pairs."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds.x0_posterior import smoothed, x0_nats
from ..paths import PathSample
from ..vocab import Vocab
from .blocks import zero


class X0Head(nn.Module):
    """Logits over all tokens from a network's features, and the token frequencies of the data.

    The features are detached, so that its loss does not change the training of the rest of the network.
    """

    unigram: Tensor

    def __init__(self, width: int, vocab: Vocab) -> None:
        super().__init__()
        self.linear = zero(nn.Linear(width, vocab.size))
        self.register_buffer("unigram", torch.full((vocab.data,), 1 / vocab.data))

    def fit(self, counts: Int[Tensor, " Vd"]) -> None:
        """Store the smoothed token frequencies of a text, from its token counts."""
        self.unigram.copy_(smoothed(counts))

    def forward(self, features: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        out: Tensor = self.linear(features)
        return out

    def nats(self, features: Float[Tensor, "B L D"], sample: PathSample) -> Float[Tensor, " B"]:
        """-log p(x0 | xt) of each sequence."""
        return x0_nats(self.linear, features.detach(), sample, self.unigram)
