"""The numbers of a coupling: what its pairs cost, what they save, and how they were found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """How a coupling was solved: solver, iterations, a bound on the distance to the optimum, and convergence."""

    solver: str = "none"
    iterations: int = 0
    dual_gap: float = 0.0
    converged: bool = True


@dataclass(frozen=True)
class CouplingNumbers:
    """The numbers of one coupling: its cost, what it saves, and how it was solved.

    `cost` is the true mean cost of the pairs, `independent_cost` that of all pairs of the batch. `marginal_error` is
    Σ |mass - 1/n| over the source rows, between 0 and 2: 0 if each source row is chosen with the same probability.
    `information` bounds KL(π(·|x1) ‖ p0), the nats that a bound under this coupling must add (theory.md §4).
    """

    cost: float
    independent_cost: float
    marginal_error: float = 0.0
    information: float = 0.0
    verdict: Verdict = Verdict()
    seconds: float = 0.0
    """Wall time of the solver; 0 where it was not measured."""

    @classmethod
    def mean(cls, parts: Sequence["CouplingNumbers"], weights: Sequence[float]) -> "CouplingNumbers":
        """The weighted mean of several couplings' numbers, with the worst of their verdicts."""

        def average(name: str) -> float:
            return math.fsum(weight * getattr(part, name) for weight, part in zip(weights, parts, strict=True))

        verdict = Verdict(
            parts[0].verdict.solver,
            max(part.verdict.iterations for part in parts),
            max(part.verdict.dual_gap for part in parts),
            all(part.verdict.converged for part in parts),
        )
        names = ("cost", "independent_cost", "marginal_error", "information")
        return cls(**{name: average(name) for name in names}, verdict=verdict)


class HasCouplingNumbers:
    """A record that contains `CouplingNumbers` and offers them as its own attributes, such as `pairs.cost`."""

    numbers: CouplingNumbers

    @property
    def cost(self) -> float:
        return self.numbers.cost

    @property
    def independent_cost(self) -> float:
        return self.numbers.independent_cost

    @property
    def marginal_error(self) -> float:
        return self.numbers.marginal_error

    @property
    def information(self) -> float:
        return self.numbers.information

    @property
    def verdict(self) -> Verdict:
        return self.numbers.verdict

    @property
    def converged(self) -> bool:
        return self.numbers.verdict.converged

    @property
    def seconds(self) -> float:
        return self.numbers.seconds
