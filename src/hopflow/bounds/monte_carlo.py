"""Draws: random points of time and noisy positions at which an integral over the path is evaluated.

With k uniform the integrands of the bounds have infinite variance for every source: near k = 1 a position is noisy
with probability 1-k and then costs 1/(1-k). So noisy positions are forced, and an importance weight keeps the mean
(theory.md §3, Estimating).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..network.precision import widest_float
from ..paths import uniform
from ..schedules import Schedule


@dataclass(frozen=True)
class TimePoint:
    """Points of time: the network's t, 1 - k, the probability of noise, and the density of the point."""

    t: Float[Tensor, " N"]
    rest: Float[Tensor, "N #L"]
    noise: Float[Tensor, "N #L"]
    """The probability that a position is noisy: 1 - k, except for a separate proposal distribution."""
    speed: Float[Tensor, "N #L"]
    """The density with which a uniform u at a uniform position yields this point, for every position."""

    def to(self, device: torch.device) -> "TimePoint":
        """On a device, in the widest float type that it supports."""
        dtype = widest_float(device)
        return TimePoint(*(value.to(dtype).to(device) for value in (self.t, self.rest, self.noise, self.speed)))


Clock = Callable[[Float[Tensor, " N"], Int[Tensor, " N"]], TimePoint]
"""(u, position) -> the point of time at which that position has 1 - k = u."""


@dataclass(frozen=True)
class PathDraw:
    """Random points of time, the noisy positions there, and the importance weights of the draws."""

    point: TimePoint
    noisy: Bool[Tensor, "N L"]
    weight: Float[Tensor, " N"]

    def rows(self, at: slice) -> "PathDraw":
        """Some of the draws."""
        p = self.point
        return PathDraw(TimePoint(p.t[at], p.rest[at], p.noise[at], p.speed[at]), self.noisy[at], self.weight[at])

    def reweighted(self, weight: Float[Tensor, " N"]) -> "PathDraw":
        """The same draws, with their weights multiplied by `weight`."""
        return replace(self, weight=weight * self.weight)


@dataclass(frozen=True)
class Strata:
    """Stratified uniforms: per row one number u in each part of (0, 1], its position in that part, and its weight."""

    u: Float[Tensor, "rows S"]
    place: Float[Tensor, "rows S"]
    weight: Float[Tensor, " S"]
    """The width of a part in units of 1/S; the same for all rows, so that the mean of a constant has no error."""


class Draws(ABC):
    """How points of time and noisy positions are drawn from stratified uniforms u."""

    grade: float
    """Strata end at (s/S)^grade: 1 is uniform; with larger values points are denser toward 1-k = 0."""

    @property
    def any_source(self) -> bool:
        """Whether the draws are unbiased for every source, prediction and integral."""
        return True

    def strata(self, rows: int, count: int, generator: torch.Generator | None) -> Strata:
        """Stratified uniforms for `rows` rows with `count` strata each."""
        edges = (torch.arange(count + 1, dtype=torch.float64) / count) ** self.grade
        place = 1 - torch.rand(rows, count, generator=generator, dtype=torch.float64)
        return Strata(edges[:-1] + place * edges.diff(), place, count * edges.diff())

    @abstractmethod
    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> PathDraw:
        """One draw of time and noisy positions for each u."""


@dataclass(frozen=True)
class Forced(Draws):
    """Draws for any source: with probability `noise` one position is set to noise, with probability `data` to data.

    theory.md (V), with a = 1 - noise - data. Forced(0) is uniform k, whose error is unreliable. `data` is for
    integrands that are also singular at k = 0.
    """

    noise: float = 0.5
    data: float = 0.0
    grade: float = 2.0

    def __post_init__(self) -> None:
        if self.noise < 0 or self.data < 0 or self.noise + self.data > 1:
            raise ValueError(
                f"noise and data must be probabilities with a sum ≤ 1, got noise={self.noise} and data={self.data}."
            )
        _check_grade(self.grade)

    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> PathDraw:
        grid = u[:, None].expand(-1, length)
        position = (uniform(u, generator) * length).long().clamp(max=length - 1)
        which = uniform(u, generator)[:, None]
        point = clock(u, position)
        here = torch.arange(length, device=u.device) == position[:, None]
        noisy = uniform(grid, generator) < point.noise
        noisy = torch.where(here & (which < self.noise), True, noisy)
        noisy = torch.where(here & (which >= 1 - self.data), False, noisy)
        # the density of (point, noisy positions) under the mixture, over that of the path itself
        forced_noise = torch.where(noisy, point.speed / point.noise, 0.0).mean(1)
        forced_data = torch.where(noisy, 0.0, point.speed / (1 - point.noise)).mean(1) if self.data else 0.0
        free = (1 - self.noise - self.data) * point.speed.mean(1)
        return PathDraw(point, noisy, 1 / (free + self.noise * forced_noise + self.data * forced_data))


@dataclass(frozen=True)
class Count(Draws):
    """Draws for disjoint sources: m uniform on 1 … L, m random positions noisy, weight L/m on each of them.

    Given m, 1-k is the m-th smallest of L uniforms and the m positions below it are noisy: k | m ~ Beta(L-m+1, m).
    The mean over m positions has a variance of order 1/m, so that the density of points should be 1/√m: grade 2.
    """

    grade: float = 2.0

    @property
    def any_source(self) -> bool:
        return False

    def __post_init__(self) -> None:
        _check_grade(self.grade)

    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> PathDraw:
        m = (u * length).long().clamp(max=length - 1)  # noisy positions, less one
        level = 1 - torch.rand(len(u), length, generator=generator, device=u.device, dtype=u.dtype)  # in (0, 1]
        rest = level.sort(1).values.gather(1, m[:, None])  # (N, 1)
        return PathDraw(clock(rest[:, 0], m), level <= rest, length * rest[:, 0] / (m + 1))


def _check_grade(grade: float) -> None:
    if not 1 <= grade < math.inf:
        raise ValueError(f"grade must be ≥ 1 and finite (1 = uniform, larger = denser toward k = 1), got {grade:g}.")


def continuous(schedule: Schedule) -> Clock:
    """The clock of an integral over the complete path, in units of k if the schedule is shared."""

    def clock(u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> TimePoint:
        t, rest, speed = schedule.point(u, position)
        return TimePoint(t, rest, rest, speed)

    return clock
