"""Samplers: what may move when.

Whether a position is redrawn does not depend on the network (theory.md §1). So a sampler says up front, for each
sequence, which positions move at which time; `generate` then asks the network only where something moves.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .flow import Flow
from .grids import CosineGrid, EvenGrid, GivenGrid, Grid
from .noise import Noise
from .velocities import Eta, eta_at, step_sizes

CERTAIN = 64.0
"""The hazard of what happens for certain: -log of a uniform number in (0, 1] stays below 37."""


@dataclass(frozen=True, eq=False)
class Events:
    """Moves of positions, in any order. Those of a row with the same turn happen at once, turn by turn."""

    row: Int[Tensor, " E"]
    turn: Int[Tensor, " E"]
    position: Int[Tensor, " E"]
    t: Float[Tensor, " E"]
    """The network's time; one per turn."""
    rest: Float[Tensor, " E"]
    """1 - k of the position, before the move."""
    corrects: Bool[Tensor, " E"]
    """A proposal from the source, accepted with chance 1 - ρP(xt); otherwise a redraw from the prediction."""
    token: Float[Tensor, " E"]
    """The uniform number that decides the token."""
    accept: Float[Tensor, " E"]
    """The uniform number that decides whether a proposal is accepted."""


class Sampler(ABC):
    """What may move when."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it does, in a few words, for people who read its numbers."""

    @abstractmethod
    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], noise: Noise) -> Events:
        """All moves of n sequences at their free positions; the last move of each free position is a redraw."""


@dataclass(frozen=True)
class Euler(Sampler):
    """N steps, each with the exact redraw chance (k'-k)/(1-k); the last one redraws every position.

    theory.md §1, (F_N). The waiting time to a position's next event is drawn at once, by its cumulative hazard.
    """

    steps: int = 32
    grid: Grid = EvenGrid()

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral):
            raise ValueError(f"Euler's steps are a whole number; got {self.steps!r}")
        if self.steps < 1:
            raise ValueError(f"Euler needs at least one step; got {self.steps}")
        self.grid.times(self.steps)

    @classmethod
    def at(cls, times: Sequence[float | int]) -> "Euler":
        """Steps from one of these times to the next, from 0 to 1."""
        return cls(len(times) - 1, GivenGrid(tuple(times)))

    @property
    def label(self) -> str:
        return f"{self.steps} Euler steps" + ("" if self.grid == EvenGrid() else f" on {type(self.grid).__name__}")

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], noise: Noise) -> Events:
        length = free.shape[1]
        flow.schedule.check_length(length)
        t = self.grid.times(self.steps)
        rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
        r, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
        chains = _Chains(r, s)
        once = flow.prediction.stays(flow.source)  # a data token stays: nothing moves after the first redraw
        row, position = free.nonzero().unbind(1)
        start = torch.zeros_like(row)
        found: list[Events] = []
        while len(row) or not found:
            here, at = row.unique_consecutive(return_inverse=True)
            wait, kind, token, accept = noise.uniform(length, 4, rows=here.tolist())[at, position].unbind(1)
            step = chains.next(start, position, wait)
            corrects = ~chains.is_redraw(step, position, kind)
            column = position if rest.shape[1] > 1 else torch.zeros_like(position)
            found.append(Events(row, step, position, t[step], rest[step, column], corrects, token, accept))
            left = (step < self.steps - 1) & (corrects if once else True)
            row, position, start = row[left], position[left], step[left] + 1
        return _joined(found)


class _Chains:
    """Steps with an event of each position, one after the other, from the chances r of a redraw and s of a proposal."""

    def __init__(self, r: Float[Tensor, "N C"], s: Float[Tensor, "N C"]) -> None:
        self.r, self.chance = r, r + s
        hazard = -torch.log1p(-self.chance)
        total = torch.cat([hazard.new_zeros(1, hazard.shape[1]), hazard.clamp(max=CERTAIN).cumsum(0)])  # (N+1, C)
        # columns one above the other, so that one search serves all
        self.offset = torch.arange(total.shape[1]) * (total.max() + CERTAIN)
        self.levels = (total + self.offset).T.contiguous()  # (C, N+1)

    def next(self, start: Int[Tensor, " m"], position: Int[Tensor, " m"], u: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The first step from `start` on with an event: where the hazard since then passes an exponential number."""
        column = self._column(position)
        level = self.levels[column, start] - torch.log1p(-u)
        step = torch.searchsorted(self.levels.flatten(), level, right=True) - 1 - column * self.levels.shape[1]
        return step.clamp(max=len(self.r) - 1)

    def is_redraw(self, step: Int[Tensor, " m"], position: Int[Tensor, " m"], u: Float[Tensor, " m"]) -> Tensor:
        column = self._column(position)
        return u * self.chance[step, column] < self.r[step, column]

    def _column(self, position: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        return position if len(self.levels) > 1 else torch.zeros_like(position)


@dataclass(frozen=True)
class RandomOrder(Sampler):
    """Continuous time itself, N → ∞, for a disjoint source under Carry or Evidence: L calls, one position at a time.

    Each position is redrawn once, when k passes a uniform number of its own. `per_call` > 1 redraws so many at a time,
    which is quicker and no longer exact: they do not see each other.
    """

    per_call: int = 1

    def __post_init__(self) -> None:
        if self.per_call < 1:
            raise ValueError(f"RandomOrder redraws at least one position per call; got {self.per_call}")

    @property
    def label(self) -> str:
        exact = "exact in continuous time" if self.per_call == 1 else f"{self.per_call} positions a call, approximate"
        return f"random order, {exact}"

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], noise: Noise) -> Events:
        if not flow.prediction.stays(flow.source):
            raise ValueError(
                f"RandomOrder needs a data token to stay: a disjoint source (Mask, MultiMask) under Carry or Evidence; "
                f"got {type(flow.source).__name__} and {type(flow.prediction).__name__}. Use Euler(steps)."
            )
        if callable(eta) or eta != 0:
            raise ValueError(f"RandomOrder has no corrector: its eta is 0; got {eta}. Use Euler(steps).")
        length = free.shape[1]
        flow.schedule.check_length(length)
        level, token = noise.uniform(length, 2).unbind(2)
        time = flow.schedule.time(1 - level).masked_fill(~free, torch.inf)  # (n, L)
        ordered, order = time.sort(1)
        turn = order.argsort(1) // self.per_call
        t = ordered.gather(1, turn * self.per_call)  # the time of the first of its turn
        row, position = free.nonzero().unbind(1)
        rest = flow.schedule.rest(t.masked_fill(~free, 0.0))
        at = (row, position)
        redraws = torch.zeros_like(row, dtype=torch.bool)
        return Events(row, turn[at], position, t[at], rest[at], redraws, token[at], token[at])


def _joined(parts: list[Events]) -> Events:
    """All of them in one; there is always one part, if only of nothing."""
    return Events(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Events)))


EXAMPLES: tuple[Sampler, ...] = (Euler(), Euler(8, CosineGrid()), RandomOrder(), RandomOrder(4))
