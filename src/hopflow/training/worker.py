"""The worker: a process that couples OT batches beside the training step.

It is started as a fresh interpreter, not through multiprocessing: a spawned child would run the user's script again
unless that is guarded by `if __name__ == "__main__"`, and a forked one may not touch torch's threads or CUDA.
"""

import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import torch

from ..flow import Flow
from .crossings import wait_for_arrival
from .problems import Draw, posed
from .sheets import Sheet
from .signals import DEADLY

HELLO, READY = "hello", "ready"  # torch is imported; the flow is read
UNUSABLE = -1  # in place of a ticket: the flow itself could not be read

PAUSE = 0.0005
"""Seconds between two looks at a matrix that is on its way: little of a core, and of a step."""

Warned = tuple[tuple[type[Warning], str], ...]


def main() -> None:
    """Couple what comes in until the trainer closes the connection or is gone."""
    connection, trainer = Connection(int(sys.argv[1])), os.getppid()
    for number in DEADLY:  # sent to all processes of a job; the trainer saves, and closes its workers
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        serve(connection, trainer)
    except (EOFError, OSError):
        return  # the trainer has closed its end
    finally:
        with suppress(OSError):  # the empty folder that it was started in, where the trainer was killed
            Path.cwd().rmdir()


def serve(connection: Connection, trainer: int) -> None:
    connection.send(HELLO)
    try:
        flow, settings = connection.recv()
    except (ImportError, AttributeError) as error:
        # a class of the user's main script: a worker has another main module
        connection.send((UNUSABLE, f"{type(error).__name__}: {error}", None, ()))
        return
    adopt(settings)
    connection.send(READY)
    while True:
        # a process that the trainer forked may hold its end open, so its death is not always the end of the stream
        while not connection.poll(1.0):
            if os.getppid() != trainer:
                return
        ticket, draw, layout = connection.recv()
        sheet = Sheet(layout, recv_handle(connection))
        wait_for_arrival(sheet, lambda: pause(trainer))
        connection.send((ticket, *answer(flow, draw, sheet)))


def pause(trainer: int) -> None:
    """A moment, unless the trainer is gone."""
    if os.getppid() != trainer:
        raise EOFError
    time.sleep(PAUSE)


def answer(flow: Flow, draw: Draw, sheet: Sheet) -> tuple[str, tuple[float, ...] | None, Warned]:
    """(error, numbers, warnings); the source rows are on the sheet."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # the trainer's filters decide which are shown
        try:
            solution = posed(draw, sheet).solve(flow)
            sheet["x0"].copy_(solution.x0)
        except Exception as error:  # whatever it is, the trainer meets it again when it solves in place
            return f"{type(error).__name__}: {error}", None, ()
        finally:
            sheet.close()
    return "", solution.numbers, tuple((_built_in(w.category), str(w.message)) for w in caught)


def _built_in(category: type[Warning]) -> type[Warning]:
    """The nearest kind that every process knows."""
    return next(kind for kind in category.__mro__ if kind.__module__ == "builtins")


def torch_settings() -> dict[str, Any]:
    """The trainer's settings of torch that can change the bits of a cost."""
    return {
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def adopt(settings: dict[str, Any]) -> None:
    torch.set_default_dtype(settings["dtype"])
    torch.set_float32_matmul_precision(settings["precision"])
    torch.use_deterministic_algorithms(settings["deterministic"])


if __name__ == "__main__":
    main()
