"""PeakMemory: the additional memory that some code needs at most."""

import ctypes
import gc
import mmap
import threading
from pathlib import Path
from types import TracebackType

import torch

from ..runs.devices import memory_bytes

STATM = Path("/proc/self/statm")
INTERVAL = 0.002
"""Seconds between two measurements of the process; shorter peaks are missed."""


class PeakMemory:
    """`with PeakMemory(device) as peak: …`, then `peak.bytes`: tensors on a GPU, otherwise resident memory."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes = device, 0

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            _release_freed()
            self._before = self._highest = _resident()
            self._ended = threading.Event()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._highest = torch.cuda.max_memory_allocated(self.device)
        else:
            self._ended.set()
            self._watcher.join()
        self.bytes = max(0, self._highest - self._before)

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._highest = max(self._highest, _resident())


def _resident() -> int:
    """Resident bytes of this process, or the peak where the system does not report the current value."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return memory_bytes(torch.device("cpu"))
    return pages * mmap.PAGESIZE


def _release_freed() -> None:
    """Return freed memory to the system, where the C library can: reused memory would not show as growth."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
