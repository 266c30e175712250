"""Reading regular files only: a pipe does not block, and a file that is too large is not read."""

import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; a ValueError for other files."""
    # without O_NONBLOCK, opening a pipe waits for a writer
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            kind = _KINDS.get(stat.S_IFMT(state.st_mode), "a special file")
            raise ValueError(f"it is {kind}, but must be a regular file")
        if state.st_size > most:
            raise ValueError(f"it has {state.st_size:,} bytes, at most {most:,} are allowed")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(state.st_size)  # read(most) would reserve the memory for the largest file
    finally:
        os.close(handle)
