"""References: what knowing nothing, or only how frequent each token is, costs on the same sequences."""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class References:
    """Nats of each sequence under two laws that every model should beat."""

    random: float
    """Per sequence, every data token equally likely."""
    unigram: Float[Tensor, " n"]
    """Every token as likely as it is frequent, wherever it stands."""
    law: str
    """Whose frequencies these are."""

    @classmethod
    def of(cls, x1: Int[Tensor, "n L"], vocab: int, counts: Int[Tensor, " V"] | None = None) -> "References":
        """From the counts of the training text with one added to each; without them from the text's own."""
        x1 = x1.cpu()
        if counts is None:
            law, frequent = "this text", x1.flatten().bincount(minlength=vocab).double()
        else:
            law, frequent = "the training text", counts.cpu().double() + 1
        nats = (frequent.sum().log() - frequent.log())[x1].sum(1)
        return cls(x1.shape[1] * math.log(vocab), nats, law)

    def facts(self, rows: int) -> dict[str, Any]:
        """What is recorded beside a number of the first `rows` sequences."""
        unigram = float(self.unigram[:rows].mean())
        return {"random_nats": self.random, "unigram_nats": unigram, "unigram_of": self.law}
