"""The crew: the trainer's side of its workers. It never blocks without a limit, and keeps no thread."""

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
from multiprocessing.reduction import ForkingPickler, send_handle
from typing import Any

from ..child_process import PythonProcess, import_path
from ..flow import Flow
from .problems import Draw, Solution
from .sheets import Sheet
from .worker import HELLO, READY, UNUSABLE, Warned, torch_settings

log = logging.getLogger("hopflow")

BOOT_SECONDS = 120.0  # a worker imports torch first, from a slow disk perhaps
DEPTH = 2  # OT batches a worker holds, so that it goes on without waiting for the trainer to look
PROGRAM = (
    "import runpy, sys; sys.path[:] = sys.argv[2:]; "
    "runpy.run_module('hopflow.training.worker', run_name='__main__', alter_sys=True)"
)
"""What a worker runs. Its path is passed as arguments: PYTHONPATH would also be searched for a sitecustomize.py."""
FAULTS = 3  # in a row; then the machine, not the worker, is at fault


@dataclass(frozen=True)
class Task:
    """One request to couple. Its ticket is its own, so that an answer to an abandoned request finds no taker."""

    ticket: int
    draw: Draw
    sheet: Sheet


@dataclass(frozen=True)
class Answer:
    """A worker's solution, or why it has none, and what it warned of."""

    solution: Solution | None = None
    error: str = ""
    warned: Warned = ()


class Worker:
    """One process and the tasks that it holds."""

    def __init__(self, timeout: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # a stopped worker must not stop the trainer
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(timeout) + 1, 0))
            self.connection = Connection(ours.detach())
            self.process = PythonProcess(
                *("-c", PROGRAM, str(theirs.fileno()), *import_path()),
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,  # what the trainer prints may be read by a program
                env=_environment(),
                process_group=0,  # Ctrl-C is for the trainer, which then closes its workers
            )
        self.ready = False
        self.started = time.monotonic()
        self.held: dict[int, Task] = {}

    def give(self, task: Task) -> None:
        self.held[task.ticket] = task
        self.connection.send((task.ticket, task.draw, task.sheet.layout))
        send_handle(self.connection, task.sheet.fd, self.process.pid)

    def end(self, grace: float = 0.0) -> str:
        """End it and say how it ended. There is nothing to save: it writes to memory only."""
        code = self.process.end(grace)
        self.connection.close()
        if code is None:
            return "did not respond"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"stopped with exit code {code}"


class Crew:
    """Workers, the tasks that wait for one, and the answers that wait for the trainer."""

    def __init__(self, flow: Flow, workers: int, timeout: float) -> None:
        self.timeout = timeout
        self.slowest = 0.0
        self.workers: list[Worker] = []
        self._wanted = workers
        self._owner = os.getpid()
        self._faults = 0
        self._tickets = itertools.count()
        self._due: set[int] = set()
        self._queue: dict[int, Task] = {}
        self._answers: dict[int, Answer] = {}
        self._flow = b""
        try:
            self._flow = _message((_bare(flow), torch_settings()))
        except Exception as error:
            self._retire(f"the flow cannot be sent to another process ({type(error).__name__}: {error})")
        self._hire()

    @property
    def wanted(self) -> int:
        """Workers that there are, or will be once they have started; 0 after all were given up."""
        return self._wanted

    @property
    def ready(self) -> bool:
        """Whether every worker has started."""
        return len(self.workers) == self._wanted and all(worker.ready for worker in self.workers)

    def add(self) -> None:
        """Start one more worker, unless all were given up."""
        if self._wanted:
            self._wanted += 1
            self._hire()

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer: the timeout, or much longer than the slowest coupling so far."""
        return max(self.timeout, 10 * self.slowest)

    def submit(self, draw: Draw, sheet: Sheet) -> int:
        """Have this OT batch coupled; it is handed out at the next sweep."""
        ticket = next(self._tickets)
        self._due.add(ticket)
        self._queue[ticket] = Task(ticket, draw, sheet)
        return ticket

    def take(self, ticket: int) -> Solution | None:
        """The answer, waited for; None where it has to be solved in place: no worker had begun it, or one failed."""
        deadline = time.monotonic() + self.patience
        if ticket not in self._answers:
            self.sweep()
        holder = self._holder(ticket)
        while holder in self.workers and ticket not in self._answers:
            left = deadline - time.monotonic()
            if left > 0:
                wait([worker.connection for worker in self.workers], left)
                self.sweep()
            else:
                self._lose(holder, f"gave no answer for {self.patience:.3g} s")
        answer = self._answers.pop(ticket, Answer())
        if answer.error:
            log.warning("an OT worker failed (%s): this coupling is solved in place", answer.error)
        for category, text in answer.warned:  # as if it had been solved here
            warnings.warn(text, category, stacklevel=2)
        return answer.solution

    def forget(self, ticket: int) -> bool:
        """No answer is wanted any more; whether the sheet is free, which it is not while a worker may write to it."""
        self._due.discard(ticket)
        self._queue.pop(ticket, None)
        self._answers.pop(ticket, None)
        return self._holder(ticket) is None

    def sweep(self) -> None:
        """Without waiting: read what has come, notice the dead, fill their places, hand out what waits."""
        for worker in list(self.workers):
            try:
                while worker in self.workers and worker.connection.poll():
                    self._read(worker)
            except (EOFError, OSError):
                self._lose(worker)
            if not worker.ready and worker in self.workers and time.monotonic() - worker.started > BOOT_SECONDS:
                self._lose(worker, f"was not ready within {BOOT_SECONDS:.3g} s")
        self._hire()
        for ticket in sorted(self._queue):
            free = [worker for worker in self.workers if worker.ready and len(worker.held) < DEPTH]
            if not free:
                break
            worker = min(free, key=lambda worker: len(worker.held))
            try:
                worker.give(self._queue.pop(ticket))
            except OSError:
                self._lose(worker)

    def wait_until_ready(self) -> None:
        while not all(worker.ready for worker in self.workers):
            wait([worker.connection for worker in self.workers], 1.0)
            self.sweep()

    def close(self) -> None:
        """End every worker. A forked copy of the trainer has inherited the crew's memory, not its workers."""
        self._wanted = 0
        if os.getpid() == self._owner:
            for worker in self.workers:
                worker.end()
        for remembered in (self.workers, self._due, self._queue, self._answers):
            remembered.clear()

    def _read(self, worker: Worker) -> None:
        message = worker.connection.recv()
        if message == HELLO:
            worker.connection.send_bytes(self._flow)
            worker.started = time.monotonic()  # it may have waited for a trainer that was busy elsewhere
            return
        if message == READY:
            worker.ready = True
            return
        ticket, error, numbers, warned = message
        if ticket == UNUSABLE:
            self._retire(f"a worker cannot read the flow ({error}); define its classes in a module, not in the script")
            return
        task = worker.held.pop(ticket)
        self._faults = 0
        if ticket not in self._due:
            return
        if numbers is None:
            self._answers[ticket] = Answer(error=error)
            return
        solution = Solution.of(task.sheet["x0"].clone(), numbers)
        self.slowest = max(self.slowest, solution.seconds)
        self._answers[ticket] = Answer(solution, warned=warned)

    def _lose(self, worker: Worker, why: str = "") -> None:
        self.workers.remove(worker)
        ended = worker.end(0.0 if why else 1.0)  # the end of the stream comes a moment before that of the process
        self._queue.update({ticket: task for ticket, task in worker.held.items() if ticket in self._due})
        self._faults += 1
        busy = ", ".join(str(task.draw.index) for task in worker.held.values())
        log.warning(
            "OT worker %d %s%s; what is due is solved in place",
            worker.process.pid,
            why or ended,
            f" with OT batch {busy} in hand" if busy else "",
        )
        if self._faults >= FAULTS:
            self._retire(f"{FAULTS} workers in a row were lost; look at their messages and at the memory limit")

    def _retire(self, why: str) -> None:
        log.warning("no OT workers from now on, every coupling is solved in place: %s", why)
        self._wanted = 0
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _hire(self) -> None:
        while len(self.workers) < self._wanted:
            try:
                self.workers.append(Worker(self.timeout))
            except (OSError, ValueError) as error:  # ValueError: a system that cannot pass descriptors on
                self._retire(f"no worker could be started ({error})")

    def _holder(self, ticket: int) -> Worker | None:
        return next((worker for worker in self.workers if ticket in worker.held), None)


def _bare(part: Any) -> Any:
    """A component without the values it has cached, some of which may lie on a GPU."""
    if is_dataclass(part) and not isinstance(part, type):
        return type(part)(**{f.name: _bare(getattr(part, f.name)) for f in fields(part) if f.init})
    return part


def _message(content: Any) -> bytes:
    """As Connection.send would write it, but tensors by value: torch's own way needs a thread and named memory."""

    class Plain(ForkingPickler):
        _extra_reducers: dict[type, Any] = {}  # noqa: RUF012

    buffer = io.BytesIO()
    Plain(buffer).dump(content)
    return buffer.getvalue()


def _environment() -> dict[str, str]:
    """A worker uses one thread, and no GPU."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": ""}
