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
    """Where the tensors of one OT batch lie on a sheet: the data rows, the source rows that answer them, the table."""

    rows: int
    length: int
    table: tuple[int, int] | None = None
    dtype: torch.dtype = torch.float32

    @property
    def size(self) -> int:
        count = self.table[0] * self.table[1] if self.table else 0
        return 2 * self._block + count * self.dtype.itemsize

    @property
    def _block(self) -> int:
        # whole cache lines: a product of unaligned rows may round differently
        return -(-self.rows * self.length * torch.int64.itemsize // 64) * 64


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
        return self._rows(0)

    @property
    def x0(self) -> Tensor:
        """Written by the worker only, so that what it leaves half-written is never read."""
        return self._rows(self.layout._block)

    @property
    def table(self) -> Tensor | None:
        if self.layout.table is None:
            return None
        flat = torch.frombuffer(
            self._map,
            dtype=self.layout.dtype,
            count=self.layout.table[0] * self.layout.table[1],
            offset=2 * self.layout._block,
        )
        return flat.view(self.layout.table)

    def close(self) -> None:
        """Give up the descriptor; the memory itself goes with the last tensor that shows it."""
        self._closing()

    def _rows(self, offset: int) -> Tensor:
        count = self.layout.rows * self.layout.length
        flat = torch.frombuffer(self._map, dtype=torch.int64, count=count, offset=offset)
        return flat.view(self.layout.rows, self.layout.length)


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("hopflow", os.MFD_CLOEXEC)
    else:  # no Linux: a file that is unlinked as soon as it is opened
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
