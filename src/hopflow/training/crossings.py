"""Crossings: cost matrices computed on a GPU, beside the training step, on their way to memory that a worker sees.

To send the embedding table itself would take longer than the step: 300 MB for 100,000 tokens of width 768, and then
seconds of a worker's time for the products. The matrix of 512 rows is 1 MB, that of 4096 is 64 MB.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..costs import SequenceCost
from ..sources import Source
from .sheets import Sheet

ARRIVED = "arrived"
"""The place of a sheet that is written last: 1 once all others hold what was sent."""


def elsewhere(table: Float[Tensor, "V D"]) -> bool:
    """Whether the table lies where no worker is."""
    return table.device.type == "cuda"


@runtime_checkable
class Event(Protocol):
    """A mark in a stream, such as torch.cuda.Event."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Crossing:
    """Numbers on their way to a sheet."""

    def __init__(self, event: Event, staged: Mapping[str, Tensor], sheet: Sheet) -> None:
        self._event, self._staged, self._sheet = event, dict(staged), sheet
        self.direct = not staged
        """The GPU writes to the sheet itself: a worker sees there that they have arrived (`wait_for_arrival`)."""

    def arrived(self) -> bool:
        """Whether they are there, without waiting."""
        if not self._event.query():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Until they are there."""
        self._event.synchronize()
        for name, content in self._staged.items():
            self._sheet[name].copy_(content)
        self._staged.clear()


def wait_for_arrival(sheet: Sheet, pause: Callable[[], None]) -> None:
    """In a worker, until everything is on the sheet; at once where it needs no GPU."""
    if (arrived := sheet.get(ARRIVED)) is not None:
        flag = arrived.numpy()
        while not flag[0]:
            pause()


class Side:
    """A GPU beside its own training step, by a second stream. Nothing here makes the trainer wait for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # before the step's own kernels: they are few, and a worker waits for them
        self.stream = torch.cuda.Stream(device, priority=-1)

    def price(
        self,
        cost: SequenceCost,
        source: Source,
        u: Float[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        table: Float[Tensor, "V D"],
    ) -> dict[str, Tensor]:
        """The source rows at these uniform numbers, and the cost of all pairs under a table that stays as it is."""
        self.handed(table)
        with torch.no_grad(), self.beside():
            x0 = source.at(self.up(u))
            split = cost.split(x0, self.up(x1), table)
            none = torch.zeros(len(x0), dtype=split.pairwise.dtype, device=x0.device)
            rows, columns = (none if part is None else part for part in (split.rows, split.columns))
            arrived = torch.ones(1, dtype=torch.uint8, device=x0.device)
            # in the order in which they are sent
            return {"source": x0, "pairwise": split.pairwise, "rows": rows, "columns": columns, ARRIVED: arrived}

    def send(self, priced: Mapping[str, Tensor], sheet: Sheet) -> Crossing:
        """To the places of these names; by way of locked memory, should that of the sheet not be lockable."""
        sheet[ARRIVED].zero_()
        staged = {} if sheet.lock() else {name: self.locked(part) for name, part in priced.items()}
        with self.beside():
            for name, part in priced.items():
                (staged[name] if staged else sheet[name]).copy_(part, non_blocking=True)
            return Crossing(self.mark(), staged, sheet)

    def handed(self, table: Float[Tensor, "V D"]) -> None:
        """Made by the step's own stream; the second one waits for that, and nobody else gets its memory meanwhile."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        table.record_stream(self.stream)

    def up(self, rows: Tensor) -> Tensor:
        """From locked memory: from any other, CUDA would first wait for the stream."""
        return rows.pin_memory().to(self.device, non_blocking=True)

    def locked(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def beside(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def mark(self) -> Event:
        event = torch.cuda.Event()
        event.record(self.stream)
        return event
