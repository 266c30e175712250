"""Integrals: what a bound sums along the path. Each has a clock, and terms at a point of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .divergences import implied_terms, kernel_divergence, proposal_divergence, rate_divergence
from .draws import Point, continuous
from .schedules import Schedule
from .scores import Scores
from .velocities import Eta, eta_at, step_sizes


class Integral(ABC):
    """What is integrated along the path: a clock, and the terms at a point of it."""

    @abstractmethod
    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        """The point of the clock that belongs to u in (0, 1]."""

    @abstractmethod
    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        """Nats of each position at this point, per unit of the clock."""


@dataclass(frozen=True)
class Rates(Integral):
    """∫ dk of the rate divergence from k = 0 to 1 - end.  theory.md (B)"""

    schedule: Schedule
    eta: Eta
    end: float = 0.0

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        point = continuous(self.schedule)(self.end + (1 - self.end) * u, position)
        return replace(point, speed=point.speed / (1 - self.end))

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        return (1 - self.end) * point.speed * rate_divergence(scores, self.eta)


@dataclass(frozen=True)
class Steps(Integral):
    """Σ_n of the kernel divergence over the steps of an N-step sampler.  theory.md (B_N)"""

    schedule: Schedule
    steps: int
    eta: Eta

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        grid = torch.arange(self.steps + 1, dtype=u.dtype, device=u.device) / self.steps  # n/N, never accumulated
        t = self.schedule.point(u, position)[0]
        n = (torch.searchsorted(grid, t, right=True) - 1).clamp(0, self.steps - 1)
        rest, after = self.schedule.rest(grid[n, None]), self.schedule.rest(grid[n + 1, None])
        return Point(grid[n], rest, rest, rest - after)

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        eta = eta_at(self.eta, point.t)[:, None]
        r, s = step_sizes(point.rest, point.speed, eta)
        dtype = scores.sample.rest.dtype
        return kernel_divergence(scores, r.to(dtype), s.to(dtype), spread=self.eta != 0)


@dataclass(frozen=True)
class LastStep(Integral):
    """One redraw of every position at 1 - k = rest: what a sampler does that stops there."""

    schedule: Schedule
    rest: float

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        t, rest, speed = self.schedule.point(torch.full_like(u, self.rest), position)
        return Point(t, rest, rest, torch.ones_like(speed))

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        return -scores.log_p1


@dataclass(frozen=True)
class Proposal(Integral):
    """∫ dk of the divergence from the proposal at κ = e^{-(1-k)}.  theory.md (B_κ)"""

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        point = continuous(self.schedule)(u, position)
        return replace(point, noise=-torch.expm1(-point.rest))

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        return point.speed * proposal_divergence(scores)


@dataclass(frozen=True)
class Precise(Integral):
    """∫ dk of the rate divergence less that of the reversed rates, by the ratios that the network implies.

    Theorem A.2 [precise-perplexity-theorem], theory.md (P)
    """

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        return continuous(self.schedule)(u, position)

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        return point.speed * implied_terms(scores)


@dataclass(frozen=True)
class LiteralSecond(Integral):
    """The terms of Alg. 3 [alg2] for the single mask, where Eq. (18) [special_flow] is the right backward rate."""

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        return continuous(self.schedule)(u, position)

    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        rest, k = scores.sample.rest, 1 - scores.sample.rest
        masked = ~scores.source.vocab.is_data(scores.sample.xt)
        log_p1 = torch.where(masked, scores.log_p1, 0.0)
        at_mask = (1 + torch.log(rest / k) - log_p1) / rest
        at_data = scores.log_other.exp() / rest - 1 / k
        return point.speed * torch.where(masked, at_mask, at_data)
