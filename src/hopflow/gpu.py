"""What there is beside torch where a tensor lies."""

from importlib.util import find_spec
from os import environ
from pathlib import Path
from shutil import which
from sysconfig import get_default_scheme, get_paths

import torch
from torch import Tensor


def missing() -> str | None:
    """What Triton needs to start a kernel and, by its own rule, does not find; None where all is there."""
    if find_spec("triton") is None:
        return "triton"
    named = environ.get("CC")
    if not any(map(which, ("gcc", "clang") if named is None else (named,))):
        return "a C compiler (gcc, clang, or the one that CC names)"
    scheme = get_default_scheme()
    header = Path(get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]) / "Python.h"
    return None if header.is_file() else f"the headers of this Python ({header})"


WORKS = missing() is None
"""Asked once: a compiled network would stumble over the question."""


def has_kernels(x: Tensor) -> bool:
    """Whether hopflow's Triton kernels run there: older devices hold too little at once for some of them."""
    return WORKS and knows_bf16(x.device)


def knows_bf16(device: torch.device) -> bool:
    """Whether this very device multiplies bfloat16 numbers itself, and does not emulate them."""
    return device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 8
