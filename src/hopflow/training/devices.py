"""Devices: where a run computes, and what it holds there."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


KINDS = ("cpu", "cuda", "mps", "xpu")
"""Devices that torch calculates on; it knows more names, such as meta, on which nothing is."""


MOST_WORKERS = 8
"""OT workers that a run starts by itself."""


def choose_device(name: str) -> torch.device:
    """`auto` is the first of cuda, mps and cpu that is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.partition(":")[0] not in KINDS:
        raise ValueError(
            f"device={name} cannot be used here: it is none of {', '.join(KINDS)}. device=auto takes what there is"
        )
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device={name} cannot be used here: {reason}. device=auto takes what there is") from None
    return device


def memory_bytes(device: torch.device) -> int:
    """The most that was held so far: by tensors on a GPU, by the process elsewhere; 0 where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def most_workers(device: torch.device) -> int:
    """OT workers that find a core beside the training step, at least one: a GPU's step takes one core."""
    return max(1, min(MOST_WORKERS, cores() - (torch.get_num_threads() if device.type == "cpu" else 1)))


def cores(root: Path = Path("/")) -> int:
    """CPU cores that this process may use, by its affinity and by the quota of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """Whole cores by version 2 of control groups, of this process's group and those above it, and by version 1."""
    groups = root / "sys/fs/cgroup"
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for group in (groups / own, *(groups / parent for parent in Path(own).parents)):
        yield from _quota(_text(group / "cpu.max").split())
    yield from _quota([_text(groups / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])


def _quota(words: Sequence[str]) -> Iterator[int]:
    """From quota and period in microseconds; without a limit the quota is "max" or -1."""
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
        yield max(1, int(words[0]) // int(words[1]))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
