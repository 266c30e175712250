"""What hopflow asks of a network.

Any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens will do; a mask is then never predicted. Where
a network also offers `features(xt, t) -> (B, L, D)` and `head(features)`, `Scores.from_network` and `Reader` need no
full logits.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Network = Callable[..., Tensor]
Module = TypeVar("Module", bound=nn.Module)
AUTOCAST = ("cpu", "cuda", "mps", "xpu")
"""Devices that know autocast; torch can be asked, but its compiler stumbles over the question."""
NARROW = (torch.bfloat16, torch.float16)
"""Types that a GPU multiplies ten times as fast as float32."""


_lock = Lock()
_at_rest: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""How many rest each part by now, and the mode that the first of them found it in."""


@contextmanager
def resting(model: Network) -> Iterator[None]:
    """No gradients and no dropout inside; every part of a module is left in the mode it was found in.

    By whoever leaves last: two threads may draw from one network at a time.
    """
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    with _lock:
        for part in parts:
            count, found = _at_rest.get(part, (0, part.training))
            _at_rest[part] = count + 1, found
            part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        with _lock:
            for part in parts:
                count, found = _at_rest.pop(part)
                if count > 1:
                    _at_rest[part] = count - 1, found
                else:
                    part.training = found


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


def has_head(model: Network) -> bool:
    """Whether a network offers `features` and a `head`, so that the head can run where and how it is needed."""
    return all(callable(getattr(model, name, None)) for name in ("features", "head"))


def narrow(x: Tensor) -> torch.dtype | None:
    """The type that autocast calculates in where this tensor lies, if it is on; float64 it leaves alone."""
    kind = x.device.type
    on = kind in AUTOCAST and torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else None


def narrowed(model: Module, dtype: torch.dtype) -> Module:
    """A copy for calls under autocast to this type: the same bits, without casting linear layers at every call.

    It shares all tensors but those of linear layers, and is of use while these do not change.
    """
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for layer in (part for part in twin.modules() if type(part) is nn.Linear):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
    return twin
