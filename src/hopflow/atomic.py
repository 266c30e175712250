"""Atomic writes: a file is either its old self or its complete new self, whenever the power goes."""

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write to a neighbour, fsync, rename over `path`; a failure leaves the old file and no litter."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)  # a pipe or a device cannot be renamed over
        return
    path = path.resolve()  # follow a link rather than replace it
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a disk that is full does not say which file
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable; systems that cannot open a folder (Windows) keep their own order."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
