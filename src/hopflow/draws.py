"""Draws: at which k, and with which positions noisy, an integral over the path is evaluated.

With k uniform the integrands of the bounds have infinite variance for every source: near k = 1 a noisy position is
rare, with chance 1-k, and costs 1/(1-k). So noisy positions are forced, and the weight keeps the mean (theory.md §3,
Estimating).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .paths import uniform
from .schedules import Schedule


@dataclass(frozen=True)
class Point:
    """A point of the integral's clock: the network's time, 1 - k, and how much of the integral it stands for."""

    t: Float[Tensor, " N"]
    rest: Float[Tensor, "N #L"]
    noise: Float[Tensor, "N #L"]
    """The chance that a position is noisy: 1 - k, unless a proposal of its own is used."""
    speed: Float[Tensor, "N #L"]
    """The density with which a uniform u, at a uniform position, lands here, position by position."""

    def to(self, device: torch.device) -> "Point":
        """On a device, in float64 where it has one."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return Point(*(value.to(dtype).to(device) for value in (self.t, self.rest, self.noise, self.speed)))


Clock = Callable[[Float[Tensor, " N"], Int[Tensor, " N"]], Point]
"""(u, position) -> the point at which that position's rest is u."""


@dataclass(frozen=True)
class Draw:
    """A point, the noisy positions there, and the factor that makes the integrand an unbiased draw of the integral."""

    point: Point
    noisy: Bool[Tensor, "N L"]
    weight: Float[Tensor, " N"]

    def rows(self, at: slice) -> "Draw":
        p = self.point
        return Draw(Point(p.t[at], p.rest[at], p.noise[at], p.speed[at]), self.noisy[at], self.weight[at])

    def counted(self, weight: Float[Tensor, " N"]) -> "Draw":
        """The same, where each draw counts so much in the mean of a row."""
        return replace(self, weight=weight * self.weight)


@dataclass(frozen=True)
class Strata:
    """Per row, one number u in each part of (0, 1], its place within that part, and its weight in the row's mean."""

    u: Float[Tensor, "rows S"]
    place: Float[Tensor, "rows S"]
    weight: Float[Tensor, " S"]
    """The width of a part in units of 1/S: equal for all rows, so that the mean of a constant has no error."""


class Draws(ABC):
    """A way to draw points and noisy positions from stratified uniforms u."""

    grade: float
    """Strata end at (s/S)^grade: with more than 1 they are narrow, and points dense, towards 1-k = 0."""

    def strata(self, rows: int, count: int, generator: torch.Generator | None) -> Strata:
        """Numbers for `rows` rows."""
        edges = (torch.arange(count + 1, dtype=torch.float64) / count) ** self.grade
        place = 1 - torch.rand(rows, count, generator=generator, dtype=torch.float64)
        return Strata(edges[:-1] + place * edges.diff(), place, count * edges.diff())

    @abstractmethod
    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> Draw: ...


@dataclass(frozen=True)
class Forced(Draws):
    """For any source: with chance `noise` one position is made noisy, with chance `data` one is made data.

    theory.md (V), with a = 1 - noise - data; Forced(0) is uniform k, whose error cannot be trusted. `data` is for
    integrands that are also singular at k = 0.
    """

    noise: float = 0.5
    data: float = 0.0
    grade: float = 2.0

    def __post_init__(self) -> None:
        if self.noise < 0 or self.data < 0 or self.noise + self.data > 1:
            raise ValueError(
                f"noise and data are chances of forcing, with sum at most 1; got {self.noise} and {self.data}"
            )
        _check_grade(self.grade)

    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> Draw:
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
        return Draw(point, noisy, 1 / (free + self.noise * forced_noise + self.data * forced_data))


@dataclass(frozen=True)
class Count(Draws):
    """For disjoint sources: m uniform on 1 … L, m random positions noisy, weight L/m on what each noisy position costs.

    The m-th least of L uniforms is 1-k given m, and the m positions below it are the noisy ones: k | m ~
    Beta(L-m+1, m). The mean of m prices has a variance like 1/m, so that points should be dense like 1/√m: grade 2.
    """

    grade: float = 2.0

    def __post_init__(self) -> None:
        _check_grade(self.grade)

    def draw(self, clock: Clock, u: Float[Tensor, " N"], length: int, generator: torch.Generator | None) -> Draw:
        m = (u * length).long().clamp(max=length - 1)  # noisy positions, less one
        level = 1 - torch.rand(len(u), length, generator=generator, device=u.device, dtype=u.dtype)  # in (0, 1]
        rest = level.sort(1).values.gather(1, m[:, None])  # (N, 1)
        return Draw(clock(rest[:, 0], m), level <= rest, length * rest[:, 0] / (m + 1))


def _check_grade(grade: float) -> None:
    if not 1 <= grade < math.inf:
        raise ValueError(f"grade must be ≥ 1 and finite (1 = uniform, more = denser towards k = 1), got {grade:g}")


def stratified(
    rows: int, strata: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "rows strata"]:
    """Per row, one uniform number in each of `strata` equal parts of (0, 1]."""
    u = 1 - torch.rand(rows, strata, generator=generator, dtype=dtype)
    return (u + torch.arange(strata, dtype=dtype)) / strata


def continuous(schedule: Schedule) -> Clock:
    """The clock of an integral over the whole path, in units of k where the schedule is shared."""

    def clock(u: Float[Tensor, " N"], position: Int[Tensor, " N"]) -> Point:
        t, rest, speed = schedule.point(u, position)
        return Point(t, rest, rest, speed)

    return clock
