"""Couplings: which x0 meets which x1."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .costs import Cost, Hamming
from .ot import assignment


@dataclass(frozen=True)
class Pairs:
    """Paired rows, and what the pairing did.

    `information` bounds KL(π(·|x1) ‖ p0), the nats that a bound under this coupling must add (theory.md §4).
    """

    x0: Int[Tensor, "n L"]
    x1: Int[Tensor, "n L"]
    cost: float
    independent_cost: float
    marginal_error: float
    information: float


class Coupling(ABC):
    """A rule that pairs the source rows of a batch with its data rows."""

    @abstractmethod
    def pair(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
    ) -> Pairs:
        """Each data row with one source row, in the order of the data rows."""


@dataclass(frozen=True)
class Independent(Coupling):
    """Rows meet as they come: π = p0 × q. Bounds are bounds (theory.md §3)."""

    def pair(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
    ) -> Pairs:
        _check(x0, x1)
        cost = float(Hamming().dissimilarity(x0, x1).sum(1).mean())
        return Pairs(x0, x1, cost, cost, 0.0, 0.0)


@dataclass(frozen=True)
class ExactOT(Coupling):
    """The permutation of least total cost over the batch. Alg. 1 [alg3]"""

    cost: Cost = Hamming()

    def pair(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
    ) -> Pairs:
        _check(x0, x1)
        with torch.no_grad():
            cost = self.cost.matrix(x0, x1, embedding)
        order = assignment(cost)
        paid = float(cost.gather(1, order[:, None]).double().mean())
        return Pairs(x0[order], x1, paid, float(cost.double().mean()), 0.0, math.log(len(x1)))


def _check(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"]) -> None:
    if x0.shape != x1.shape or x0.numel() == 0:
        raise ValueError(
            f"a coupling pairs as many source rows as data rows, of one length and at least one; "
            f"got {tuple(x0.shape)} and {tuple(x1.shape)}"
        )


EXAMPLES: tuple[Coupling, ...] = (Independent(), ExactOT())
