"""Couplings: which x0 meets which x1."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .costs import Hamming, SequenceCost
from .network import Network
from .ot import assignment, best_engine
from .picks import Permutation, Pick, Rows
from .sinkhorn import sinkhorn
from .split import Split

__all__ = [
    "EXAMPLES",
    "Coupling",
    "ExactOT",
    "Independent",
    "Match",
    "OptimalTransport",
    "Pairs",
    "Permutation",
    "Rows",
    "SinkhornOT",
    "Verdict",
]


@dataclass(frozen=True)
class Verdict:
    """How a coupling was found: the solver, its iterations, and how far from the optimum of its problem it may be."""

    solver: str = "none"
    iterations: int = 0
    dual_gap: float = 0.0
    converged: bool = True


@dataclass(frozen=True)
class Match:
    """Which source row each data row is given, and what the pairing did; in `Pairs` with the rows themselves."""

    order: Int[Tensor, " n"]
    cost: float
    independent_cost: float
    marginal_error: float
    information: float
    verdict: Verdict = Verdict()


@dataclass(frozen=True)
class Pairs:
    """Paired rows, and what the pairing did.

    `cost` is the true mean cost of these pairs, `independent_cost` that of all pairs of the batch. `marginal_error` is
    Σ |mass - 1/n| over the source rows, a number between 0 and 2: 0 where each has the same chance to be chosen.
    `information` bounds KL(π(·|x1) ‖ p0), the nats that a bound under this coupling must add (theory.md §4).
    """

    x0: Int[Tensor, "n L"]
    x1: Int[Tensor, "n L"]
    cost: float
    independent_cost: float
    marginal_error: float
    information: float
    verdict: Verdict = Verdict()


class Coupling(ABC):
    """A rule that pairs the source rows of a batch with its data rows."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Of "embedding" and "network", what `pair` must be given: what its cost reads."""
        return ()

    @property
    def is_identity(self) -> bool:
        """Whether row i of x0 always meets row i of x1, so that nothing is solved."""
        return False

    def for_equal_rows(self) -> "Coupling":
        """The coupling to use where all source rows are equal: the same pairs at the lowest price."""
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
        """A source row for each data row, in the order of the data rows."""

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
        """Each data row with one source row, in the order of the data rows.

        Rows meet only within their group: labels, or the numbers of prefixes; row i of x0 and of x1 are in group[i].
        `embedding` and `network` are for costs that read them.
        """
        _check(x0, x1, group)

        def of(rows: Int[Tensor, " k"] | None) -> Match:
            a, b = (x0, x1) if rows is None else (x0[rows], x1[rows])
            return self.match(a, b, generator, embedding=embedding, network=network)

        with torch.no_grad():
            found = _by_group(None if group is None else group.to(x0.device), of)
        return Pairs(
            x0[found.order.to(x0.device)],
            x1,
            found.cost,
            found.independent_cost,
            found.marginal_error,
            found.information,
            found.verdict,
        )


class OptimalTransport(Coupling):
    """A coupling that needs nothing of the rows but the matrix of their cost.

    So the matrix may be computed where the embeddings are, on a GPU say, and solved elsewhere and later.
    """

    cost: SequenceCost

    def __post_init__(self) -> None:
        if not isinstance(self.cost, SequenceCost):
            raise ValueError(f"{type(self).__name__} is given a cost, such as Hamming(); got {self.cost!r}")

    @property
    def reads(self) -> tuple[str, ...]:
        return self.cost.reads

    def for_equal_rows(self) -> Coupling:
        # every permutation costs the same, and x0 says nothing about x1: information 0
        return Independent(self.cost)

    @abstractmethod
    def solve(self, split: Split, generator: torch.Generator | None = None) -> Match:
        """A source row, a column of the matrix, for each data row; what the pairs cost follows from its entries."""

    def settle(
        self, split: Split, generator: torch.Generator | None = None, group: Int[Tensor, " n"] | None = None
    ) -> Match:
        """The same within groups: what `pair` finds for rows with this cost."""
        return _by_group(group, lambda rows: self.solve(split if rows is None else split.of(rows), generator))

    def match(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        generator: torch.Generator | None = None,
        *,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Match:
        return self.solve(self.cost.split(x0, x1, embedding, network), generator)


@dataclass(frozen=True)
class Independent(Coupling):
    """Rows meet as they come: π = p0 × q. Bounds are bounds (theory.md §3).

    The cost of its own pairs is an unbiased estimate of that of all pairs, and reported as both.
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
        return Match(torch.arange(len(x0), device=x0.device), cost, cost, 0.0, 0.0)


@dataclass(frozen=True)
class ExactOT(OptimalTransport):
    """The permutation of least total cost over the batch. Alg. 1 [alg3]"""

    cost: SequenceCost = Hamming()

    def solve(self, split: Split, generator: torch.Generator | None = None) -> Match:
        order = assignment(split.pairwise)
        return Match(order, _finite(split.paid(order)), split.mean(), 0.0, math.log(len(order)), Verdict(best_engine()))


@dataclass(frozen=True)
class SinkhornOT(OptimalTransport):
    """Pairs drawn from the plan of least cost plus eps times its divergence from independence. Alg. 1 [alg3]

    eps is relative to the largest entry of the cost matrix: small is near `ExactOT`, large near `Independent`. `draw`
    says how pairs come from the plan: `Rows()` as in the paper, or `Permutation()`, in which no row is lost. The plan
    is solved in float64 until its marginal error is at most tol. Should it not get there, its rows still are laws over
    the source rows, so that the information and the bounds hold, but source rows are not chosen equally often: then it
    warns, and `Pairs.marginal_error` and `Pairs.verdict` say by how much.
    """

    cost: SequenceCost = Hamming()
    eps: float = 0.01
    draw: Pick = Rows()
    tol: float = 1e-3
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(f"eps must be positive and finite; got {self.eps}. For eps = 0 use ExactOT.")

    def solve(self, split: Split, generator: torch.Generator | None = None) -> Match:
        wide = torch.float32 if split.pairwise.device.type == "mps" else torch.float64  # mps has no float64
        plan = sinkhorn(
            split.pairwise.to(wide), self.eps, scale=split.max(), tol=self.tol, max_iterations=self.max_iterations
        )
        error, converged = float(plan.marginal_error), bool(plan.converged)
        if not converged:
            warnings.warn(
                f"Sinkhorn at eps={self.eps:g} stopped after {int(plan.iterations)} iterations with a marginal error "
                f"of {error:.1e}, above tol={self.tol:g}: raise eps or max_iterations, or use ExactOT",
                RuntimeWarning,
                stacklevel=3,
            )
        picked = self.draw.draw(plan.plan(), generator)
        paid = _finite(split.paid(picked.order))
        verdict = Verdict("sinkhorn", int(plan.iterations), abs(float(plan.dual_gap)), converged)
        return Match(picked.order, paid, split.mean(), error, picked.information, verdict)


def _by_group(group: Int[Tensor, " n"] | None, match: Callable[[Int[Tensor, " k"] | None], Match]) -> Match:
    """The matches of each group's rows as one; without groups, that of all rows."""
    if group is None:
        return match(None)
    order = torch.empty_like(group, dtype=torch.int64)
    parts: list[tuple[float, Match]] = []
    for rows in _members(group):
        part = match(rows)
        order[rows] = rows[part.order.to(rows.device)]
        parts.append((len(rows) / len(group), part))

    def mean(name: str) -> float:
        return math.fsum(share * getattr(part, name) for share, part in parts)

    verdict = Verdict(
        parts[0][1].verdict.solver,
        max(part.verdict.iterations for _, part in parts),
        max(part.verdict.dual_gap for _, part in parts),
        all(part.verdict.converged for _, part in parts),
    )
    cost, independent_cost = mean("cost"), mean("independent_cost")
    return Match(order, cost, independent_cost, mean("marginal_error"), mean("information"), verdict)


def _finite(mean: float) -> float:
    if not math.isfinite(mean):
        raise ValueError("the transport cost of a pair is NaN or infinite; look at the embeddings or the cost function")
    return mean


def _members(group: Int[Tensor, " n"]) -> list[Int[Tensor, " k"]]:
    """The rows of each group, groups in the order of their labels."""
    labels, counts = group.unique(return_counts=True)
    return list(group.argsort(stable=True).split(counts.tolist())) if len(labels) else []


def _check(x0: Tensor, x1: Tensor, group: Tensor | None) -> None:
    if x0.shape != x1.shape or x0.numel() == 0:
        raise ValueError(
            f"a coupling pairs as many source rows as data rows, of one length and at least one; "
            f"got {tuple(x0.shape)} and {tuple(x1.shape)}"
        )
    if group is not None and group.shape != x0.shape[:1]:
        raise ValueError(f"group holds one label per row, {len(x0)} in all; got shape {tuple(group.shape)}")


EXAMPLES: tuple[Coupling, ...] = (Independent(), ExactOT(), SinkhornOT(), SinkhornOT(eps=0.1, draw=Permutation()))
