"""What hopflow asks of a network.

Any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens will do; a mask is then never predicted. Where
a network also offers `features(xt, t) -> (B, L, D)` and `head(features)`, `Scores.from_network` and `Reader` need no
full logits.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = Callable[..., Tensor]
Module = TypeVar("Module", bound=nn.Module)
AUTOCAST = ("cpu", "cuda", "mps", "xpu")
"""Devices that know autocast; torch can be asked, but its compiler stumbles over the question."""
NARROW = (torch.bfloat16, torch.float16)
"""Types that a GPU multiplies ten times as fast as float32."""


@contextmanager
def resting(model: Network) -> Iterator[None]:
    """No gradients and no dropout inside; every part of a module is left in the mode it was found in."""
    modes = {part: part.training for part in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        for part in modes:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():
            part.training = training


def clock_dtype(model: Network, plain: torch.dtype = torch.float32) -> torch.dtype:
    """The float type of the t a network is given: float64 for a float64 module, else float32, since bf16 has no clock.

    `plain` is that of a plain function; the oracle needs float64, its integrators would stumble over a rounded clock.
    """
    if not isinstance(model, nn.Module):
        return plain
    return torch.float64 if next(model.parameters(), torch.empty(0)).dtype == torch.float64 else torch.float32


def home(model: Network) -> torch.device:
    """Where a module's weights are; the CPU for a plain function."""
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    return next(model.parameters(), torch.empty(0)).device


def narrow(device: torch.device) -> torch.dtype | None:
    """The type that autocast calculates in, if it is on."""
    on = device.type in AUTOCAST and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def narrowed(model: Module, dtype: torch.dtype) -> Module:
    """A copy for calls under autocast to this type: the same bits, without casting linear layers at every call.

    It shares all tensors but those of linear layers, and is of use while these do not change.
    """
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for layer in (part for part in twin.modules() if type(part) is nn.Linear):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
    return twin
