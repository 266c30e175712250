"""Whether Triton and a device support hopflow's kernels."""

from importlib.util import find_spec
from os import environ
from pathlib import Path
from shutil import which
from sysconfig import get_default_scheme, get_paths

import torch
from torch import Tensor

from ..network.precision import supports_bf16

HALF_TYPES = (torch.bfloat16, torch.float16)
"""Types that a GPU multiplies about ten times as fast as float32."""


def missing_requirement() -> str | None:
    """What Triton needs to start a kernel and does not find, by its own rules; None if nothing is missing."""
    if find_spec("triton") is None:
        return "triton"
    named = environ.get("CC")
    if not any(map(which, ("gcc", "clang") if named is None else (named,))):
        return "a C compiler (gcc, clang, or the one that CC names)"
    scheme = get_default_scheme()
    header = Path(get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]) / "Python.h"
    return None if header.is_file() else f"the headers of this Python ({header})"


TRITON_WORKS = missing_requirement() is None
"""Checked once: the check would break the graph of a compiled network."""


def has_kernels(x: Tensor) -> bool:
    """Whether hopflow's Triton kernels run on this tensor's device: older GPUs have too little shared memory."""
    return TRITON_WORKS and supports_bf16(x.device)
