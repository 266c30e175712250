"""Samplers: which positions of a sequence are redrawn at which time.

Whether a position is redrawn does not depend on the network (theory.md §1). So a sampler draws all events of a
sequence up front, and `generate` calls the network only where a position is redrawn.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..flow import Flow
from ..velocities import Eta, eta_at, step_sizes
from .random_draws import RandomStreams
from .time_grids import CosineGrid, EvenGrid, GivenGrid, Grid

CERTAIN = 64.0
"""The hazard of an event with probability 1; -log of a uniform number in (0, 1] is below 37."""


@dataclass(frozen=True, eq=False)
class Events:
    """Redraws of single positions, in any order. Events of a row with the same step happen at once."""

    row: Int[Tensor, " E"]
    """Index of the sequence."""
    step: Int[Tensor, " E"]
    """Number of the step within the sequence; steps are executed in increasing order."""
    position: Int[Tensor, " E"]
    t: Float[Tensor, " E"]
    """Time that the network is called with; one per step of a sequence."""
    rest: Float[Tensor, " E"]
    """1 - k of the position before the event."""
    is_corrector: Bool[Tensor, " E"]
    """True: a proposal from the source, accepted with probability 1 - ρP(xt). False: a redraw from the prediction."""
    token: Float[Tensor, " E"]
    """Uniform number in [0, 1) that decides the token."""
    accept: Float[Tensor, " E"]
    """Uniform number in [0, 1) that decides whether a proposal is accepted."""


class Sampler(ABC):
    """Draws the events of sequences: which positions are redrawn at which time.

    A new sampler implements `label` and `events`.
    """

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
    def bounded_steps(self) -> int | None:
        """The N for which the bounds bn and br in N steps bound this sampler; None if they do not."""
        return None

    @abstractmethod
    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        """All events of n sequences at their free positions; the last event of each free position is a redraw."""


@dataclass(frozen=True)
class Euler(Sampler):
    """N steps, each with the exact redraw probability (k'-k)/(1-k); the last step redraws every position.

    theory.md §1, (F_N). The time of a position's next event is drawn directly, from its cumulative hazard.

    >>> import hopflow as hf
    >>> print(hf.Euler(8, hf.CosineGrid()).label)
    8 Euler steps on CosineGrid
    """

    steps: int = 32
    grid: Grid = EvenGrid()

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral):
            raise ValueError(f"steps must be an integer ≥ 1, got {self.steps!r}.")
        if self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1, got {self.steps}.")
        self.grid.times(self.steps)

    @classmethod
    def at(cls, times: Sequence[float | int]) -> "Euler":
        """Euler steps between these times, which increase from 0 to 1."""
        return cls(len(times) - 1, GivenGrid(tuple(times)))

    @property
    def label(self) -> str:
        return f"{self.steps} Euler steps" + ("" if self.grid == EvenGrid() else f" on {type(self.grid).__name__}")

    @property
    def step_times(self) -> Float[Tensor, " N1"]:
        return self.grid.times(self.steps)

    @property
    def family(self) -> str:
        return f"Euler on {type(self.grid).__name__}"

    @property
    def bounded_steps(self) -> int | None:
        return self.steps if self.grid == EvenGrid() else None

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        length = free.shape[1]
        flow.schedule.check_length(length)
        t = self.step_times
        rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
        r, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
        event_steps = _EventSteps(r, s)
        once = flow.prediction.keeps_data_tokens(flow.source)  # no event follows the first redraw
        row, position = free.nonzero().unbind(1)
        start = torch.zeros_like(row)
        found: list[Events] = []
        while len(row) or not found:
            here, at = row.unique_consecutive(return_inverse=True)
            wait, kind, token, accept = streams.uniform(length, 4, rows=here.tolist())[at, position].unbind(1)
            step = event_steps.next(start, position, wait)
            is_corrector = ~event_steps.is_redraw(step, position, kind)
            column = position if rest.shape[1] > 1 else torch.zeros_like(position)
            found.append(Events(row, step, position, t[step], rest[step, column], is_corrector, token, accept))
            left = (step < self.steps - 1) & (is_corrector if once else True)
            row, position, start = row[left], position[left], step[left] + 1
        return _joined(found)


class _EventSteps:
    """The steps at which a position has events, from the probabilities r of a redraw and s of a proposal."""

    def __init__(self, r: Float[Tensor, "N C"], s: Float[Tensor, "N C"]) -> None:
        self.r, self.chance = r, r + s
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

    def is_redraw(self, step: Int[Tensor, " m"], position: Int[Tensor, " m"], u: Float[Tensor, " m"]) -> Tensor:
        """Whether the event of this step is a redraw, decided by a uniform number."""
        column = self._column(position)
        return u * self.chance[step, column] < self.r[step, column]

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
        if self.per_call < 1:
            raise ValueError(f"per_call must be an integer ≥ 1, got {self.per_call}.")

    @property
    def label(self) -> str:
        exact = "exact in continuous time" if self.per_call == 1 else f"{self.per_call} positions per call, approximate"
        return f"random order, {exact}"

    @property
    def has_corrector(self) -> bool:
        return False

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        if not flow.prediction.keeps_data_tokens(flow.source):
            raise ValueError(
                f"RandomOrder needs a disjoint source (Mask, MultiMask) with Carry or Evidence, "
                f"got {type(flow.source).__name__} with {type(flow.prediction).__name__}. Use Euler(steps)."
            )
        if callable(eta) or eta != 0:
            raise ValueError(f"RandomOrder has no corrector: eta must be 0, got {eta}. Use Euler(steps).")
        length = free.shape[1]
        flow.schedule.check_length(length)
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


def _joined(parts: list[Events]) -> Events:
    """The events of all parts, of which there is at least one."""
    return Events(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Events)))


EXAMPLES: tuple[Sampler, ...] = (Euler(), Euler(8, CosineGrid()), RandomOrder(), RandomOrder(4))
