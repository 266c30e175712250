"""The process group of a run that torchrun started."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from ..runs.ot_batch import Share
from .settings import MOST

JOIN = "HOPFLOW_JOIN_SECONDS"
"""The environment variable with the seconds within which all processes of a run must have started."""
JOIN_SECONDS = 35.0
PATIENCE = timedelta(minutes=10)
"""How long a process waits for another one later on, which may be evaluating or saving."""


def launcher_number(name: str, default: int) -> int:
    """An environment variable that torchrun sets; the default if this process was started without it."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(
            f"the environment variable {name} must be an integer, as set by torchrun, got {text!r}. "
            f"To train in one process: unset {name}"
        )
    return int(text)


@contextmanager
def launched(device: str) -> Iterator[None]:
    """Join the process group if torchrun started this process; otherwise do nothing."""
    if launcher_number("WORLD_SIZE", 1) == 1 or dist.is_initialized():
        yield
        return
    gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(launcher_number("LOCAL_RANK", 0))
    _join("nccl" if gpus else "gloo")
    lost = False
    try:
        yield
    except RuntimeError as error:
        if not (lost := _is_lost(error)):
            raise
        raise ConnectionError(
            "another process of this run has ended; see its error message. The same command resumes from the last "
            "checkpoint."
        ) from error
    finally:
        if not lost:  # destroying the group would wait for the process that has ended
            dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until every process of the run gets here."""
    if Share.here().world > 1:
        dist.barrier()


def _join(backend: str) -> None:
    """Form the process group; ConnectionError if a process is missing when the time is up."""
    seconds = _join_seconds()
    end = time.monotonic() + seconds

    def left() -> timedelta:
        return timedelta(seconds=max(0.1, end - time.monotonic()))

    try:
        store, rank, world = next(rendezvous("env://", timeout=left()))
        store.set(f"joined/{rank}", "")
        store.wait([f"joined/{other}" for other in range(world)], left())  # NCCL alone would connect much later
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=left())
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise ConnectionError(
            f"not all {os.environ['WORLD_SIZE']} processes of this run joined within {seconds:g} s: one has ended or "
            f"cannot reach the others; see its error message. To wait longer, set {JOIN}=600."
        ) from error
    store.set_timeout(PATIENCE)
    _set_pg_timeout(PATIENCE)


def _join_seconds() -> float:
    value = os.environ.get(JOIN, str(JOIN_SECONDS))
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST:
        raise ValueError(f"{JOIN} must be a number of seconds above 0 and at most {MOST:,}, got {value!r}.")
    return seconds


def _is_lost(error: RuntimeError) -> bool:
    """Whether a process was lost. gloo has no class for its errors; their messages contain its name."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
