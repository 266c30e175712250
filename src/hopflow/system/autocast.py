"""The float type that torch's autocast computes in."""

import torch
from torch import Tensor

AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Device types with autocast. Querying torch would break the graph of a compiled network."""


def autocast_is_on(device: torch.device) -> bool:
    """Whether autocast is enabled on this device."""
    return device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The type that autocast uses for this tensor; None if autocast is off, or for float64, which it leaves alone."""
    kind = x.device.type
    on = kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else None
