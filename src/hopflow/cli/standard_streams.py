"""Standard streams that survive a closed terminal or a broken pipe."""

import errno
import io
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any


def keep_open() -> None:
    """Open the null device in place of closed standard streams, and protect stdout and stderr.

    Characters that a terminal cannot show are printed as "?". stderr never raises; stdout raises if a result cannot be
    stored (for example on a full disk), but not if its reader is gone.
    """
    _open_closed_descriptors()
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _protected(sys.stdout, 1, _is_unread)
    sys.stderr = _protected(sys.stderr, 2, lambda error, file: True)


def _open_closed_descriptors() -> None:
    """Open descriptors 0 to 2: a file opened later would get such a number, and libraries would print into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one


def _is_unread(error: OSError, file: io.RawIOBase) -> bool:
    """Whether the reader is gone: a pipe or socket, or a terminal, whose error number a broken disk shares."""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(file.fileno()).st_mode)
    return isinstance(error, ConnectionError)


def _protected(stream: Any, number: int, forgives: Callable[[OSError, io.RawIOBase], bool]) -> Any:
    """The same stream, which drops its output after its reader is gone."""
    if stream is None:
        stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    buffer = getattr(stream, "buffer", None)
    below = getattr(buffer, "raw", buffer)
    if isinstance(below, _SurvivingFile):
        return stream
    if not isinstance(below, io.RawIOBase):  # a stream in memory, or of another program
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_SurvivingFile(stream, below, forgives)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=number == 2 or stream.isatty(),
    )


class _SurvivingFile(io.RawIOBase):
    """A file that passes its output to another one until that fails, then drops it."""

    def __init__(self, stream: Any, below: io.RawIOBase, forgives: Callable[[OSError, io.RawIOBase], bool]) -> None:
        self._stream = stream  # kept: it closes the file below when it is collected
        self._below, self._forgives, self._dead = below, forgives, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._below.fileno()

    def isatty(self) -> bool:
        return not self._dead and self._below.isatty()

    def write(self, data: Any, /) -> int:
        while not self._dead:
            try:
                written = self._below.write(data)
                if written is not None:
                    return written
                select.select([], [self], [])  # another program has made the pipe non-blocking, and it is full
            except OSError as error:
                if not self._forgives(error, self._below):
                    raise
                self._dead = True
        return len(data)
