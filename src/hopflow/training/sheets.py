"""Sheets: memory that the trainer and a worker both see."""

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the tensors of one OT batch lie on a sheet: data rows, the source rows that answer, labels, the table."""

    rows: int
    length: int
    grouped: bool = False
    table: tuple[int, int] | None = None
    dtype: torch.dtype = torch.float32

    @property
    def size(self) -> int:
        count = self.table[0] * self.table[1] if self.table else 0
        return self.table_at + count * self.dtype.itemsize

    @property
    def x0_at(self) -> int:
        return _lines(self.rows * self.length)

    @property
    def group_at(self) -> int:
        return 2 * self.x0_at

    @property
    def table_at(self) -> int:
        return self.group_at + (_lines(self.rows) if self.grouped else 0)


class Sheet:
    """Tensors in anonymous shared memory.

    It has no name in any file system: the kernel frees it with the last process that maps it, so that not even
    kill -9 leaves something behind. Only its file descriptor travels to a worker, never its contents.
    """

    def __init__(self, layout: Layout, fd: int | None = None) -> None:
        self.layout = layout
        self.fd = _anonymous(layout.size) if fd is None else fd
        self._closing = weakref.finalize(self, os.close, self.fd)
        self._map = mmap.mmap(self.fd, layout.size)

    @property
    def x1(self) -> Tensor:
        return self._ids(0, self.layout.length)

    @property
    def x0(self) -> Tensor:
        """Written by the worker only, so that what it leaves half-written is never read."""
        return self._ids(self.layout.x0_at, self.layout.length)

    @property
    def group(self) -> Tensor | None:
        return self._ids(self.layout.group_at, 1)[:, 0] if self.layout.grouped else None

    @property
    def table(self) -> Tensor | None:
        if self.layout.table is None:
            return None
        count = self.layout.table[0] * self.layout.table[1]
        flat = torch.frombuffer(self._map, dtype=self.layout.dtype, count=count, offset=self.layout.table_at)
        return flat.view(self.layout.table)

    def close(self) -> None:
        """Give up the descriptor; the memory itself goes with the last tensor that shows it."""
        self._closing()

    def _ids(self, offset: int, width: int) -> Tensor:
        flat = torch.frombuffer(self._map, dtype=torch.int64, count=self.layout.rows * width, offset=offset)
        return flat.view(self.layout.rows, width)


def _lines(count: int) -> int:
    """Bytes for so many ids in whole cache lines: a product of unaligned rows may round differently."""
    return -(-count * torch.int64.itemsize // 64) * 64


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("hopflow", os.MFD_CLOEXEC)
    else:  # no Linux: a file that is unlinked as soon as it is opened
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
