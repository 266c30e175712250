"""Planners: samplers for masks that choose which positions to fill next by the network's prediction.

The choice depends on the prediction of the current state only, never on the tokens that are drawn. So the probability
of a sequence is exact: `planned_nll` repeats the choices on it and sums -log P.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ..flow import Flow
from ..velocities import Eta
from .event_queue import Events, Indices, Logits, Queue, longest
from .random_draws import RandomStreams
from .samplers import Sampler, check_tokens_stay


class Planner(Sampler):
    """Fills the positions that it chooses by the network's prediction, for a disjoint source with Carry or Evidence.

    Each network call predicts all free positions, and `choose` selects some of them. Their tokens are drawn from the
    prediction, independently of each other, and stay. The network is called at t = filled positions / L, where a
    prompt counts as filled. The choice uses the prediction in float32 at temperature 1; temperature and filters change
    only what is drawn.

    A new planner implements `label`, `scores` and `pick`.
    """

    @property
    def has_corrector(self) -> bool:
        return False

    @property
    def chooses_positions(self) -> bool:
        return True

    def candidates(self, free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """The positions that may be chosen, by default all free ones; the head of the network runs at these only."""
        return free

    @abstractmethod
    def scores(self, log_p: Float[Tensor, "m Vd"]) -> Float[Tensor, " m"]:
        """One number for the prediction of each position."""

    @abstractmethod
    def pick(self, scores: Float[Tensor, "B L"], candidates: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """At least one candidate of each row that has any, by their scores; other scores are not defined."""

    def most_calls(self, free: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """An upper limit of the network calls for sequences with these numbers of free positions."""
        return free

    def choose(self, log_p: Float[Tensor, "B L Vd"], free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """The positions to fill next, by the predictions of a batch; at least one of each row with a free position."""
        return self.choose_by(lambda place, position: log_p[place, position], free)

    def choose_by(self, logits: Logits, free: Bool[Tensor, "B L"], at_once: int | None = None) -> Bool[Tensor, "B L"]:
        """`choose` by logits that are computed where they are needed, at `at_once` positions at a time."""
        candidates = self.candidates(free)
        place, position = candidates.nonzero(as_tuple=True)
        size = at_once or max(1, len(place))
        parts = zip(place.split(size), position.split(size), strict=True)
        found = [self.scores(logits(*part).float().log_softmax(-1)).cpu() for part in parts]
        scores = torch.zeros(free.shape)
        scores[place, position] = torch.cat([*found, scores.new_zeros(0)]).nan_to_num()
        chosen = self.pick(scores, candidates) & candidates
        if bool((free.any(1) & ~chosen.any(1)).any()):
            raise ValueError(f"{type(self).__name__}.pick must choose at least one candidate of each row, got none.")
        return chosen

    def events(self, flow: Flow, eta: Eta, free: Bool[Tensor, "n L"], streams: RandomStreams) -> Events:
        """One redraw for each free position, with its random number.

        Steps and times are those from left to right until `queue` replaces them by the planner's choice.
        """
        check_tokens_stay(self, flow, eta)
        length = free.shape[1]
        flow.schedule.check_length(length)
        row, position = at = free.nonzero(as_tuple=True)
        step = (free.cumsum(1) - 1).clamp(min=0)
        t = (step + (~free).sum(1, keepdim=True)).clamp(max=length).double() / length
        token, never = streams.uniform(length)[at], torch.zeros_like(row, dtype=torch.bool)
        return Events(row, step[at], position, t[at], flow.schedule.rest(t)[at], never, token, token)

    def queue(self, events: Events, free: Bool[Tensor, "n L"], no_network: Bool[Tensor, " E"]) -> Queue:
        return PlannedQueue(self, events, free)


class PlannedQueue(Queue):
    """The events of sequences whose next positions a planner chooses when the network has been called."""

    def __init__(self, planner: Planner, events: Events, free: Bool[Tensor, "n L"]) -> None:
        self._planner, self._free = planner, free.clone()
        self.order = torch.arange(len(events.row))
        self._event = torch.full(free.shape, -1)
        self._event[events.row, events.position] = self.order
        self.calls = np.zeros(len(free), dtype=np.int64)
        self.most_calls = planner.most_calls(free.sum(1)).numpy()

    def done(self, rows: Indices) -> NDArray[np.bool_]:
        return ~self._free[rows].any(1).numpy()

    def without_network(self) -> Indices:
        return np.empty(0, dtype=np.int64)

    def longest(self, batch: int) -> Indices:
        return longest(self._free.sum(1).numpy(), batch)

    def times(self, rows: Indices) -> NDArray[np.float64]:
        return filled_share(self._free[rows]).numpy()

    def take(self, rows: Indices, logits: Logits | None = None, at_once: int = 1) -> tuple[Indices, Indices]:
        assert logits is not None
        free = self._free[rows]
        chosen = self._planner.choose_by(logits, free, at_once)
        self._free[rows] = free & ~chosen
        self.calls[rows] += 1
        place, position = chosen.nonzero(as_tuple=True)
        return self._event[torch.from_numpy(rows)[place], position].numpy(), place.numpy()


def check_planner(sampler: object, flow: Flow) -> None:
    """Raise ValueError unless this is a planner that can draw from the flow."""
    if not isinstance(sampler, Planner):
        raise ValueError(
            f"sampler must be a planner, such as Confidence(4), got {sampler!r}. For Euler(N) use nll_bound(steps=N)."
        )
    check_tokens_stay(sampler, flow)


def filled_share(free: Bool[Tensor, "B L"]) -> Float[Tensor, " B"]:
    """The share of positions that are not free: the time at which a planner calls the network."""
    return (~free).sum(1).double() / free.shape[1]


@dataclass(frozen=True)
class _Largest(Planner):
    """Fills the k candidates with the largest scores; of equal scores those on the left."""

    k: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, Integral) or self.k < 1:
            raise ValueError(f"k, the number of positions per network call, must be an integer ≥ 1, got {self.k!r}.")

    def pick(self, scores: Float[Tensor, "B L"], candidates: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        order = scores.masked_fill(~candidates, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        return torch.zeros_like(candidates).scatter(1, order[:, : self.k], True)

    def most_calls(self, free: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return -(-free // self.k)

    def _per_call(self) -> str:
        return f"{self.k} position{'s' * (self.k > 1)} per call"


@dataclass(frozen=True)
class Confidence(_Largest):
    """Fills the k positions whose most probable token has the highest probability.

    Of equal positions the leftmost are filled first.

    >>> import torch, hopflow as hf
    >>> log_p = torch.tensor([[[0.5, 0.5], [0.1, 0.9], [0.8, 0.2]]]).log()
    >>> hf.Confidence(2).choose(log_p, torch.ones(1, 3, dtype=torch.bool))
    tensor([[False,  True,  True]])
    """

    @property
    def label(self) -> str:
        return f"by confidence, {self._per_call()}"

    def scores(self, log_p: Float[Tensor, "m Vd"]) -> Float[Tensor, " m"]:
        return log_p.amax(1)


@dataclass(frozen=True)
class Margin(_Largest):
    """Fills the k positions with the largest difference between their two highest probabilities.

    Of equal positions the leftmost are filled first.
    """

    @property
    def label(self) -> str:
        return f"by margin, {self._per_call()}"

    def scores(self, log_p: Float[Tensor, "m Vd"]) -> Float[Tensor, " m"]:
        highest = log_p.topk(min(2, log_p.shape[1]), 1).values.exp()
        return highest[:, 0] - highest[:, 1:].sum(1)  # a vocabulary of one token has no second


@dataclass(frozen=True)
class LeftToRight(_Largest):
    """Fills the k leftmost free positions; the network still sees what follows them in a prompt."""

    @property
    def label(self) -> str:
        return f"left to right, {self._per_call()}"

    def candidates(self, free: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        return free & (free.cumsum(1) <= self.k)

    def scores(self, log_p: Float[Tensor, "m Vd"]) -> Float[Tensor, " m"]:
        return torch.zeros_like(log_p[:, 0])


@dataclass(frozen=True)
class EntropyBound(Planner):
    """Fills as many positions of low entropy as their joint prediction allows: the rule of the EB-Sampler.

    The free positions are ordered by the entropy H of their predictions, in nats, lowest first. Of this order the
    longest beginning U is filled for which

        Σ_{i in U} H_i - max_{i in U} H_i ≤ gamma,

    which is at least one position. The left side bounds the information that the tokens of U have about each other,
    and so the error of drawing them independently. `gamma=0` fills one position per call, and with it those that are
    certain. Of equal positions the leftmost are filled first. arXiv 2505.24857

    >>> import torch, hopflow as hf
    >>> log_p = torch.tensor([[[0.5, 0.5], [0.99, 0.01], [0.98, 0.02]]]).log()  # entropies 0.69, 0.056 and 0.098
    >>> hf.EntropyBound(0.1).choose(log_p, torch.ones(1, 3, dtype=torch.bool))
    tensor([[False,  True,  True]])
    """

    gamma: float | int = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, Real) or not 0 <= self.gamma < math.inf:
            raise ValueError(f"gamma, the information in nats, must be a finite number ≥ 0, got {self.gamma!r}.")

    @property
    def label(self) -> str:
        return f"by entropy, at most {self.gamma:g} nats per call"

    def scores(self, log_p: Float[Tensor, "m Vd"]) -> Float[Tensor, " m"]:
        p = log_p.exp()
        return -torch.where(p > 0, p * log_p, 0.0).sum(1)

    def pick(self, scores: Float[Tensor, "B L"], candidates: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        entropy, order = scores.masked_fill(~candidates, torch.inf).sort(dim=1, stable=True)
        # the last of a beginning has the largest entropy: the sum without it is that of the positions before it
        before = torch.cat([entropy.new_zeros(len(entropy), 1), entropy.cumsum(1)[:, :-1]], 1)
        return torch.zeros_like(candidates).scatter(1, order, before <= self.gamma)


EXAMPLES: tuple[Planner, ...] = (
    *(Confidence(), Confidence(2), Margin(2)),
    *(EntropyBound(0), EntropyBound(0.5), LeftToRight(), LeftToRight(2)),
)
