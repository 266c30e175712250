"""Precision: the float types that a device supports and that a network computes in.

`bf16` means autocast to bfloat16: matrix products are in bfloat16; weights, the head and everything after it keep the
type of the weights.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)
CHOICES = ("auto", "float32", "bf16")
AUTOCAST_NAMES = {"bfloat16": "bf16"}
"""How results name the autocast type; `bfloat16` in a result means that the weights themselves are bfloat16."""
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Device types with autocast. Querying torch would break the graph of a compiled network."""


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it (mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


def supports_bf16(device: torch.device) -> bool:
    """Whether this device multiplies bfloat16 numbers in hardware."""
    return device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 8


def choose_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 on a GPU that supports it, otherwise float32, which means the type of the weights."""
    if name not in CHOICES:
        raise ValueError(f"precision must be one of {', '.join(CHOICES)}, got {name!r}")
    if name != "auto":
        return name
    return "bf16" if supports_bf16(device) else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bfloat16 for `bf16`; nothing otherwise."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def autocast_is_on(device: torch.device) -> bool:
    """Whether autocast is enabled on this device."""
    return device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The type that autocast uses for this tensor; None if autocast is off, or for float64, which it leaves alone."""
    kind = x.device.type
    on = kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else None


def computed_dtype(model: object, device: torch.device) -> str:
    """The type of the network's matrix products: bf16 or float16 under autocast, otherwise that of its weights.

    `unknown` for a plain function.
    """
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    is_float64 = weight is not None and weight.dtype == torch.float64  # autocast leaves float64 alone
    if autocast_is_on(device) and not is_float64:
        return _short_name(torch.get_autocast_dtype(device.type))
    return "unknown" if weight is None else str(weight.dtype).removeprefix("torch.")


def at_least_float32(model: Module) -> Module:
    """The network with bf16 or float16 weights converted to float32 in place: its head would have three digits only."""
    halves = (torch.bfloat16, torch.float16)
    return model.float() if any(parameter.dtype in halves for parameter in model.parameters()) else model


def low_precision_copy(model: Module, dtype: torch.dtype) -> Module:
    """A copy whose linear layers are in `dtype`, for calls under autocast to it: same bits, no cast at every call.

    It shares all other tensors with the model, and is valid as long as the weights do not change.
    """
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for layer in (part for part in twin.modules() if type(part) is nn.Linear):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
    return twin


def _short_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return AUTOCAST_NAMES.get(name, name)
