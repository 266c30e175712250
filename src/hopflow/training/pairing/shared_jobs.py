"""OT batches in shared memory: filled by the trainer or its GPU, solved by the worker pool."""

import logging
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...couplings import CouplingNumbers, HasCouplingNumbers, OptimalTransport
from ...runs.ot_batch import CostedProblem, OTDraw, OTProblem, Solution
from ...sources import Source
from . import gpu_costs
from .gpu_costs import Transfer
from .pool_growth import PoolGrowth
from .shared_memory import BufferLayout, SharedBuffer, problem_in
from .worker_pool import WorkerPool

log = logging.getLogger("hopflow")


@dataclass(frozen=True)
class CouplingReport(HasCouplingNumbers):
    """The numbers of the coupling of one OT batch, and how it reached the training step."""

    index: int
    numbers: CouplingNumbers
    seconds_waited: float
    """Time that the training step waited, for a worker or for the solution in its own process."""
    in_place: bool
    """Solved by the trainer: no worker was ready, one failed, or the cost reads the network, which workers lack."""


@dataclass
class OTJob:
    """An OT batch between its first preparation and its last training step."""

    x1: Int[Tensor, "n L"]
    problem: OTProblem | CostedProblem
    buffer: SharedBuffer | None = None
    transfer: Transfer | None = None
    ticket: int | None = None
    solution: Solution | None = None
    report: CouplingReport | None = None


class SharedJobs:
    """Jobs whose rows or cost matrices are in shared memory, the worker pool that solves them, and its growth."""

    def __init__(self, pool: WorkerPool | None, growth: PoolGrowth | None) -> None:
        self.pool, self.growth = pool, growth
        self.free: list[SharedBuffer] = []
        """Buffers for later jobs."""
        self.streams: dict[torch.device, gpu_costs.SideStream] = {}

    @property
    def workers(self) -> int:
        return self.pool.size if self.pool else 0

    def with_rows(
        self,
        draw: OTDraw,
        x1: Int[Tensor, "n L"],
        group: Int[Tensor, " n"] | None,
        table: Float[Tensor, "V D"] | None,
    ) -> OTJob:
        """A job whose data rows and embedding table are copied to shared memory."""
        content = {"x1": x1, "group": group, "table": table}
        buffer = self._buffer(BufferLayout.of(x0=x1, **content))
        for name, tensor in content.items():
            if tensor is not None:
                buffer[name].copy_(tensor)
        return OTJob(x1, OTProblem(draw, x1, group, buffer.get("table")), buffer)

    def with_gpu_costs(
        self,
        transport: OptimalTransport,
        source: Source,
        draw: OTDraw,
        x1: Int[Tensor, "n L"],
        group: Int[Tensor, " n"] | None,
        table: Float[Tensor, "V D"],
    ) -> OTJob:
        """A job whose cost matrix is computed on the table's GPU and copied to shared memory asynchronously."""
        if table.device not in self.streams:
            self.streams[table.device] = gpu_costs.SideStream(table.device)
        stream = self.streams[table.device]
        costs = stream.costs(transport.cost, source, draw.uniforms(x1.shape[1]), x1, table)
        buffer = self._buffer(BufferLayout.of(x0=x1, group=group, **costs))
        if group is not None:
            buffer["group"].copy_(group)
        return OTJob(x1, problem_in(draw, buffer), buffer, stream.send(costs, buffer))

    def submit(self, job: OTJob) -> None:
        """Send a job to the pool; if the trainer must copy its matrix to the buffer, only after that has arrived."""
        if self.pool is None or job.buffer is None or job.ticket is not None:
            return
        if job.transfer is None or job.transfer.direct or job.transfer.arrived():
            job.ticket = self.pool.submit(job.problem.draw, job.buffer)

    def poll(self) -> None:
        if self.pool:
            self.pool.poll()

    def solution(self, job: OTJob) -> Solution | None:
        """Wait for a worker's solution; None if the trainer has to solve the job."""
        if job.transfer is not None:
            job.transfer.wait()
            self.submit(job)
        return self.pool.take(job.ticket) if self.pool and job.ticket is not None else None

    def note_seconds(self, seconds: float) -> None:
        """Let the pool's time limit follow a coupling that the trainer solved."""
        if self.pool:
            self.pool.slowest = max(self.pool.slowest, seconds)

    def release(self, job: OTJob) -> None:
        """Free the job's buffer for later jobs, unless a worker may still write to it."""
        if job.buffer is None:
            return
        if job.transfer is not None:
            job.transfer.wait()  # nor while a GPU writes to it
        if job.ticket is None or self.pool is None or self.pool.cancel(job.ticket):
            self.free.append(job.buffer)
        else:
            job.buffer.close()
        job.buffer = job.transfer = job.ticket = None

    def grow(self, waited: float) -> None:
        """Start one more worker if steps wait too long."""
        if self.growth is None or self.pool is None:
            return
        if not self.pool.ready:
            self.growth.restart()
        elif (share := self.growth.add(waited, self.workers)) is not None:
            self.pool.add()
            log.info(
                "started an OT worker, now %d: steps waited for couplings for %.1f%% of the time",
                self.workers,
                100 * share,
            )

    def close(self) -> None:
        for buffer in self.free:
            buffer.close()
        self.free.clear()

    def _buffer(self, layout: BufferLayout) -> SharedBuffer:
        for at, buffer in enumerate(self.free):
            if buffer.layout == layout:
                return self.free.pop(at)
        return SharedBuffer(layout)
