"""EventQueue: the events of many sequences in the order of their steps, and how far each sequence is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Logits = Callable[[Tensor, Tensor], Tensor]
"""logits(place, position) -> (m, Vd): the network's logits at these positions of a batch, in any order."""


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
    """True: a proposal from the source, accepted with probability 1 - ρP(xt), or always if `accept` is ALWAYS.
    False: a redraw from the prediction."""
    token: Float[Tensor, " E"]
    """Uniform number in [0, 1) that decides the token."""
    accept: Float[Tensor, " E"]
    """Uniform number in [0, 1) that decides whether a proposal is accepted."""


class Queue(ABC):
    """The steps of many sequences, of which each takes its next one when it is in a batch."""

    order: Int[Tensor, " E"]
    """The events in the order of the indices that `take` returns."""
    calls: Indices
    """Network calls of each sequence, once it has taken all steps."""
    most_calls: Indices
    """An upper limit of `calls`, known from the start."""

    @abstractmethod
    def done(self, rows: Indices) -> NDArray[np.bool_]:
        """Whether each of these sequences has taken all its steps."""

    @abstractmethod
    def without_network(self) -> Indices:
        """The sequences whose next step needs no network."""

    @abstractmethod
    def longest(self, batch: int) -> Indices:
        """The `batch` sequences with the most steps left, so that the last batches are full, too."""

    @abstractmethod
    def times(self, rows: Indices) -> NDArray[np.float64]:
        """The times of the next step of each of `rows`."""

    @abstractmethod
    def take(self, rows: Indices, logits: Logits | None = None, at_once: int = 1) -> tuple[Indices, Indices]:
        """The events of the next step of each of `rows`, and the place in `rows` of each event.

        `logits` are those of the network for `rows`, None if it was not called; `at_once` positions of them fit into
        memory.
        """


class EventQueue(Queue):
    """The steps of `count` sequences, in order, and how far each sequence is.

    A step is all events of a sequence that happen at once. `no_network` marks events that need no network; a step that
    consists of such events only is executed without a call.
    """

    def __init__(self, events: Events, count: int, no_network: Bool[Tensor, " E"]) -> None:
        row, step = events.row.numpy(), events.step.numpy()
        order = np.lexsort((step, row))
        row, step = row[order], step[order]
        begins = np.ones(len(row), dtype=bool)
        begins[1:] = (row[1:] != row[:-1]) | (step[1:] != step[:-1])
        self._first = np.flatnonzero(begins)  # first event of each step
        self._size = np.diff(self._first, append=len(row))
        self._t = events.t.numpy()[order[self._first]]
        self._needs_network = np.add.reduceat(~no_network.numpy()[order], self._first) > 0 if len(row) else begins
        self._end = np.searchsorted(row[self._first], np.arange(count), side="right")
        self._next = np.concatenate([[0], self._end[:-1]])
        self.order = torch.from_numpy(order)
        self.calls = self.most_calls = np.bincount(row[self._first][self._needs_network], minlength=count)

    def done(self, rows: Indices) -> NDArray[np.bool_]:
        finished: NDArray[np.bool_] = self._next[rows] >= self._end[rows]
        return finished

    def without_network(self) -> Indices:
        unfinished = np.flatnonzero(self._next < self._end)
        return unfinished[~self._needs_network[self._next[unfinished]]]

    def longest(self, batch: int) -> Indices:
        return longest(self._end - self._next, batch)

    def times(self, rows: Indices) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._t[self._next[rows]]
        return found

    def take(self, rows: Indices, logits: Logits | None = None, at_once: int = 1) -> tuple[Indices, Indices]:
        steps = self._next[rows]
        self._next[rows] += 1
        size = self._size[steps]
        place = np.repeat(np.arange(len(rows)), size)
        before = np.cumsum(size) - size
        return self._first[steps][place] + np.arange(len(place)) - before[place], place


def longest(left: Indices, batch: int) -> Indices:
    """The indices of the `batch` largest numbers, without those that are 0, in increasing order."""
    most = np.argpartition(-left, batch)[:batch] if batch < len(left) else np.arange(len(left))
    return np.sort(most[left[most] > 0])
