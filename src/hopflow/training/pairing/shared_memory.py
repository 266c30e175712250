"""Shared memory: tensors that the trainer and a worker process both map."""

import math
import mmap
import os
import socket
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from ...runs.ot_batch import CostedProblem, OTDraw, OTProblem
from ...transport.cost_matrix import CostMatrix

LINE = 64
"""Bytes of a cache line. Every tensor starts on one: a product of unaligned rows may round differently."""


@dataclass(frozen=True)
class TensorSpec:
    """The name, shape and dtype of a tensor in a buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def lines(self) -> int:
        return -(-math.prod(self.shape) * self.dtype.itemsize // LINE)


@dataclass(frozen=True)
class BufferLayout:
    """The tensors of a buffer, in order."""

    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, **tensors: Tensor | None) -> "BufferLayout":
        """The layout for tensors like these; None is left out."""
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return cls(tuple(TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in present.items()))

    @property
    def size(self) -> int:
        return LINE * max(1, sum(spec.lines for spec in self.specs))

    def offsets(self) -> Iterator[tuple[TensorSpec, int]]:
        at = 0
        for spec in self.specs:
            yield spec, at
            at += LINE * spec.lines


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a file descriptor to the process at the other end, without waiting for its answer.

    `multiprocessing.reduction.send_handle` waits for one from Python 3.14 on: it would read the worker's results.
    """
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        socket.send_fds(stream, [b"F"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """The file descriptor that `send_descriptor` has sent; EOFError if the other process has ended."""
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        _, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not descriptors:
        raise EOFError
    return descriptors[0]


class SharedBuffer:
    """Named tensors in anonymous shared memory.

    The memory has no name in any file system: the kernel frees it with the last process that maps it, so that nothing
    is left even after SIGKILL. Only the file descriptor is sent to a worker, never the contents.
    """

    def __init__(self, layout: BufferLayout, fd: int | None = None) -> None:
        self.layout = layout
        self.fd = _anonymous_file(layout.size) if fd is None else fd
        self._closing = weakref.finalize(self, os.close, self.fd)
        self._map = mmap.mmap(self.fd, layout.size)
        self._unpinning: weakref.finalize[[int, int], SharedBuffer] | None = None

    def __getitem__(self, name: str) -> Tensor:
        for spec, at in self.layout.offsets():
            if spec.name == name:
                count = math.prod(spec.shape)
                return torch.frombuffer(self._map, dtype=spec.dtype, count=count, offset=at).view(spec.shape)
        raise KeyError(name)

    def get(self, name: str) -> Tensor | None:
        return self[name] if any(spec.name == name for spec in self.layout.specs) else None

    def pin(self) -> bool:
        """Pin the memory, once, so that a GPU can copy to it asynchronously; False if that is not possible."""
        if self._unpinning is None:
            start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
            if not _pin(start, self.layout.size):
                return False
            self._unpinning = weakref.finalize(self, _unpin, start, os.getpid())
        return True

    def close(self) -> None:
        """Close the file descriptor; the memory is freed with the last tensor that uses it."""
        if self._unpinning:
            self._unpinning()
        self._closing()


def problem_in(draw: OTDraw, buffer: SharedBuffer) -> OTProblem | CostedProblem:
    """The OT problem that a buffer holds; the source rows of its solution are written to the entry "x0"."""
    if buffer.get("pairwise") is None:
        return OTProblem(draw, buffer["x1"], buffer.get("group"), buffer.get("table"))
    costs = CostMatrix(buffer["pairwise"], buffer["rows"], buffer["columns"])
    return CostedProblem(draw, buffer["source"], costs, buffer.get("group"))


def _pin(start: int, size: int) -> bool:
    try:
        if int(torch.cuda.cudart().cudaHostRegister(start, size, 0)) == 0:
            return True
    except (RuntimeError, AssertionError):  # torch without CUDA
        return False
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # clears CUDA's last error, which the next launch would raise otherwise
    return False


def _unpin(start: int, owner: int) -> None:
    """Unpin after all copies have ended. A forked copy of the trainer has pinned nothing."""
    if os.getpid() == owner:
        with suppress(RuntimeError):
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(start)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("hopflow", os.MFD_CLOEXEC)
    else:  # not Linux: a file that is unlinked as soon as it is open
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
