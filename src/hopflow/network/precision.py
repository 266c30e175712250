"""Precision: the float type that a network computes in, chosen here for training, sampling and bounds.

`bf16` means autocast to bfloat16: matrix products are in bfloat16; weights, the head and everything after it keep the
type of the weights.
"""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from ..kernels.support import supports_bf16
from ..system.autocast import autocast_is_on
from .network import Network, has_head

Module = TypeVar("Module", bound=nn.Module)
CHOICES = ("auto", "float32", "bf16")
AUTOCAST_NAMES = {"bfloat16": "bf16"}
"""How results name the autocast type; `bfloat16` in a result means that the weights themselves are bfloat16."""


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


@contextmanager
def use_precision(model: Network, device: torch.device, requested: str = "auto") -> Iterator[str]:
    """Compute in the requested precision inside; yields its name for results, as in `computed_dtype`.

    `auto` leaves an autocast of the caller unchanged. Otherwise it means bf16 on a device that supports it, for a
    network with features and a head; the head then still runs in the type of its weights. A network that is a single
    function stays in the type of its weights. `float32` turns autocast off; float64 weights stay in float64.
    """
    name = choose_precision(requested, device)
    inside = autocast_is_on(device)
    if requested == "auto" and (inside or not has_head(model)):
        context: AbstractContextManager[object] = nullcontext()
    elif name == "bf16":
        context = autocast(name, device)
    else:
        context = torch.autocast(device.type, enabled=False) if inside else nullcontext()
    with context:
        yield computed_dtype(model, device)


def computed_dtype(model: Network, device: torch.device) -> str:
    """The type of the network's matrix products: bf16 or float16 under autocast, otherwise that of its weights.

    `unknown` for a plain function.
    """
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    is_float64 = weight is not None and weight.dtype == torch.float64  # autocast leaves float64 alone
    if autocast_is_on(device) and not is_float64:
        return _short_name(torch.get_autocast_dtype(device.type))
    return "unknown" if weight is None else str(weight.dtype).removeprefix("torch.")


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
