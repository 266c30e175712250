"""Integrals along the path: what each bound integrates over time, and at which times it is evaluated."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..divergences import implied_terms, kernel_divergence, proposal_divergence, rate_divergence
from ..schedules import Schedule
from ..scores import Scores
from ..velocities import Eta, eta_at, refresh_chances, step_sizes, with_refresh
from .monte_carlo import PathDraw, TimePoint, continuous

END = 0.1
"""1-k below which `EndCorrection` replaces draws by a closed form; the mean is the same for any value."""


class Integral(ABC):
    """What a bound integrates along the path: a clock that maps u to points of time, and the integrand there."""

    @abstractmethod
    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        """The point of time that belongs to u in (0, 1]."""

    @abstractmethod
    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        """The integrand of each position at this point, in nats per unit of the clock."""

    @property
    def end_correction(self) -> "Callable[[Scores], EndCorrection] | None":
        """Computes the closed form for k → 1 from the scores at xt = x1; None if the integrand needs none."""
        return None


@dataclass(frozen=True)
class EndCorrection:
    """The integrand of positions with xt = x1 for small 1-k, scale · odds/(1 + odds·(1-k)), and its integral.

    The integral over 1-k < δ is scale · log(1 + odds·δ) (theory.md, Estimating). Where the network contradicts x1 the
    odds are large, and the integrand matters down to 1-k = 1/odds, which random draws miss. So an estimate subtracts
    this integrand at the positions that are not noisy, and adds its integral.
    """

    log_odds: Float[Tensor, "N L"]
    scale: Float[Tensor, "N L"]

    @classmethod
    def joined(cls, parts: "Sequence[EndCorrection]") -> "EndCorrection":
        """The rows of several parts, one after the other."""
        return cls(torch.cat([part.log_odds for part in parts]), torch.cat([part.scale for part in parts]))

    @property
    def total(self) -> Float[Tensor, "N L"]:
        """The integral over 1-k < END; inf where x1 has probability 0."""
        return self.scale * _log1p_exp(self.log_odds + math.log(END))

    def integrand(self, draw: PathDraw) -> Float[Tensor, "N L"]:
        """The value at each draw; its mean is the integral."""
        point = draw.point
        inverse = torch.exp(-self.log_odds)  # 0 where x1 has probability 0, inf where it has probability 1
        value = torch.where(inverse.isinf(), 0.0, self.scale / (inverse + point.rest))
        counts = ~draw.noisy & (point.rest < END)
        return torch.where(counts, point.speed * value / (1 - point.noise), 0.0)

    def repeated(self, times: int) -> "EndCorrection":
        """Each row `times` times."""
        return EndCorrection(self.log_odds.repeat_interleave(times, 0), self.scale.repeat_interleave(times, 0))


@dataclass(frozen=True)
class Rates(Integral):
    """B_η, such as B_0 and B_1: ∫ dk of the rate divergence from k = 0 to 1 - end.  theory.md (B)"""

    schedule: Schedule
    eta: Eta
    end: float = 0.0

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        point = continuous(self.schedule)(self.end + (1 - self.end) * u, position)
        return replace(point, speed=point.speed / (1 - self.end))

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        return (1 - self.end) * point.speed * rate_divergence(scores, self.eta)

    @property
    def end_correction(self) -> Callable[[Scores], EndCorrection] | None:
        return _leaving_correction if self.end == 0 else None


@dataclass(frozen=True)
class Steps(Integral):
    """Σ_n of the kernel divergence over the steps of an N-step sampler, with or without refresh.  theory.md (B_N)"""

    schedule: Schedule
    steps: int
    eta: Eta
    refresh: float | int = 0.0

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        grid = torch.arange(self.steps + 1, dtype=u.dtype, device=u.device) / self.steps  # n/N, never accumulated
        t = self.schedule.point(u, position)[0]
        n = (torch.searchsorted(grid, t, right=True) - 1).clamp(0, self.steps - 1)
        rest, after = self.schedule.rest(grid[n, None]), self.schedule.rest(grid[n + 1, None])
        return TimePoint(grid[n], rest, rest, rest - after)

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        eta = eta_at(self.eta, point.t)[:, None]
        r, s = step_sizes(point.rest, point.speed, eta)
        dtype, spread = scores.sample.rest.dtype, self.eta != 0
        idle = 1 - r - s  # exactly 0 where s is capped at 1 - r
        if self.refresh == 0:
            return kernel_divergence(scores, r.to(dtype), s.to(dtype), spread, idle=idle.to(dtype))
        chances = refresh_chances(self.refresh, self.steps).to(point.t)
        chance = chances[(point.t * self.steps).round().long()][:, None]
        r, s, renoise = with_refresh(r, s, point.rest - point.speed, chance)
        sizes = (renoise.expand_as(r).to(dtype), ((1 - chance) * idle).to(dtype))
        return kernel_divergence(scores, r.to(dtype), s.to(dtype), spread, *sizes)


@dataclass(frozen=True)
class LastStep(Integral):
    """One redraw of every position at 1 - k = rest: the last step of a sampler that stops there."""

    schedule: Schedule
    rest: float

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        t, rest, speed = self.schedule.point(torch.full_like(u, self.rest), position)
        return TimePoint(t, rest, rest, torch.ones_like(speed))

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        return -scores.log_p1


@dataclass(frozen=True)
class Proposal(Integral):
    """∫ dk of the divergence from the proposal at κ = e^{-(1-k)}.  theory.md (B_κ)"""

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        point = continuous(self.schedule)(u, position)
        return replace(point, noise=-torch.expm1(-point.rest))

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        return point.speed * proposal_divergence(scores)

    @property
    def end_correction(self) -> Callable[[Scores], EndCorrection] | None:
        return _leaving_correction


@dataclass(frozen=True)
class Precise(Integral):
    """∫ dk of the rate divergence minus that of the reversed rates, with the ratios that the network implies.

    Theorem A.2 [precise-perplexity-theorem], theory.md (PP)
    """

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        return continuous(self.schedule)(u, position)

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        return point.speed * implied_terms(scores)

    @property
    def end_correction(self) -> Callable[[Scores], EndCorrection] | None:
        return _precise_correction


@dataclass(frozen=True)
class LiteralSecond(Integral):
    """The terms of Alg. 3 [alg2] for the single mask, where Eq. (18) [special_flow] is the right backward rate."""

    schedule: Schedule

    def clock(self, u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        return continuous(self.schedule)(u, position)

    def terms(self, scores: Scores, point: TimePoint) -> Float[Tensor, "N L"]:
        rest, k = scores.sample.rest, 1 - scores.sample.rest
        masked = ~scores.source.vocab.is_data(scores.sample.xt)
        log_p1 = torch.where(masked, scores.log_p1, 0.0)
        at_mask = (1 + torch.log(rest / k) - log_p1) / rest
        at_data = scores.log_other.exp() / rest - 1 / k
        return point.speed * torch.where(masked, at_mask, at_data)


def _leaving_correction(scores: Scores) -> EndCorrection:
    """(1 - P(x1))/(1-k) under Evidence: the odds are p0(x1)·Σ_{x≠x1} e^{l_x - l_x1}."""
    log_odds = _times_p0(scores, scores.log_context_odds.cpu().double())
    return EndCorrection(log_odds, torch.ones_like(log_odds))


def _precise_correction(scores: Scores) -> EndCorrection:
    """odds = p0(x1)/c and scale = 1 - c, where c is the probability of x1 by the context."""
    odds = scores.log_context_odds.cpu().double()
    return EndCorrection(_times_p0(scores, _log1p_exp(odds)), torch.sigmoid(odds))


def _times_p0(scores: Scores, log_odds: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """log(p0(x1)·odds); -inf where p0(x1) = 0, also if the odds are infinite."""
    p0 = scores.source.probs(scores.sample.x1.cpu(), torch.float64)
    return torch.where(p0 > 0, p0.log() + log_odds, -torch.inf)


def _log1p_exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.logaddexp(x, torch.zeros_like(x))
