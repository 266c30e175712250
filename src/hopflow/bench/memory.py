"""Peak: how much more memory something takes while it runs."""

import ctypes
import gc
import mmap
import threading
from pathlib import Path
from types import TracebackType

import torch

from ..training.devices import memory_bytes

STATM = Path("/proc/self/statm")
EVERY = 0.002
"""Seconds between two looks at the process; what is shorter is missed."""


class Peak:
    """`with Peak(device) as peak: …`, then `peak.bytes`: tensors on a GPU, the process's resident memory elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes = device, 0

    def __enter__(self) -> "Peak":
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            _give_back()
            self._before = self._highest = _resident()
            self._over = threading.Event()
            self._watch = threading.Thread(target=self._look, daemon=True)
            self._watch.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._highest = torch.cuda.max_memory_allocated(self.device)
        else:
            self._over.set()
            self._watch.join()
        self.bytes = max(0, self._highest - self._before)

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self._highest = max(self._highest, _resident())


def _resident() -> int:
    """Bytes of this process that are in memory now; where no one tells, the most there ever were."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return memory_bytes(torch.device("cpu"))
    return pages * mmap.PAGESIZE


def _give_back() -> None:
    """Hand freed memory back, where the C library keeps it: otherwise what follows would seem to need none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
