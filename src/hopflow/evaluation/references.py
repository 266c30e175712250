"""Reference likelihoods of a text: uniform tokens, and token frequencies (unigram); every model should beat both."""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class References:
    """Negative log-likelihood of sequences under the uniform and the unigram distribution, in nats."""

    random: float
    """Per sequence, with every data token equally likely."""
    unigram: Float[Tensor, " n"]
    """Of each sequence, with independent tokens drawn by their frequency."""
    law: str
    """The text that the frequencies are from: the training text, or this text."""

    @classmethod
    def of(cls, x1: Int[Tensor, "n L"], vocab: int, counts: Int[Tensor, " V"] | None = None) -> "References":
        """Frequencies from the counts of the training text plus one; without counts from x1 itself."""
        x1 = x1.cpu()
        if counts is None:
            law, frequent = "this text", x1.flatten().bincount(minlength=vocab).double()
        else:
            law, frequent = "the training text", counts.cpu().double() + 1
        nats = (frequent.sum().log() - frequent.log())[x1].sum(1)
        return cls(x1.shape[1] * math.log(vocab), nats, law)

    def facts(self, rows: int) -> dict[str, Any]:
        """What rows store next to a number of the first `rows` sequences."""
        unigram = float(self.unigram[:rows].mean())
        return {"random_nats": self.random, "unigram_nats": unigram, "unigram_of": self.law}
