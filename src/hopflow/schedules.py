"""Schedules: k(t), the probability that a position has its data token at time t, from 0 to 1.

Near t = 1 everything depends on 1 - k, so `rest(t)` computes it without cancellation, and `time(rest)` inverts it.
Shapes broadcast: a shared schedule maps (B, 1) to (B, 1), a position-specific schedule maps (B, 1) to (B, L).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Schedule(ABC):
    """An increasing k(t) with k(0) = 0 and k(1) = 1. Eq. (4) [convex_cond_flow]"""

    @property
    def shared(self) -> bool:
        """Whether all positions share one k(t)."""
        return True

    @abstractmethod
    def rest(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """1 - k(t); exactly 1 at t = 0 and exactly 0 at t = 1."""

    @abstractmethod
    def k(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """k(t), the probability that a position has its data token."""

    @abstractmethod
    def dk(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The derivative of k."""

    @abstractmethod
    def time(self, rest: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The t at which 1 - k(t) = rest."""

    @abstractmethod
    def inverse(self, k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The t at which k(t) = k. If 1 - k is known, `time` loses fewer digits."""

    def rest_at_end(self, left: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """1 - k at t = 1 - left, for a `left` that may be lost in rounding t; override it to keep its digits."""
        return self.rest(1 - left)

    def redraw(self, k: Float[Tensor, "..."], k_next: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """r = (k' - k)/(1 - k), the probability that a step k → k' redraws a position; exactly 1 if k' = 1."""
        left = torch.where(k < 1, 1 - k, 1.0)
        return torch.where(k < 1, (k_next - k) / left, 1.0)

    def check_length(self, length: int) -> None:  # noqa: B027  a shared schedule fits any length
        """Raise ValueError if the schedule does not fit sequences of this length."""

    def point(
        self, rest: Float[Tensor, " N"], position: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, "N #L"], Float[Tensor, "N #L"]]:
        """The time at which this position has 1 - k = rest, 1 - k of all positions then, and their speeds."""
        return self.time(rest), rest[:, None], torch.ones_like(rest)[:, None]


def check_time(t: Float[Tensor, "..."]) -> None:
    """Raise ValueError unless all times lie in [0, 1]."""
    if not bool(((t >= 0) & (t <= 1)).all()):
        raise ValueError(f"t must be from 0 (source) to 1 (data), got {t.min():g} … {t.max():g}.")


@dataclass(frozen=True)
class Linear(Schedule):
    """k = t.

    >>> Linear().rest(torch.tensor([0.0, 0.25, 1.0]))
    tensor([1.0000, 0.7500, 0.0000])
    """

    def rest(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return 1 - t

    def k(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return t

    def dk(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.ones_like(t)

    def time(self, rest: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return 1 - rest

    def inverse(self, k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return k

    def rest_at_end(self, left: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return left


@dataclass(frozen=True)
class Polynomial(Schedule):
    """k = t^n."""

    n: float = 2.0

    def __post_init__(self) -> None:
        if not self.n > 0:
            raise ValueError(f"n must be > 0, so that t^n increases from 0 to 1, got n={self.n}.")

    def rest(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -torch.expm1(self.n * t.log())  # 1 - t^n loses its digits near t = 1

    def k(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return t**self.n

    def dk(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.n * t ** (self.n - 1)

    def time(self, rest: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.exp(torch.log1p(-rest) / self.n)

    def inverse(self, k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return k ** (1 / self.n)

    def rest_at_end(self, left: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return -torch.expm1(self.n * torch.log1p(-left))


@dataclass(frozen=True)
class Cosine(Schedule):
    """k = 1 - cos(πt/2): slow at first; common for masked image and text models."""

    def rest(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.sin(math.pi / 2 * (1 - t))  # exactly 0 at t = 1, where cos(π/2) is not

    def k(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.where(t < 0.5, 2 * torch.sin(math.pi / 4 * t) ** 2, 1 - self.rest(t))  # exact at both ends

    def dk(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def time(self, rest: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return 1 - torch.asin(rest) * (2 / math.pi)

    def inverse(self, k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.asin((k / 2).sqrt()) * (4 / math.pi)

    def rest_at_end(self, left: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.sin(math.pi / 2 * left)


@dataclass(frozen=True)
class Positional(Schedule):
    """One schedule k^i(t) per position. Theorem 3.1 [theorem1] holds for them, end of Section 3.1.

    All methods take (…, 1) or (…, L) and return (…, L). `time(rest)` inverts each position separately.
    """

    schedules: tuple[Schedule, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        if not self.schedules:
            raise ValueError("schedules must contain one schedule per position, got none.")

    @property
    def shared(self) -> bool:
        return False

    def check_length(self, length: int) -> None:
        if length != len(self.schedules):
            raise ValueError(
                f"Positional has {len(self.schedules)} schedules, but the sequences have {length} positions."
            )

    def _each(self, method: str, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        x = x.expand(*x.shape[:-1], len(self.schedules))
        return torch.stack([getattr(s, method)(x[..., i]) for i, s in enumerate(self.schedules)], dim=-1)

    def rest(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("rest", t)

    def k(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("k", t)

    def dk(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("dk", t)

    def time(self, rest: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("time", rest)

    def inverse(self, k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("inverse", k)

    def rest_at_end(self, left: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self._each("rest_at_end", left)

    def point(
        self, rest: Float[Tensor, " N"], position: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, "N #L"], Float[Tensor, "N #L"]]:
        t = self.time(rest[:, None]).gather(1, position[:, None])  # (N, 1)
        return t[:, 0], self.rest(t), self.dk(t)  # without a common k, speeds are per unit of t


EXAMPLES: tuple[Schedule, ...] = (Linear(), Polynomial(2.0), Polynomial(0.5), Cosine())
