"""X0Head: a second head that predicts x0, for the reversal bound of coupled pairs."""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds.x0_posterior import smoothed, x0_nats
from ..network.precision import autocast_dtype
from ..paths import PathSample
from ..vocab import Vocab
from .attention import Attention, rotation
from .blocks import Block, Branch, ResidualStream, zero
from .sizes import Size

WIDTH = 64
"""Width of the block, unless the network is narrower: the head is small for 50,257 tokens, too."""
IMPOSSIBLE = -30.0
"""Initial bias of tokens that the source does not draw."""


class X0Head(nn.Module):
    """Logits of x0 over all tokens, and the token frequencies of the data.

    It reads the features of a network, the embedding of xt and the time embedding, all detached, so that its loss does
    not change the training of the rest of the network. A linear layer maps them to a small width, followed by one block
    of attention and feed-forward, a norm, and the linear layer of the logits; `branch` and `norm` are the classes that
    the network's own blocks use. With `width=0` the logits are linear in the features, as in networks that were saved
    before the block existed.
    """

    unigram: Tensor

    def __init__(
        self, features: int, vocab: Vocab, width: int, branch: type[Branch], norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        width = min(width, features)
        self.body = X0Body(features, width, branch, norm) if width else None
        self.linear = zero(nn.Linear(width or features, vocab.size))
        self.register_buffer("unigram", torch.full((vocab.data,), 1 / vocab.data))

    @torch.no_grad()
    def fit(self, counts: Int[Tensor, " Vd"], source: Float[Tensor, " V"]) -> None:
        """Store the smoothed token frequencies of a text, from its token counts.

        The logits of a new head become those of the source: its token probabilities, whatever xt is.
        """
        self.unigram.copy_(smoothed(counts))
        if not bool(self.linear.bias.any()):
            self.linear.bias.copy_(source.log().clamp(min=IMPOSSIBLE))

    def features(
        self, features: Float[Tensor, "B L D"], embedded: Float[Tensor, "B L D"], clock: Float[Tensor, "B C"] | None
    ) -> Float[Tensor, "B L W"]:
        """The input of `linear`, from the features, the embeddings of xt and the time embedding of a network."""
        if self.body is None:
            return features.detach()
        inputs = torch.cat([features.detach(), embedded.detach()], -1)
        return cast(Tensor, self.body(inputs, None if clock is None else clock.detach()))

    def forward(self, features: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows V"]:
        out: Tensor = self.linear(features)
        return out

    def nats(self, features: Float[Tensor, "B L W"], sample: PathSample) -> Float[Tensor, " B"]:
        """-log p(x0 | xt) of each sequence."""
        return x0_nats(self.linear, features, sample, self.unigram)


class X0Body(nn.Module):
    """A linear layer to a small width, one block and a norm. Without dropout, which would draw random numbers."""

    def __init__(self, features: int, width: int, branch: type[Branch], norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.size = Size(1, width, 1 if width % 4 else 2)
        self.inner = nn.Linear(2 * features, width)
        self.block = Block(branch, Attention(self.size), self.size, 0.0)
        self.norm = norm(width)

    def forward(self, inputs: Float[Tensor, "B L I"], clock: Float[Tensor, "B C"] | None) -> Float[Tensor, "B L W"]:
        x = self.inner(inputs)
        dtype = autocast_dtype(x)
        stream = ResidualStream(x.to(dtype or x.dtype))
        out: Tensor = self.norm(
            self.block(stream, clock, rotation(stream.x, self.size)), clock, torch.float32 if dtype else x.dtype
        )
        return out
