"""Couplings: which source row x0 is paired with which data row x1."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .costs import Hamming, SequenceCost
from .network.network import Network
from .network.precision import widest_float
from .transport.assignment import assignment, best_engine
from .transport.cost_matrix import CostMatrix
from .transport.coupling_numbers import CouplingNumbers, HasCouplingNumbers, Verdict
from .transport.plan_sampling import Permutation, Pick, Rows
from .transport.sinkhorn import sinkhorn

__all__ = [
    "EXAMPLES",
    "Coupling",
    "CouplingNumbers",
    "ExactOT",
    "HasCouplingNumbers",
    "Independent",
    "Match",
    "OptimalTransport",
    "Pairs",
    "Permutation",
    "Rectified",
    "Rows",
    "SinkhornOT",
    "Verdict",
]


@dataclass(frozen=True)
class Match(HasCouplingNumbers):
    """The index of the source row that each data row is paired with, and the numbers of the coupling."""

    order: Int[Tensor, " n"]
    numbers: CouplingNumbers


@dataclass(frozen=True)
class Pairs(HasCouplingNumbers):
    """Paired rows, and the numbers of their coupling (`pairs.cost`, `pairs.independent_cost`, …)."""

    x0: Int[Tensor, "n L"]
    x1: Int[Tensor, "n L"]
    numbers: CouplingNumbers


class Coupling(ABC):
    """A rule that pairs the source rows of a batch with its data rows. A new coupling implements `match`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Which of "embedding" and "network" must be passed to `pair`."""
        return ()

    @property
    def is_identity(self) -> bool:
        """Whether row i of x0 is always paired with row i of x1; then pairs are independent and nothing is solved."""
        return False

    @property
    def pair_store(self) -> str | None:
        """The folder of a pair store that training reads pairs from; None if it pairs the rows of a batch."""
        return None

    @property
    def facts(self) -> dict[str, str | float]:
        """What an evaluation stores of it: its class, and cost and eps where it has them."""
        cost = getattr(self, "cost", None)
        return {"coupling": type(self).__name__, **({} if cost is None else {"cost": type(cost).__name__})}

    def for_equal_rows(self) -> "Coupling":
        """The coupling to use if all source rows are equal: the same pairs, computed as cheaply as possible."""
        return self

    @abstractmethod
    def match(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        """The source row of each data row, in the order of the data rows."""

    def pair(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
        group: Int[Tensor, " n"] | None = None,
    ) -> Pairs:
        """Pair each data row with one source row, in the order of the data rows.

        With `group` (labels, or indices of prefixes) rows are paired within their group only; row i of x0 and row i of
        x1 belong to group[i]. `embedding` and `network` are for costs that need them.
        """
        found = self.match_by_group(x0, x1, generator, group, embedding=embedding, network=network)
        return Pairs(x0[found.order.to(x0.device)], x1, found.numbers)

    def match_by_group(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        group: Int[Tensor, " n"] | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        """The source row of each data row, as `pair` chooses it."""
        _check(x0, x1, group)

        def of(rows: Int[Tensor, " k"] | None) -> Match:
            a, b = (x0, x1) if rows is None else (x0[rows], x1[rows])
            return self.match(a, b, generator, embedding=embedding, network=network)

        with torch.no_grad():
            return _by_group(None if group is None else group.to(x0.device), of)


class OptimalTransport(Coupling):
    """A coupling that is a function of the cost matrix of the rows.

    So the matrix can be computed on one device, such as a GPU with the embeddings, and solved elsewhere later.
    """

    cost: SequenceCost

    def __post_init__(self) -> None:
        if not isinstance(self.cost, SequenceCost):
            raise ValueError(f"cost must be a SequenceCost, e.g. Hamming(), got {self.cost!r}.")

    @property
    def reads(self) -> tuple[str, ...]:
        return self.cost.reads

    def for_equal_rows(self) -> Coupling:
        # every permutation costs the same, and the information is 0
        return Independent(self.cost)

    @abstractmethod
    def solve(self, costs: CostMatrix, generator: torch.Generator | None = None) -> Match:
        """The source row (a column of the matrix) of each data row (a row of the matrix)."""

    def solve_by_group(
        self, costs: CostMatrix, generator: torch.Generator | None = None, group: Int[Tensor, " n"] | None = None
    ) -> Match:
        """The same within groups: the result of `pair` for rows with these costs."""
        return _by_group(group, lambda rows: self.solve(costs if rows is None else costs.of(rows), generator))

    def match(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        return self.solve(self.cost.cost_matrix(x0, x1, embedding, network), generator)


@dataclass(frozen=True)
class Independent(Coupling):
    """Row i of x0 is paired with row i of x1, π = p0 × q. The bounds of theory.md §3 are bounds for these pairs.

    The cost of the pairs is an unbiased estimate of the mean cost of all pairs, and is reported as both.
    """

    cost: SequenceCost = Hamming()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.cost.reads

    @property
    def is_identity(self) -> bool:
        return True

    def match(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        cost = _finite(float(self.cost.paired(x0, x1, embedding, network).cpu().double().mean()))
        return Match(torch.arange(len(x0), device=x0.device), CouplingNumbers(cost, cost))


@dataclass(frozen=True)
class ExactOT(OptimalTransport):
    """Exact OT: the permutation with the lowest total cost over the batch. Alg. 1 [alg3]"""

    cost: SequenceCost = Hamming()

    def solve(self, costs: CostMatrix, generator: torch.Generator | None = None) -> Match:
        order = assignment(costs.pairwise)
        paid, verdict = _finite(costs.paid(order)), Verdict(best_engine())
        return Match(order, CouplingNumbers(paid, costs.mean(), 0.0, math.log(len(order)), verdict))


@dataclass(frozen=True)
class SinkhornOT(OptimalTransport):
    """Entropic OT: pairs drawn from the plan that minimizes cost + eps·KL(plan ‖ independent). Alg. 1 [alg3]

    eps is relative to the largest entry of the cost matrix: small values are close to `ExactOT`, large values to
    `Independent`. `draw` is how pairs are drawn from the plan: `Rows()` as in the paper, or `Permutation()`, which uses
    every row once. The plan is solved in float64 until its marginal error is at most tol. If the solver
    does not converge, it warns: source rows are then not chosen equally often (`Pairs.marginal_error`,
    `Pairs.verdict`). The information and the bounds remain valid.
    """

    cost: SequenceCost = Hamming()
    eps: float = 0.01
    draw: Pick = Rows()
    tol: float = 1e-3
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(
                f"eps must be positive and finite, got {self.eps}. For eps = 0 use ExactOT() (coupling=exact)."
            )

    @property
    def facts(self) -> dict[str, str | float]:
        return {**super().facts, "eps": self.eps}

    def solve(self, costs: CostMatrix, generator: torch.Generator | None = None) -> Match:
        dtype = widest_float(costs.pairwise.device)
        plan = sinkhorn(
            costs.pairwise.to(dtype), self.eps, scale=costs.max(), tol=self.tol, max_iterations=self.max_iterations
        )
        error, converged = float(plan.marginal_error), bool(plan.converged)
        if not converged:
            warnings.warn(
                f"Sinkhorn with eps={self.eps:g} did not converge: after {int(plan.iterations)} iterations the "
                f"marginal error of {error:.1e} is above tol={self.tol:g}. Raise eps or max_iterations or use ExactOT.",
                RuntimeWarning,
                stacklevel=3,
            )
        picked = self.draw.draw(plan.plan(), generator)
        paid = _finite(costs.paid(picked.order))
        verdict = Verdict("sinkhorn", int(plan.iterations), abs(float(plan.dual_gap)), converged)
        return Match(picked.order, CouplingNumbers(paid, costs.mean(), error, picked.information, verdict))


@dataclass(frozen=True)
class Rectified(Coupling):
    """Pairs of a store that a trained flow has drawn: x1 is what the flow made of x0. `hopflow rectify` draws them.

    A share `fresh` of the pairs is real text with independent noise instead, against the drift of a flow that learns
    from its own samples. Training opens the store. The pairs carry nats of information per token rather than log n in
    total, so that they have no coupled bound.
    """

    store: str = field(metadata={"typed": "STORE"})  # coupling=rectified:STORE
    fresh: float = 0.0

    def __post_init__(self) -> None:
        if not self.store:
            raise ValueError("store must be the folder of a pair store; `hopflow rectify RUN out=FOLDER` draws one.")
        if not 0 <= self.fresh <= 1:
            raise ValueError(f"fresh must be a share from 0 to 1, got {self.fresh}.")

    @property
    def pair_store(self) -> str:
        return self.store

    def match(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        raise ValueError(
            f"rectified pairs are read from {self.store}; Rectified cannot pair other rows. Use nll_bound or "
            "reversal_bound; a coupled bound would need the information of the pairs, which is unknown."
        )


def _by_group(group: Int[Tensor, " n"] | None, match: Callable[[Int[Tensor, " k"] | None], Match]) -> Match:
    """The matches within each group, combined; without groups, that of all rows."""
    if group is None:
        return match(None)
    order = torch.empty_like(group, dtype=torch.int64)
    parts: list[CouplingNumbers] = []
    weights: list[float] = []
    for rows in _members(group):
        part = match(rows)
        order[rows] = rows[part.order.to(rows.device)]
        parts.append(part.numbers)
        weights.append(len(rows) / len(group))
    return Match(order, CouplingNumbers.mean(parts, weights))


def _finite(mean: float) -> float:
    if not math.isfinite(mean):
        raise ValueError("the transport cost of a pair is NaN or infinite: check the embeddings or the cost function.")
    return mean


def _members(group: Int[Tensor, " n"]) -> list[Int[Tensor, " k"]]:
    """The rows of each group, in the order of the labels."""
    labels, counts = group.unique(return_counts=True)
    return list(group.argsort(stable=True).split(counts.tolist())) if len(labels) else []


def _check(x0: Tensor, x1: Tensor, group: Tensor | None) -> None:
    if x0.shape != x1.shape or x0.numel() == 0:
        raise ValueError(
            f"x0 and x1 must have the same shape (rows, length) with at least one row and token, "
            f"got {tuple(x0.shape)} and {tuple(x1.shape)}."
        )
    if group is not None and group.shape != x0.shape[:1]:
        raise ValueError(f"group must contain one label per row ({len(x0)}), got shape {tuple(group.shape)}.")


EXAMPLES: tuple[Coupling, ...] = (Independent(), ExactOT(), SinkhornOT(), SinkhornOT(eps=0.1, draw=Permutation()))
