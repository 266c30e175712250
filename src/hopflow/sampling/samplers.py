"""Samplers and their time grids: which positions of a sequence are redrawn at which time.

Whether a position is redrawn does not depend on the network (theory.md §1). So a sampler draws all events of a
sequence up front, and `generate` calls the network only where a position is redrawn.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..flow import Flow
from ..velocities import Eta, eta_at, refresh_chances, step_sizes, with_refresh
from .event_queue import EventQueue, Events, Queue
from .random_draws import RandomStreams

ALWAYS = -1.0
"""The number `accept` of a proposal that is accepted whatever the token is: a refresh that draws from the source."""
CERTAIN = 64.0
"""The hazard of an event with probability 1; -log of a uniform number in (0, 1] is below 37."""


class Grid(ABC):
    """Strictly increasing times from exactly 0 to exactly 1. A new grid implements `times`."""

    @property
    def label(self) -> str:
        """A description for tables, different for grids with different times."""
        return f"on {type(self).__name__}"

    @abstractmethod
    def times(self, steps: int) -> Float[Tensor, " N1"]:
        """The N + 1 times of N steps, in float64."""


@dataclass(frozen=True)
class EvenGrid(Grid):
    """Steps of equal length: t = n/N.

    >>> EvenGrid().times(4)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        return torch.arange(steps + 1, dtype=torch.float64) / steps  # an accumulated t would miss 1


@dataclass(frozen=True)
class CosineGrid(Grid):
    """t = 1 - cos(πn/2N): short steps first, long steps at the end."""

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        angle = math.pi / 4 * torch.arange(steps + 1, dtype=torch.float64) / steps
        return torch.cat([2 * angle[:-1].sin().square(), angle.new_ones(1)])  # 1 - cos 2x, without cancellation


@dataclass(frozen=True)
class GivenGrid(Grid):
    """A list of times. It fits one number of steps only; `Euler.at(times)` sets both."""

    at: tuple[float | int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(float(t) for t in self.at))
        rises = all(a < b for a, b in zip(self.at, self.at[1:], strict=False))
        if len(self.at) < 2 or not rises or self.at[0] != 0 or self.at[-1] != 1:
            raise ValueError(f"times must increase from 0 to 1, e.g. (0, 0.3, 1), got {self.at}.")

    @property
    def label(self) -> str:
        return f"at {', '.join(f'{t:g}' for t in self.at[:-1])}"

    def times(self, steps: int) -> Float[Tensor, " N1"]:
        if steps != len(self.at) - 1:
            raise ValueError(f"these times make {len(self.at) - 1} steps, not {steps}. Use Euler.at(times).")
        return torch.tensor(self.at, dtype=torch.float64)


class Sampler(ABC):
    """Draws the events of sequences: which positions are redrawn at which time.

    A new sampler implements `label` and `events`. A sampler that chooses positions by the network's prediction is a
    `Planner`.
    """

    refresh: float | int = 0.0
    """Expected refreshes per position; the bound bn takes it as its argument `refresh`."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A description of a few words, for tables and logs."""

    @property
    def step_times(self) -> Float[Tensor, " N1"] | None:
        """The times between which it steps, from 0 to 1; None if it works in continuous time."""
        return None

    @property
    def family(self) -> str:
        """What samplers that differ only in the number of steps have in common: they form one curve over steps."""
        return type(self).__name__

    @property
    def has_corrector(self) -> bool:
        """Whether η > 0 changes what it draws."""
        return True

    @property
    def chooses_positions(self) -> bool:
        """Whether the network's prediction decides which positions are drawn next; its likelihood is `planned_nll`."""
        return False

    @property
    def has_own_likelihood(self) -> bool:
        """Whether an evaluation measures a likelihood for this sampler that it does not measure for Euler steps."""
        return self.chooses_positions or (self.refresh > 0 and self.bounded_steps is not None)

    @property
    def bounded_steps(self) -> int | None:
        """The N for which the bound bn in N steps, with this `refresh`, bounds this sampler; None if it does not."""
        return None

    @abstractmethod
    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        """All events of n sequences at their free positions; the last event of each free position is a redraw."""

    def queue(self, events: Events, free: Bool[Tensor, "n L"], no_network: Bool[Tensor, " E"]) -> Queue:
        """The order in which the events are executed."""
        return EventQueue(events, len(free), no_network)


@dataclass(frozen=True)
class Euler(Sampler):
    """N steps, each with the exact redraw probability (k'-k)/(1-k); the last step redraws every position.

    With `refresh` R > 0 every position is drawn anew R times on average, from k'·P + (1-k')·p0 whatever it was: with
    probability R/N in each step but the last. So tokens from masks can be corrected, too.

    theory.md §1, (F_N), (F_R). The time of a position's next event is drawn directly, from its cumulative hazard.

    >>> import hopflow as hf
    >>> print(hf.Euler(8, hf.CosineGrid()).label)
    8 Euler steps on CosineGrid
    """

    steps: int = 32
    grid: Grid = EvenGrid()
    refresh: float | int = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral):
            raise ValueError(f"steps must be an integer ≥ 1, got {self.steps!r}.")
        if self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1, got {self.steps}.")
        if not isinstance(self.grid, Grid):
            raise ValueError(f"grid must be a Grid, e.g. CosineGrid(), got {self.grid!r}.")
        self.grid.times(self.steps)
        refresh_chances(self.refresh, self.steps)

    @classmethod
    def at(cls, times: Sequence[float | int]) -> "Euler":
        """Euler steps between these times, which increase from 0 to 1."""
        return cls(len(times) - 1, GivenGrid(tuple(times)))

    @property
    def label(self) -> str:
        grid = "" if self.grid == EvenGrid() else f" {self.grid.label}"
        return f"{self.steps} Euler steps{grid}" + (f", refresh {self.refresh:g}" if self.refresh else "")

    @property
    def step_times(self) -> Float[Tensor, " N1"]:
        return self.grid.times(self.steps)

    @property
    def family(self) -> str:
        return f"Euler on {type(self.grid).__name__}" + (f", refresh {self.refresh:g}" if self.refresh else "")

    @property
    def bounded_steps(self) -> int | None:
        return self.steps if self.grid == EvenGrid() else None

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        length = free.shape[1]
        flow.check_length(length)
        t = self.step_times
        rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
        r, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
        chances = refresh_chances(self.refresh, self.steps)[:, None]
        event_steps = _EventSteps(*with_refresh(r, s, rest[1:], chances))
        stays = flow.prediction.kept_positions(flow.source).expand(length)  # redraws and proposals matter at noise only
        once = stays & (self.refresh == 0)  # no event follows the first redraw
        row, position = free.nonzero().unbind(1)
        start, noisy = torch.zeros_like(row), torch.ones_like(row, dtype=torch.bool)
        found: list[Events] = []
        while len(row) or not found:
            here, at = row.unique_consecutive(return_inverse=True)
            wait, kind, token, accept = streams.uniform(length, 4, rows=here.tolist())[at, position].unbind(1)
            step = event_steps.next(start, position, wait)
            is_redraw, renoises = event_steps.kinds(step, position, kind)
            column = position if rest.shape[1] > 1 else torch.zeros_like(position)
            accept = torch.where(renoises, ALWAYS, accept)
            matters = (noisy | renoises | ~stays[position]).nonzero()[:, 0]
            columns = (row, step, position, t[step], rest[step, column], ~is_redraw, token, accept)
            found.append(Events(*(values[matters] for values in columns)))
            noisy = renoises | (noisy & ~is_redraw)
            left = (step < self.steps - 1) & ~(is_redraw & once[position])
            row, position, start, noisy = row[left], position[left], step[left] + 1, noisy[left]
        return _joined(found)


class _EventSteps:
    """The steps at which a position has events: redraws (r), proposals (s) and draws from the source (renoise)."""

    def __init__(self, r: Float[Tensor, "N C"], s: Float[Tensor, "N C"], renoise: Float[Tensor, "N C"]) -> None:
        self.r, self.renoise = r, renoise
        self.chance = (r + s + renoise).clamp(max=1)  # the rounded sum may exceed 1
        hazard = -torch.log1p(-self.chance)
        total = torch.cat([hazard.new_zeros(1, hazard.shape[1]), hazard.clamp(max=CERTAIN).cumsum(0)])  # (N+1, C)
        # the columns are offset, so that one search serves all of them
        self.offset = torch.arange(total.shape[1]) * (total.max() + CERTAIN)
        self.levels = (total + self.offset).T.contiguous()  # (C, N+1)

    def next(self, start: Int[Tensor, " m"], position: Int[Tensor, " m"], u: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The first step from `start` with an event: where the hazard since then exceeds an exponential number."""
        column = self._column(position)
        level = self.levels[column, start] - torch.log1p(-u)
        step = torch.searchsorted(self.levels.flatten(), level, right=True) - 1 - column * self.levels.shape[1]
        return step.clamp(max=len(self.r) - 1)

    def kinds(
        self, step: Int[Tensor, " m"], position: Int[Tensor, " m"], u: Float[Tensor, " m"]
    ) -> tuple[Bool[Tensor, " m"], Bool[Tensor, " m"]]:
        """Whether the event of this step is a redraw, and whether it draws from the source, by a uniform number."""
        at = (step, self._column(position))
        level, r = u * self.chance[at], self.r[at]
        return level < r, (level >= r) & (level < r + self.renoise[at])

    def _column(self, position: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        return position if len(self.levels) > 1 else torch.zeros_like(position)


@dataclass(frozen=True)
class RandomOrder(Sampler):
    """Continuous time (N → ∞) for a disjoint source with Carry or Evidence: one position per call, in random order.

    Each position is redrawn once, at the time when k reaches a uniform number. `per_call` > 1 redraws several positions
    per call, which is faster but only approximate, because they are drawn independently of each other.
    """

    per_call: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.per_call, bool) or not isinstance(self.per_call, Integral) or self.per_call < 1:
            raise ValueError(f"per_call must be an integer ≥ 1, got {self.per_call!r}.")

    @property
    def label(self) -> str:
        exact = "exact in continuous time" if self.per_call == 1 else f"{self.per_call} positions per call, approximate"
        return f"random order, {exact}"

    @property
    def has_corrector(self) -> bool:
        return False

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        check_tokens_stay(self, flow, eta)
        length = free.shape[1]
        flow.check_length(length)
        level, token = streams.uniform(length, 2).unbind(2)
        time = flow.schedule.time(1 - level).masked_fill(~free, torch.inf)  # (n, L)
        ordered, order = time.sort(1)
        step = order.argsort(1) // self.per_call
        t = ordered.gather(1, step * self.per_call)  # the time of the first position of the step
        row, position = free.nonzero().unbind(1)
        rest = flow.schedule.rest(t.masked_fill(~free, 0.0))
        at = (row, position)
        is_corrector = torch.zeros_like(row, dtype=torch.bool)
        return Events(row, step[at], position, t[at], rest[at], is_corrector, token[at], token[at])


def check_tokens_stay(sampler: Sampler, flow: Flow, eta: Eta = 0.0) -> None:
    """Raise ValueError unless every drawn token stays: a disjoint source with Carry or Evidence, and no corrector."""
    name = type(sampler).__name__
    if not flow.prediction.keeps_data_tokens(flow.source):
        raise ValueError(
            f"{name} needs a disjoint source (Mask, MultiMask) with Carry or Evidence, "
            f"got {type(flow.source).__name__} with {type(flow.prediction).__name__}. Use Euler(steps)."
        )
    if callable(eta) or eta != 0:
        raise ValueError(f"{name} has no corrector: eta must be 0, got {eta}. Use Euler(steps).")


def _joined(parts: list[Events]) -> Events:
    """The events of all parts, of which there is at least one."""
    return Events(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Events)))


EXAMPLES: tuple[Sampler, ...] = (Euler(), Euler(8, CosineGrid()), Euler(8, refresh=2.0), RandomOrder(), RandomOrder(4))
GRIDS: tuple[Grid, ...] = (EvenGrid(), CosineGrid())
