"""Integrals: what a bound sums along the path. Each has a clock, and terms at a point of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .divergences import implied_terms, kernel_divergence, proposal_divergence, rate_divergence
from .draws import Draw, Point, continuous
from .schedules import Schedule
from .scores import Scores
from .velocities import Eta, eta_at, step_sizes

NEAR = 0.1
"""1-k below which arrived positions are priced in closed form; any value gives the same mean."""


class Integral(ABC):
    """What is integrated along the path: a clock, and the terms at a point of it."""

    @abstractmethod
    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        """The point of the clock that belongs to u in (0, 1]."""

    @abstractmethod
    def terms(self, scores: Scores, point: Point) -> Float[Tensor, "N L"]:
        """Nats of each position at this point, per unit of the clock."""

    @property
    def ends(self) -> bool:
        """Whether positions that hold their data token have a price as k → 1, which `ending` gives."""
        return False

    def ending(self, scores: Scores) -> "Ending":
        """That price, from the scores at xt = x1."""
        raise NotImplementedError(f"{type(self).__name__} has no price at the end")


@dataclass(frozen=True)
class Ending:
    """scale · odds/(1 + odds·(1-k)), per unit of k: what an arrived position costs at small 1-k, position by position.

    Its integral over 1-k < δ is scale · log(1 + odds·δ) (theory.md, Estimating). Where the network contradicts x1 the
    odds are large and the integral does not end before 1-k is as small as they are large, so it is not left to draws:
    an estimate subtracts this price at the positions that are not noisy and adds the integral.
    """

    log_odds: Float[Tensor, "N L"]
    scale: Float[Tensor, "N L"]

    @classmethod
    def joined(cls, parts: "Sequence[Ending]") -> "Ending":
        return cls(torch.cat([part.log_odds for part in parts]), torch.cat([part.scale for part in parts]))

    @property
    def total(self) -> Float[Tensor, "N L"]:
        """The integral over 1-k < NEAR; inf where x1 is impossible."""
        return self.scale * _log1p_exp(self.log_odds + math.log(NEAR))

    def prices(self, draw: Draw) -> Float[Tensor, "N L"]:
        """At each draw, as much as the integral on average."""
        point = draw.point
        inverse = torch.exp(-self.log_odds)  # 0 where x1 is impossible, inf where nothing else is possible
        price = torch.where(inverse.isinf(), 0.0, self.scale / (inverse + point.rest))
        counts = ~draw.noisy & (point.rest < NEAR)
        return torch.where(counts, point.speed * price / (1 - point.noise), 0.0)

    def repeated(self, times: int) -> "Ending":
        """Each row this many times."""
        return Ending(self.log_odds.repeat_interleave(times, 0), self.scale.repeat_interleave(times, 0))


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

    @property
    def ends(self) -> bool:
        return self.end == 0

    def ending(self, scores: Scores) -> Ending:
        return _leaving_price(scores)


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

    @property
    def ends(self) -> bool:
        return True

    def ending(self, scores: Scores) -> Ending:
        return _leaving_price(scores)


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

    @property
    def ends(self) -> bool:
        return True

    def ending(self, scores: Scores) -> Ending:
        # p0(x1)/c and 1 - c, where c(x1) is what the context says, and (1-c)/c the odds against it
        odds = scores.log_context_odds.cpu().double()
        return Ending(_times_p0(scores, _log1p_exp(odds)), torch.sigmoid(odds))


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


def _leaving_price(scores: Scores) -> Ending:
    """(1 - P(x1))/(1-k) under Evidence: the odds are p0(x1)·Σ_{x≠x1} e^{l_x - l_x1}."""
    log_odds = _times_p0(scores, scores.log_context_odds.cpu().double())
    return Ending(log_odds, torch.ones_like(log_odds))


def _times_p0(scores: Scores, log_odds: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """The log of p0(x1) times these odds: -inf where the source does not draw x1, also if the odds are infinite."""
    p0 = scores.source.probs(scores.sample.x1.cpu(), torch.float64)
    return torch.where(p0 > 0, p0.log() + log_odds, -torch.inf)


def _log1p_exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.logaddexp(x, torch.zeros_like(x))
