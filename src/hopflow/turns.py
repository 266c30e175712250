"""Turns: in which order the events of many sequences are taken, so that every batch is full."""

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from .samplers import Events

Indices = NDArray[np.int64]


class Turns:
    """The turns of `count` sequences and how far each is. A turn is what happens to a sequence at once.

    `silent` events need no network; a turn of such events alone is taken without a call.
    """

    def __init__(self, events: Events, count: int, silent: Bool[Tensor, " E"]) -> None:
        row, turn = events.row.numpy(), events.turn.numpy()
        order = np.lexsort((turn, row))
        row, turn = row[order], turn[order]
        begins = np.ones(len(row), dtype=bool)
        begins[1:] = (row[1:] != row[:-1]) | (turn[1:] != turn[:-1])
        self._first = np.flatnonzero(begins)  # event of each turn
        self._size = np.diff(self._first, append=len(row))
        self._t = events.t.numpy()[order[self._first]]
        self._asks = np.add.reduceat(~silent.numpy()[order], self._first) > 0 if len(row) else begins
        self._end = np.searchsorted(row[self._first], np.arange(count), side="right")
        self._next = np.concatenate([[0], self._end[:-1]])
        self.order = torch.from_numpy(order)
        """The events in the order in which `take` counts them."""
        self.calls = np.bincount(row[self._first][self._asks], minlength=count)
        """Turns of each sequence that need the network."""

    def silent(self) -> Indices:
        """The sequences whose next turn needs no network."""
        open_ = np.flatnonzero(self._next < self._end)
        return open_[~self._asks[self._next[open_]]]

    def longest(self, batch: int) -> Indices:
        """Up to so many sequences, those with the most turns left: then none is left over at the end."""
        left = self._end - self._next
        most = np.argpartition(-left, batch)[:batch] if batch < len(left) else np.arange(len(left))
        return np.sort(most[left[most] > 0])

    def take(self, rows: Indices) -> tuple[Indices, Indices, NDArray[np.float64]]:
        """The next turn of each: its events, the place among `rows` that each of these belongs to, and the times."""
        turns = self._next[rows]
        self._next[rows] += 1
        size = self._size[turns]
        place = np.repeat(np.arange(len(rows)), size)
        before = np.cumsum(size) - size
        events = self._first[turns][place] + np.arange(len(place)) - before[place]
        return events, place, self._t[turns]
