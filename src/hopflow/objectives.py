"""Objectives: the training loss of a sequence at one time t, in nats; the caller averages over t, pairs and xt."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .divergences import rate_divergence
from .paths import PathSample
from .scores import Scores
from .sources import Source
from .velocities import Eta, eta_at


class Objective(ABC):
    """The training loss of each sequence of a batch."""

    @abstractmethod
    def __call__(self, scores: Scores, sample: PathSample) -> Float[Tensor, " B"]:
        """Nats of each sequence, summed over the positions that count (`sample.total`)."""

    def check(self, source: Source) -> None:  # noqa: B027  most objectives learn from any source
        """Raise ValueError if this objective does not learn p_{1|t} with this source."""


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """-Σ_i log P(x1^i) over all positions, the paper's DFM-O. Eq. (7) [optimization_objective]"""

    def __call__(self, scores: Scores, sample: PathSample) -> Float[Tensor, " B"]:
        return sample.total(-scores.log_p1)


@dataclass(frozen=True)
class NoisyCrossEntropy(Objective):
    """-Σ_i log P(x1^i) over the masked positions, the paper's DFM-N. App. C.2 [C2-pre]"""

    def __call__(self, scores: Scores, sample: PathSample) -> Float[Tensor, " B"]:
        return sample.total(-torch.where(scores.source.vocab.is_data(sample.xt), 0.0, scores.log_p1))

    def check(self, source: Source) -> None:
        if not source.disjoint:
            raise ValueError(
                f"NoisyCrossEntropy needs a disjoint source (Mask, MultiMask), got {type(source).__name__}, with which "
                f"it would not learn p(x1 | xt). Use CrossEntropy()."
            )


@dataclass(frozen=True)
class Bound(Objective):
    """The integrand of the bound (B) at this η. At η = 0 it is that of Eq. (15) [first_B].

    With η = 0, Carry and a mask source it is the MD4 weighting k̇/(1-k)·Σ_masked -log P(x1), the paper's DFM-S.
    App. A.4 [A3]
    """

    eta: Eta = 0.0

    def __post_init__(self) -> None:
        eta_at(self.eta, torch.zeros(1))  # raises ValueError for an invalid η

    def __call__(self, scores: Scores, sample: PathSample) -> Float[Tensor, " B"]:
        return sample.total(sample.dk * rate_divergence(scores, self.eta))


EXAMPLES: tuple[Objective, ...] = (CrossEntropy(), NoisyCrossEntropy(), Bound(0.0), Bound(1.0))
