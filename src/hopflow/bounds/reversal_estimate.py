"""ReversalEstimate: a bound from the importance weights of reversed paths.  theory.md (B_R)"""

import math
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float
from torch import Tensor

from .estimate import Estimate

LIGHT_TAILED = 0.5
"""Effective paths / paths below which `remark` calls the weights heavy-tailed."""


@dataclass(frozen=True)
class ReversalEstimate(Estimate):
    """An estimate from K weights per sequence. It keeps the weights, so that `with_paths` needs no second run."""

    steps: int = 0
    """Number of steps of the sampler that the estimate bounds."""
    paths: int = 0
    """K, the number of weights per sequence."""
    log_weights: Float[Tensor, "n K"] = field(default_factory=lambda: torch.empty(0, 0), repr=False, compare=False)
    consistent: bool = True
    """Whether the bound converges to the exact value as K grows."""

    @classmethod
    def of_weights(cls, log_weights: Float[Tensor, "n K"], **what: object) -> "ReversalEstimate":
        """-log of the mean of the K weights of each sequence; the error of the draws by the jackknife over paths."""
        n, paths = log_weights.shape
        each = -_log_mean(log_weights)
        draw_variance = _jackknife(log_weights) / n
        if n > 1:
            variance, freedom = float(each.var()) / n, n - 1
        else:
            variance, freedom = draw_variance, paths - 1
        return cls(
            nats=float(each.mean()),
            stderr=math.sqrt(variance),
            draw_stderr=math.sqrt(draw_variance),
            n=n,
            freedom=freedom,
            each=tuple(each.tolist()),
            paths=paths,
            log_weights=log_weights,
            **what,  # type: ignore[arg-type]
        )

    def with_paths(self, paths: int) -> "ReversalEstimate":
        """The bound with fewer paths from the same weights: the mean over disjoint groups of `paths` paths."""
        if not 1 <= paths <= self.paths:
            raise ValueError(f"paths must lie between 1 and {self.paths}, the number of weights, got {paths}.")
        groups = self.paths // paths
        values = -_log_mean(self.log_weights[:, : groups * paths].unflatten(1, (groups, paths)))  # (n, groups)
        what = {name: getattr(self, name) for name in ("quantity", "length", "eta", "is_bound", "coupling", "dtype")}
        what |= {name: getattr(self, name) for name in ("characters", "steps", "consistent")}
        what["calls"] = round(self.calls * paths / self.paths)
        if groups == 1:
            return ReversalEstimate.of_weights(self.log_weights[:, :paths], **what)
        weights = self.log_weights[:, : groups * paths]
        return ReversalEstimate.of(values, paths=paths, log_weights=weights, **what)  # type: ignore[return-value]

    @property
    def by_paths(self) -> dict[int, Estimate]:
        """The bound with 1, 2, 4, … paths, and with all of them."""
        counts = [2**power for power in range(self.paths.bit_length())]
        return {count: self.with_paths(count) for count in dict.fromkeys([*counts, self.paths])}

    @property
    def log_weight_sd(self) -> float:
        """The standard deviation of log w within a sequence; NaN with one path."""
        return math.sqrt(float(self.log_weights.var(1).mean())) if self.log_weights.shape[1] > 1 else math.nan

    @property
    def effective_paths(self) -> float:
        """(Σw)²/Σw², the effective number of paths, on average over sequences; 0 for one whose weights are all 0."""
        groups = self.log_weights.unflatten(1, (-1, self.paths))
        largest = groups.amax(2, keepdim=True)
        w = (groups - largest).exp().where(largest > -torch.inf, 0)
        return float((w.sum(2).square() / w.square().sum(2).clamp(min=1)).mean())  # the largest w is 1

    @property
    def plain(self) -> Estimate:
        """The estimate without the weights, with their statistics as `diagnostics`."""
        own = {f.name: getattr(self, f.name) for f in fields(Estimate) if f.name != "diagnostics"}
        return Estimate(**own, diagnostics=self._tails)

    @property
    def _tails(self) -> dict[str, float]:
        return {"effective_paths": self.effective_paths, "log_weight_sd": self.log_weight_sd}

    @property
    def remark(self) -> str | None:
        """A warning if the bound may be far from the exact value; None if not."""
        if not self.is_bound:
            return None
        if not self.consistent:
            return "some paths of this sampler cannot be proposed: the bound does not converge to the exact value"
        if self.paths == 1:
            return "one path does not show whether the bound has converged: pass paths=8"
        if self.effective_paths < LIGHT_TAILED * self.paths:
            return (
                f"the weights are heavy-tailed: {self.paths} paths count as {self.effective_paths:.1f}. "
                f"The bound has not converged and decreases with more paths."
            )
        return None


def _log_mean(log_weights: Float[Tensor, "*rows K"]) -> Float[Tensor, "*rows"]:
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def _jackknife(log_weights: Float[Tensor, "n K"]) -> float:
    """The variance of the log of a mean weight, averaged over sequences; NaN with one path."""
    paths = log_weights.shape[1]
    if paths < 2:
        return math.nan
    left_out = torch.eye(paths, dtype=torch.bool)
    without = _log_mean_of(log_weights[:, None].masked_fill(left_out, -torch.inf), paths - 1)  # (n, K)
    return float((paths - 1) / paths * (without - without.mean(1, keepdim=True)).square().sum(1).mean())


def _log_mean_of(log_weights: Float[Tensor, "n K K"], count: int) -> Float[Tensor, "n K"]:
    return log_weights.logsumexp(-1) - math.log(count)
