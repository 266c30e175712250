"""Do two numbers rank runs alike? Correlations over runs, with errors. App. C.7 [C6] of the paper and the like.

Errors are Fisher's: z = artanh of a coefficient is nearly normal for runs from a normal law, with variance 1/(n-3) for
Pearson's, 1.06/(n-3) for Spearman's and 0.437/(n-4) for Kendall's (Fieller, Hartley and Pearson 1957). Runs that fall
into two clusters are no such law: a correlation of all of them then says little more than that there are two, and
`within` says what is left inside.
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
        """By Fisher's z, which has this variance; a perfect one has no error that could be known."""
        z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value))), 1.959964 * math.sqrt(variance)
        error = (1 - value**2) * math.sqrt(variance)
        return cls(kind, value, error, math.tanh(z - half), math.tanh(z + half), n)

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.3f} ± {self.stderr:.3f} (95 %: {self.low:.3f} to {self.high:.3f}), n={self.n}"


def correlations(x: Sequence[float | int], y: Sequence[float | int]) -> tuple[Correlation, Correlation, Correlation]:
    """Pearson's, Spearman's and Kendall's (τ-b) over runs; x and y have one number per run."""
    from scipy import stats  # half a second to import, and rarely needed

    n = _check(x, y)
    return (
        Correlation.of("pearson", float(stats.pearsonr(x, y).statistic), n, 1 / (n - 3)),
        Correlation.of("spearman", float(stats.spearmanr(x, y).statistic), n, 1.06 / (n - 3)),
        Correlation.of("kendall", float(stats.kendalltau(x, y).statistic), n, 0.437 / (n - 4)),
    )


def within(x: Sequence[float | int], y: Sequence[float | int], groups: Sequence[Hashable]) -> Correlation:
    """Pearson's of what is left when each group's mean is subtracted, as with one source or one size after another."""
    n = _check(x, y)
    kinds = list(dict.fromkeys(groups))
    if len(groups) != n:
        raise ValueError(f"every run needs its group; got {n} runs and {len(groups)} groups")
    freedom = n - len(kinds) - 2
    if freedom < 1:
        raise ValueError(
            f"{n} runs in {len(kinds)} groups leave nothing to correlate; 3 more runs than groups are needed"
        )
    member = torch.tensor([[float(group == kind) for kind in kinds] for group in groups], dtype=torch.float64)
    table = torch.tensor([list(x), list(y)], dtype=torch.float64).T
    left = table - member @ ((member.T @ table) / member.sum(0)[:, None])
    a, b = left.unbind(1)
    return Correlation.of("pearson within groups", float(a @ b / (a.norm() * b.norm())), n, 1 / freedom)


def evened(table: Float[Tensor, "runs sets"]) -> Float[Tensor, " runs"]:
    """The mean over sets, where each set counts the same: its column is divided by its mean first."""
    return (table / table.mean(0)).mean(1)


def _check(x: Sequence[float | int], y: Sequence[float | int]) -> int:
    if len(x) != len(y):
        raise ValueError(f"x and y need one number per run each; got {len(x)} and {len(y)}")
    if len(x) < 5:
        raise ValueError(f"a correlation with an error needs at least 5 runs; got {len(x)}")
    if not all(math.isfinite(value) for value in (*x, *y)):
        raise ValueError("a run without a finite number cannot be ranked; leave it out, and say so")
    if len(set(x)) == 1 or len(set(y)) == 1:
        raise ValueError("all runs have the same number: there is nothing to correlate")
    return len(x)
