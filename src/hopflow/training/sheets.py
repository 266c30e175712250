"""Sheets: memory that the trainer and a worker both see."""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line, where every place begins: a product of unaligned rows may round differently."""


@dataclass(frozen=True)
class Place:
    """A tensor's name on a sheet, its shape and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def lines(self) -> int:
        return -(-math.prod(self.shape) * self.dtype.itemsize // LINE)


@dataclass(frozen=True)
class Layout:
    """The places of a sheet, one after another."""

    places: tuple[Place, ...]

    @classmethod
    def of(cls, **tensors: Tensor | None) -> "Layout":
        """A place like each of these; none for what is not there."""
        there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return cls(tuple(Place(name, tuple(tensor.shape), tensor.dtype) for name, tensor in there.items()))

    @property
    def size(self) -> int:
        return LINE * max(1, sum(place.lines for place in self.places))

    def offsets(self) -> Iterator[tuple[Place, int]]:
        at = 0
        for place in self.places:
            yield place, at
            at += LINE * place.lines


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
        self._unlocking: weakref.finalize[[int, int], Sheet] | None = None

    def __getitem__(self, name: str) -> Tensor:
        for place, at in self.layout.offsets():
            if place.name == name:
                count = math.prod(place.shape)
                return torch.frombuffer(self._map, dtype=place.dtype, count=count, offset=at).view(place.shape)
        raise KeyError(name)

    def get(self, name: str) -> Tensor | None:
        return self[name] if any(place.name == name for place in self.layout.places) else None

    def lock(self) -> bool:
        """Lock its pages, once, so that a GPU writes to them by itself while the trainer goes on; whether it can."""
        if self._unlocking is None:
            start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
            if not _lock(start, self.layout.size):
                return False
            self._unlocking = weakref.finalize(self, _unlock, start, os.getpid())
        return True

    def close(self) -> None:
        """Give up the descriptor; the memory itself goes with the last tensor that shows it."""
        if self._unlocking:
            self._unlocking()
        self._closing()


def _lock(start: int, size: int) -> bool:
    try:
        if int(torch.cuda.cudart().cudaHostRegister(start, size, 0)) == 0:
            return True
    except (RuntimeError, AssertionError):  # a torch without CUDA
        return False
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # takes the refusal off CUDA's record, where the next launch would find it
    return False


def _unlock(start: int, owner: int) -> None:
    """Nothing may be on its way any more. A forked copy of the trainer has locked nothing."""
    if os.getpid() == owner:
        with suppress(RuntimeError):
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(start)


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("hopflow", os.MFD_CLOEXEC)
    else:  # no Linux: a file that is unlinked as soon as it is opened
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
