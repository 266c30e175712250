"""Cost matrices computed on a GPU in parallel with the training step, and their transfer to shared memory.

Only the matrix is sent to a worker. The embedding table would take longer than a step: 300 MB for 100,000 tokens of
width 768, and then seconds of the worker's time for the products. A matrix of 512 rows is 1 MB, one of 4096 is 64 MB.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...costs import SequenceCost
from ...sources import Source
from .shared_memory import SharedBuffer

ARRIVED = "arrived"
"""The entry of a buffer that is written last: 1 once all others have been copied."""


@runtime_checkable
class Event(Protocol):
    """An event of a stream, such as torch.cuda.Event."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Transfer:
    """An asynchronous copy of tensors to a shared buffer."""

    def __init__(self, event: Event, staged: Mapping[str, Tensor], buffer: SharedBuffer) -> None:
        self._event, self._staged, self._buffer = event, dict(staged), buffer
        self.direct = not staged
        """Whether the GPU writes to the buffer itself; a worker then sees the arrival there (`wait_for_arrival`)."""

    def arrived(self) -> bool:
        """Whether the copy has ended, without waiting."""
        if not self._event.query():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait until the copy has ended."""
        self._event.synchronize()
        for name, content in self._staged.items():
            self._buffer[name].copy_(content)
        self._staged.clear()


def wait_for_arrival(buffer: SharedBuffer, pause: Callable[[], None]) -> None:
    """In a worker, wait until a GPU has filled the buffer; returns at once if no GPU writes to it."""
    if (arrived := buffer.get(ARRIVED)) is not None:
        flag = arrived.numpy()
        while not flag[0]:
            pause()


class SideStream:
    """A second CUDA stream that computes costs in parallel with the training step; the trainer never waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # with priority over the training step: the kernels are few, and a worker waits for them
        self.stream = torch.cuda.Stream(device, priority=-1)

    def costs(
        self,
        cost: SequenceCost,
        source: Source,
        u: Float[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        table: Float[Tensor, "V D"],
    ) -> dict[str, Tensor]:
        """The source rows for these uniform numbers and the cost of all pairs. `table` must not change meanwhile."""
        self.wait_for_table(table)
        with torch.no_grad(), self.entered():
            x0 = source.at(self.upload(u))
            matrix = cost.cost_matrix(x0, self.upload(x1), table)
            zeros = torch.zeros(len(x0), dtype=matrix.pairwise.dtype, device=x0.device)
            rows, columns = (zeros if part is None else part for part in (matrix.rows, matrix.columns))
            arrived = torch.ones(1, dtype=torch.uint8, device=x0.device)
            # in the order in which they are copied
            return {"source": x0, "pairwise": matrix.pairwise, "rows": rows, "columns": columns, ARRIVED: arrived}

    def send(self, costs: Mapping[str, Tensor], buffer: SharedBuffer) -> Transfer:
        """Copy to the entries of these names; via other pinned memory if that of the buffer cannot be pinned."""
        buffer[ARRIVED].zero_()
        staged = {} if buffer.pin() else {name: self.pinned_like(part) for name, part in costs.items()}
        with self.entered():
            for name, part in costs.items():
                (staged[name] if staged else buffer[name]).copy_(part, non_blocking=True)
            return Transfer(self.record_event(), staged, buffer)

    def wait_for_table(self, table: Float[Tensor, "V D"]) -> None:
        """Let this stream wait until the training stream has written the table, and keep its memory in use."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        table.record_stream(self.stream)

    def upload(self, rows: Tensor) -> Tensor:
        """A copy on the GPU, from pinned memory: from any other, CUDA would first wait for the stream."""
        return rows.pin_memory().to(self.device, non_blocking=True)

    def pinned_like(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def entered(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def record_event(self) -> Event:
        event = torch.cuda.Event()
        event.record(self.stream)
        return event
