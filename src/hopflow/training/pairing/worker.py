"""The worker: a process that solves OT batches in parallel with the training step.

It is started as a fresh interpreter, not through multiprocessing: a spawned child would run the user's script again
unless it is guarded by `if __name__ == "__main__"`, and a forked one must not use torch's threads or CUDA.
"""

import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ...flow import Flow
from ...runs.ot_batch import OTDraw
from ..signals import OPTIONAL_SIGNALS
from .gpu_costs import wait_for_arrival
from .shared_memory import SharedBuffer, problem_in, receive_descriptor

HELLO, READY = "hello", "ready"  # torch is imported; the flow is loaded
UNUSABLE = -1  # in place of a ticket: the flow could not be loaded

PAUSE = 0.0005
"""Seconds between two checks whether a cost matrix has arrived: little compared with a step, and little CPU time."""

CaughtWarnings = tuple[tuple[type[Warning], str], ...]


def main() -> None:
    """Solve OT batches until the trainer closes the connection or has ended."""
    connection, trainer = Connection(int(sys.argv[1])), os.getppid()
    for number in OPTIONAL_SIGNALS:  # sent to all processes of a job; the trainer saves and then ends its workers
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        serve(connection, trainer)
    except (EOFError, OSError):
        return  # the trainer has closed the connection
    finally:
        with suppress(OSError):  # the empty working folder, if the trainer was killed
            Path.cwd().rmdir()


def serve(connection: Connection, trainer: int) -> None:
    """Receive the flow once, then answer one request after another."""
    connection.send(HELLO)
    try:
        flow, settings = connection.recv()
    except (ImportError, AttributeError) as error:
        # a class of the user's main script: the main module of a worker is another one
        connection.send((UNUSABLE, f"{type(error).__name__}: {error}", None, ()))
        return
    apply_torch_settings(settings)
    connection.send(READY)
    while True:
        # a process that the trainer forked may keep the connection open, so that it does not end with the trainer
        while not connection.poll(1.0):
            if os.getppid() != trainer:
                return
        ticket, draw, layout = connection.recv()
        buffer = SharedBuffer(layout, receive_descriptor(connection))
        wait_for_arrival(buffer, lambda: pause(trainer))
        connection.send((ticket, *answer(flow, draw, buffer)))


def pause(trainer: int) -> None:
    """Sleep for PAUSE seconds; raises EOFError if the trainer has ended."""
    if os.getppid() != trainer:
        raise EOFError
    time.sleep(PAUSE)


def answer(flow: Flow, draw: OTDraw, buffer: SharedBuffer) -> tuple[str, tuple[float, ...] | None, CaughtWarnings]:
    """(error, numbers, warnings); the source rows are written to the buffer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # the trainer's filters decide which are shown
        try:
            solution = problem_in(draw, buffer).solve(flow)
            buffer["x0"].copy_(solution.x0)
        except Exception as error:  # the trainer gets the same error when it solves the problem itself
            return f"{type(error).__name__}: {error}", None, ()
        finally:
            buffer.close()
    return "", solution.saved_numbers, tuple((_built_in(w.category), str(w.message)) for w in caught)


def _built_in(category: type[Warning]) -> type[Warning]:
    """The nearest base class that every process has."""
    return next(kind for kind in category.__mro__ if kind.__module__ == "builtins")


def torch_settings() -> dict[str, Any]:
    """The global settings of torch that can change the last bits of a cost."""
    return {
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def apply_torch_settings(settings: dict[str, Any]) -> None:
    """Set them in this process, as `torch_settings` returned them in the trainer."""
    torch.set_default_dtype(settings["dtype"])
    torch.set_float32_matmul_precision(settings["precision"])
    if settings["deterministic"] != torch.are_deterministic_algorithms_enabled():  # a call imports torch's compiler
        torch.use_deterministic_algorithms(settings["deterministic"])


if __name__ == "__main__":
    main()
