"""EventQueue: the order in which the events of many sequences are executed, so that every batch is full."""

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from .samplers import Events

Indices = NDArray[np.int64]


class EventQueue:
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
        """The events in the order of the indices that `take` returns."""
        self.calls = np.bincount(row[self._first][self._needs_network], minlength=count)
        """Steps of each sequence that need the network."""

    def without_network(self) -> Indices:
        """The sequences whose next step needs no network."""
        unfinished = np.flatnonzero(self._next < self._end)
        return unfinished[~self._needs_network[self._next[unfinished]]]

    def longest(self, batch: int) -> Indices:
        """The `batch` sequences with the most steps left, so that the last batches are full, too."""
        left = self._end - self._next
        most = np.argpartition(-left, batch)[:batch] if batch < len(left) else np.arange(len(left))
        return np.sort(most[left[most] > 0])

    def take(self, rows: Indices) -> tuple[Indices, Indices, NDArray[np.float64]]:
        """The next step of each of `rows`: its events, the place in `rows` of each event, and the times of the rows."""
        steps = self._next[rows]
        self._next[rows] += 1
        size = self._size[steps]
        place = np.repeat(np.arange(len(rows)), size)
        before = np.cumsum(size) - size
        events = self._first[steps][place] + np.arange(len(place)) - before[place]
        return events, place, self._t[steps]
