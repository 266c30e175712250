"""Devices: where a run computes, and what it holds there."""

import sys

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


KINDS = ("cpu", "cuda", "mps", "xpu")
"""Devices that torch calculates on; it knows more names, such as meta, on which nothing is."""


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
