"""Correlation of two numbers over runs, with its error: do they rank runs in the same order? App. C.7 [C6]

Errors are Fisher's: z = artanh of a coefficient is nearly normal for normally distributed runs, with variance 1/(n-3)
for Pearson's, 1.06/(n-3) for Spearman's and 0.437/(n-4) for Kendall's (Fieller, Hartley and Pearson 1957). If the runs
form two clusters, the correlation of all runs mostly shows that there are two; `within` removes the cluster means.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Correlation:
    """A coefficient over n runs, its standard error and its 95 % interval."""

    kind: str
    value: float
    stderr: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, kind: str, value: float, n: int, variance: float) -> "Correlation":
        """A coefficient with its interval by Fisher's z, which has this variance."""
        z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value))), 1.959964 * math.sqrt(variance)
        error = (1 - value**2) * math.sqrt(variance)
        return cls(kind, value, error, math.tanh(z - half), math.tanh(z + half), n)

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.3f} ± {self.stderr:.3f} (95 %: {self.low:.3f} to {self.high:.3f}), n={self.n}"


def correlations(x: Sequence[float | int], y: Sequence[float | int]) -> tuple[Correlation, Correlation, Correlation]:
    """Pearson, Spearman and Kendall (τ-b) correlation over runs; x and y have one number per run."""
    from scipy import stats  # half a second to import, and rarely needed

    n = _check(x, y)
    return (
        Correlation.of("pearson", float(stats.pearsonr(x, y).statistic), n, 1 / (n - 3)),
        Correlation.of("spearman", float(stats.spearmanr(x, y).statistic), n, 1.06 / (n - 3)),
        Correlation.of("kendall", float(stats.kendalltau(x, y).statistic), n, 0.437 / (n - 4)),
    )


def within(x: Sequence[float | int], y: Sequence[float | int], groups: Sequence[Hashable]) -> Correlation:
    """Pearson correlation after subtracting the mean of each group, such as runs with the same source or size."""
    n = _check(x, y)
    kinds = list(dict.fromkeys(groups))
    if len(groups) != n:
        raise ValueError(f"groups must have one entry per run, got {n} runs and {len(groups)} groups")
    freedom = n - len(kinds) - 2
    if freedom < 1:
        raise ValueError(f"{n} runs in {len(kinds)} groups are too few: there must be at least 3 more runs than groups")
    member = torch.tensor([[float(group == kind) for kind in kinds] for group in groups], dtype=torch.float64)
    table = torch.tensor([list(x), list(y)], dtype=torch.float64).T
    left = table - member @ ((member.T @ table) / member.sum(0)[:, None])
    a, b = left.unbind(1)
    return Correlation.of("pearson within groups", float(a @ b / (a.norm() * b.norm())), n, 1 / freedom)


def evened(table: Float[Tensor, "runs sets"]) -> Float[Tensor, " runs"]:
    """The mean over sets with equal weight: each column is divided by its mean first."""
    return (table / table.mean(0)).mean(1)


def _check(x: Sequence[float | int], y: Sequence[float | int]) -> int:
    if len(x) != len(y):
        raise ValueError(f"x and y must have one number per run, got {len(x)} and {len(y)}")
    if len(x) < 5:
        raise ValueError(f"a correlation with an error needs at least 5 runs, got {len(x)}")
    if not all(math.isfinite(value) for value in (*x, *y)):
        raise ValueError("all numbers must be finite: leave out runs with NaN or infinity")
    if len(set(x)) == 1 or len(set(y)) == 1:
        raise ValueError("all runs have the same number, so there is no correlation")
    return len(x)
