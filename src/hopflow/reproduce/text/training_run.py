"""Training runs of a study, which several processes may share."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...recipes import Built
from ...system import atomic
from ...system.progress import ProgressCallback


def train(built: Built, folder: Path, say: ProgressCallback, name: str = "") -> None:
    """Train in the folder; while another process trains there, wait for it.

    A run that was killed goes on from its last checkpoint, and one that is finished is not trained again.
    """
    name = name or folder.name
    with _alone(folder, lambda: say(f"waiting for another process, which trains {name}")):
        built.train(out=folder, logger=training_lines(name, built.recipe.steps, say))


def training_lines(name: str, steps: int, say: ProgressCallback) -> Callable[[Mapping[str, Any]], None]:
    """A logger of a training run: one line for each row of metrics."""
    return lambda row: say(f"{name}: step {row['step'] + 1} of {steps}, loss {row['loss']:.3f}")


@contextmanager
def _alone(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a run; `waiting` is called once if another process has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    calls = iter([waiting])
    with atomic.locked(_lock_file(folder, "training"), lambda: next(calls, lambda: None)()):
        yield


def is_trained_elsewhere(folder: Path) -> bool:
    """Whether another process trains in this folder now."""
    with _free(_lock_file(folder, "training")) as free:
        return not free


@contextmanager
def claimed(work: Path, name: str) -> Iterator[bool]:
    """Whether no other process that uses the folder `work` runs this cell; none can until the end of the block."""
    with _free(_lock_file(work / name, "cell")) as free:
        yield free


@contextmanager
def _free(lock_file: Path) -> Iterator[bool]:
    """Whether no other process holds a lock, which is not waited for; none can until the end of the block."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    handle = atomic.open_lock(lock_file)
    try:
        yield atomic.lock(handle) is not False
    finally:
        os.close(handle)


def _lock_file(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}.lock")
