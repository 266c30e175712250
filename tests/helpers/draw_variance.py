"""Variance of estimators of a bound per network call, compared with the usual estimator.

The usual estimator takes one uniform t per sequence, stratified over the set. Its variance is infinite in theory
(theory.md, Estimating): the measured variance grows with the number of draws. So it is summarized by the median over
blocks of repeats, with quartiles, and ratios to it are conservative.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from hopflow.bounds.estimate import mean_and_error
from hopflow.bounds.nll import nll_bound
from hopflow.divergences import rate_divergence
from hopflow.flow import Flow
from hopflow.network.network import Network, NetworkCaller
from hopflow.paths import PathSample, stratified
from hopflow.velocities import Eta

Estimator = Callable[[int], tuple[float, int]]
"""A function from a seed to the nats of one fixed set of sequences, and the network calls per sequence."""


@dataclass(frozen=True)
class DrawNoise:
    """Draw noise of an estimator on one fixed set: variance × network calls per sequence, in nats²."""

    estimator: str
    calls: int
    """Network calls per sequence in one estimate."""
    costs: tuple[float, ...]
    """Variance over repeats × calls, block by block."""
    nats: float
    stderr: float
    """The mean of all repeats and its error; all estimators have one target."""

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Quartiles of the costs."""
        low, middle, high = torch.tensor(self.costs, dtype=torch.float64).quantile(_QUARTILES).tolist()
        return low, middle, high

    def share(self, of: "DrawNoise") -> tuple[float, float]:
        """Network calls that it needs for the draw noise of another, as a share of the other's calls; and its error.

        A ratio of medians; its standard error is by the spread of the blocks' logarithms.
        """
        ratio = self.quartiles[1] / of.quartiles[1]
        return ratio, ratio * math.hypot(self._median_error(), of._median_error())

    def _median_error(self) -> float:
        """Relative error of the median, for normally distributed logarithms."""
        return math.sqrt(math.pi / 2) * mean_and_error(torch.tensor(self.costs, dtype=torch.float64).log())[1]


_QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


def measure(name: str, estimator: Estimator, *, repeats: int = 16, blocks: int = 8, seed: int = 0) -> DrawNoise:
    """The noise of an estimator over blocks × repeats seeds."""
    if repeats < 2 or blocks < 2:
        raise ValueError(f"a variance needs 2 repeats and its spread 2 blocks, got {repeats} and {blocks}")
    results = [estimator(seed + i) for i in range(blocks * repeats)]
    nats, calls = torch.tensor([nats for nats, _ in results], dtype=torch.float64), results[0][1]
    costs = calls * nats.view(blocks, repeats).var(1)
    return DrawNoise(name, calls, tuple(costs.tolist()), *mean_and_error(nats))


def compare(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    eta: Eta = 0.0,
    ways: Mapping[str, Mapping[str, object]],
    repeats: int = 16,
    blocks: int = 8,
    seed: int = 0,
    batch: int = 64,
) -> list[DrawNoise]:
    """The usual estimator first, then `nll_bound` with these arguments."""

    def bound(arguments: Mapping[str, object]) -> Estimator:
        def estimate(seed: int) -> tuple[float, int]:
            found = nll_bound(model, flow, x1, eta=eta, seed=seed, batch=batch, **arguments)  # type: ignore[arg-type]
            return found.nats, found.calls

        return estimate

    estimators = {"usual": lambda seed: (usual(model, flow, x1, eta, seed, batch), 1)}
    estimators |= {name: bound(arguments) for name, arguments in ways.items()}
    return [measure(name, each, repeats=repeats, blocks=blocks, seed=seed) for name, each in estimators.items()]


def usual(model: Network, flow: Flow, x1: Int[Tensor, "n L"], eta: Eta = 0.0, seed: int = 0, batch: int = 64) -> float:
    """The mean of B_η over a set, from one uniform t per sequence, stratified over the set. Alg. 2 [alg1]"""
    generator, total = torch.Generator().manual_seed(seed), 0.0
    t = 1 - stratified(1, len(x1), generator)[0][torch.randperm(len(x1), generator=generator)]  # in [0, 1)
    x0 = flow.source.sample(*x1.shape, generator=generator)
    whole = flow.path.sample(x0, x1.cpu(), t, generator)
    caller = NetworkCaller(model)
    with caller.evaluation_mode():
        for at in (slice(i, i + batch) for i in range(0, len(x1), batch)):
            columns = (whole.x0, whole.x1, whole.xt, whole.t, whole.rest, whole.dk)
            sample = PathSample(*(column[at].to(x1.device) for column in columns))
            logits = caller.logits(sample.xt, sample.t)
            total += float((sample.dk * rate_divergence(flow.scores(logits.double(), sample), eta)).sum())
    return total / len(x1)
