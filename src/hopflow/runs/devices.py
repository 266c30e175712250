"""Devices: which one a run uses, its peak memory, and the number of CPU cores."""

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
"""Devices that torch can compute on; other names, such as meta, are refused."""


MOST_WORKERS = 8
"""The largest number of OT workers that a run starts by default."""


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the first available one of cuda, mps and cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.partition(":")[0] not in KINDS:
        raise ValueError(
            f"device must be auto or one of {', '.join(KINDS)}, got {name!r}. device=auto uses the best available one"
        )
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"device={name} cannot be used here: {reason}. device=auto uses the best available one"
        ) from None
    return device


def memory_bytes(device: torch.device) -> int:
    """Peak memory so far: of tensors on a GPU, of the process on other devices; 0 if the system does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def most_workers(device: torch.device) -> int:
    """The number of OT workers for the cores that a training step does not use, at least 1; a GPU step uses one."""
    return max(1, min(MOST_WORKERS, cores() - (torch.get_num_threads() if device.type == "cpu" else 1)))


def cores(root: Path = Path("/")) -> int:
    """The number of CPU cores this process may use: its affinity and the quota of its control groups limit it."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """Limits in whole cores by control groups: version 2, of this process's group and its parents; then version 1."""
    groups = root / "sys/fs/cgroup"
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for group in (groups / own, *(groups / parent for parent in Path(own).parents)):
        yield from _quota(_text(group / "cpu.max").split())
    yield from _quota([_text(groups / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])


def _quota(words: Sequence[str]) -> Iterator[int]:
    """The limit for a quota and a period in microseconds; without a limit the quota is "max" or -1."""
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
        yield max(1, int(words[0]) // int(words[1]))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
