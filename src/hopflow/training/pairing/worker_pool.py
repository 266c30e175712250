"""The worker pool: starts worker processes, sends them OT batches and collects their answers.

It runs in the trainer, uses no thread, and never blocks without a time limit.
"""

import io
import itertools
import logging
import os
import signal
import socket
import struct
import subprocess
import time
import warnings
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ...flow import Flow
from ...runs.ot_batch import OTDraw, Solution
from ...system.child_process import PythonProcess, import_path
from .shared_memory import SharedBuffer, send_descriptor
from .worker import HELLO, READY, UNUSABLE, CaughtWarnings, torch_settings

log = logging.getLogger("hopflow")

BOOT_SECONDS = 120.0  # a worker imports torch first, perhaps from a slow disk
DEPTH = 2  # OT batches that a worker holds, so that it need not wait for the next step of the trainer
PROGRAM = (
    "import runpy, sys; sys.path[:] = sys.argv[2:]; "
    "runpy.run_module('hopflow.training.pairing.worker', run_name='__main__', alter_sys=True)"
)
"""The program of a worker. sys.path is passed as arguments: PYTHONPATH would run a sitecustomize.py in it."""
FAULTS = 3  # lost workers in a row after which no more are started


@dataclass(frozen=True)
class PoolTask:
    """One OT batch to be solved. Each has a new ticket, so that the answer to a canceled task is ignored."""

    ticket: int
    draw: OTDraw
    buffer: SharedBuffer


@dataclass(frozen=True)
class PoolAnswer:
    """A worker's solution, or its error, and its warnings."""

    solution: Solution | None = None
    error: str = ""
    warned: CaughtWarnings = ()


class WorkerProcess:
    """One worker process and the tasks that it holds."""

    def __init__(self, timeout: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # a stopped worker must not block the trainer
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(timeout) + 1, 0))
            self.connection = Connection(ours.detach())
            self.process = PythonProcess(
                *("-c", PROGRAM, str(theirs.fileno()), *import_path()),
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,  # the output of the trainer may be parsed by a program
                env=_environment(),
                process_group=0,  # Ctrl-C goes to the trainer only, which then ends its workers
            )
        self.ready = False
        self.started = time.monotonic()
        self.held: dict[int, PoolTask] = {}

    def send(self, task: PoolTask) -> None:
        self.held[task.ticket] = task
        self.connection.send((task.ticket, task.draw, task.buffer.layout))
        send_descriptor(self.connection, task.buffer.fd)

    def end(self, grace: float = 0.0) -> str:
        """End the process; returns how it ended. There is nothing to save: it writes to memory only."""
        code = self.process.end(grace)
        self.connection.close()
        if code is None:
            return "did not respond"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"stopped with exit code {code}"


class WorkerPool:
    """Worker processes, the tasks that wait for one of them, and the answers that wait for the trainer."""

    def __init__(self, flow: Flow, workers: int, timeout: float) -> None:
        self.timeout = timeout
        self.slowest = 0.0
        self.workers: list[WorkerProcess] = []
        self._size = workers
        self._owner = os.getpid()
        self._faults = 0
        self._tickets = itertools.count()
        self._due: set[int] = set()
        self._queue: dict[int, PoolTask] = {}
        self._answers: dict[int, PoolAnswer] = {}
        self._flow = b""
        try:
            self._flow = _message((_without_caches(flow), torch_settings()))
        except Exception as error:
            self._disable(f"the flow cannot be sent to another process ({type(error).__name__}: {error})")
        self._start_missing()

    @property
    def size(self) -> int:
        """The number of workers, including those that are still starting; 0 once the pool is disabled."""
        return self._size

    @property
    def ready(self) -> bool:
        """Whether every worker has started."""
        return len(self.workers) == self._size and all(worker.ready for worker in self.workers)

    def add(self) -> None:
        """Start one more worker, unless the pool is disabled."""
        if self._size:
            self._size += 1
            self._start_missing()

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer: the timeout, or ten times the slowest coupling so far."""
        return max(self.timeout, 10 * self.slowest)

    def submit(self, draw: OTDraw, buffer: SharedBuffer) -> int:
        """Add an OT batch to the queue; returns its ticket. `poll` sends it to a worker."""
        ticket = next(self._tickets)
        self._due.add(ticket)
        self._queue[ticket] = PoolTask(ticket, draw, buffer)
        return ticket

    def take(self, ticket: int) -> Solution | None:
        """Wait for the answer; None if no worker had started the task or its worker failed."""
        deadline = time.monotonic() + self.patience
        if ticket not in self._answers:
            self.poll()
        holder = self._holder(ticket)
        while holder in self.workers and ticket not in self._answers:
            left = deadline - time.monotonic()
            if left > 0:
                wait([worker.connection for worker in self.workers], left)
                self.poll()
            else:
                self._lose(holder, f"did not answer within {self.patience:.3g} s")
        answer = self._answers.pop(ticket, PoolAnswer())
        if answer.error:
            log.warning("an OT worker failed (%s); the training process solves this coupling", answer.error)
        for category, text in answer.warned:  # as if the trainer had solved it
            warnings.warn(text, category, stacklevel=2)
        return answer.solution

    def cancel(self, ticket: int) -> bool:
        """Drop a task; returns whether its buffer is free, which it is not while a worker may write to it."""
        self._due.discard(ticket)
        self._queue.pop(ticket, None)
        self._answers.pop(ticket, None)
        return self._holder(ticket) is None

    def poll(self) -> None:
        """Without waiting: read answers, replace workers that have ended, and send queued tasks."""
        for worker in list(self.workers):
            try:
                while worker in self.workers and worker.connection.poll():
                    self._read(worker)
            except (EOFError, OSError):
                self._lose(worker)
            if not worker.ready and worker in self.workers and time.monotonic() - worker.started > BOOT_SECONDS:
                self._lose(worker, f"did not start within {BOOT_SECONDS:.3g} s")
        self._start_missing()
        for ticket in sorted(self._queue):
            free = [worker for worker in self.workers if worker.ready and len(worker.held) < DEPTH]
            if not free:
                break
            worker = min(free, key=lambda worker: len(worker.held))
            try:
                worker.send(self._queue.pop(ticket))
            except OSError:
                self._lose(worker)

    def wait_until_ready(self) -> None:
        """Wait until every worker has started."""
        while not all(worker.ready for worker in self.workers):
            wait([worker.connection for worker in self.workers], 1.0)
            self.poll()

    def close(self) -> None:
        """End every worker. In a forked copy of the trainer, which shares its memory, the workers stay alive."""
        self._size = 0
        if os.getpid() == self._owner:
            for worker in self.workers:
                worker.end()
        for collection in (self.workers, self._due, self._queue, self._answers):
            collection.clear()

    def _read(self, worker: WorkerProcess) -> None:
        message = worker.connection.recv()
        if message == HELLO:
            worker.connection.send_bytes(self._flow)
            worker.started = time.monotonic()  # it may have waited for a busy trainer
            return
        if message == READY:
            worker.ready = True
            return
        ticket, error, numbers, warned = message
        if ticket == UNUSABLE:
            self._disable(f"a worker cannot load the flow ({error}); define its classes in a module, not in the script")
            return
        task = worker.held.pop(ticket)
        self._faults = 0
        if ticket not in self._due:
            return
        if numbers is None:
            self._answers[ticket] = PoolAnswer(error=error)
            return
        solution = Solution.restored(task.buffer["x0"].clone(), numbers)
        self.slowest = max(self.slowest, solution.seconds)
        self._answers[ticket] = PoolAnswer(solution, warned=warned)

    def _lose(self, worker: WorkerProcess, why: str = "") -> None:
        """Remove a worker that has ended or failed; its tasks return to the queue."""
        self.workers.remove(worker)
        ended = worker.end(0.0 if why else 1.0)  # the connection closes a moment before the process ends
        self._queue.update({ticket: task for ticket, task in worker.held.items() if ticket in self._due})
        self._faults += 1
        busy = ", ".join(str(task.draw.index) for task in worker.held.values())
        log.warning(
            "OT worker %d %s%s; the training process solves couplings that are due",
            worker.process.pid,
            why or ended,
            f" while solving OT batch {busy}" if busy else "",
        )
        if self._faults >= FAULTS:
            self._disable(f"{FAULTS} workers in a row were lost; see their messages and check the memory limit")

    def _disable(self, why: str) -> None:
        log.warning("OT workers are disabled, the training process solves every coupling: %s", why)
        self._size = 0
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _start_missing(self) -> None:
        while len(self.workers) < self._size:
            try:
                self.workers.append(WorkerProcess(self.timeout))
            except (OSError, ValueError) as error:  # ValueError: the system cannot pass file descriptors on
                self._disable(f"no worker could be started ({error})")

    def _holder(self, ticket: int) -> WorkerProcess | None:
        return next((worker for worker in self.workers if ticket in worker.held), None)


def _without_caches(part: Any) -> Any:
    """A copy of a component without cached values, which may be on a GPU."""
    if is_dataclass(part) and not isinstance(part, type):
        return type(part)(**{f.name: _without_caches(getattr(part, f.name)) for f in fields(part) if f.init})
    return part


def _message(content: Any) -> bytes:
    """The bytes that Connection.send would write, but with tensors by value: torch's way needs a thread."""

    class Plain(ForkingPickler):
        _extra_reducers: dict[type, Any] = {}  # noqa: RUF012

    buffer = io.BytesIO()
    Plain(buffer).dump(content)
    return buffer.getvalue()


def _environment() -> dict[str, str]:
    """The environment of a worker, which uses one thread and no GPU."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": ""}
