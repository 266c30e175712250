"""What there is beside torch where a tensor lies."""

from importlib.util import find_spec
from os import environ
from shutil import which

from torch import Tensor

WORKS = find_spec("triton") is not None and any(map(which, filter(None, (environ.get("CC"), "cc", "gcc", "clang"))))
"""Triton is there, and the C compiler that it needs to start a kernel."""


def has_kernels(x: Tensor) -> bool:
    """Whether hopflow's Triton kernels run there."""
    return x.device.type == "cuda" and WORKS
