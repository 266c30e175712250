"""Precision: the float type that a network computes in, chosen here for training, sampling and bounds.

`bf16` is autocast to bfloat16: matrix products in bfloat16, weights and everything after the head in their own type.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from .gpu import knows_bf16
from .network import AUTOCAST, Network, has_head

CHOICES = ("auto", "float32", "bf16")
SHORT = {"bfloat16": "bf16"}
"""How a result names the type of autocast; weights that are bfloat16 themselves are `bfloat16`."""


def choose_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 on a GPU that has it, else float32: whatever the weights are in."""
    if name not in CHOICES:
        raise ValueError(f"precision must be one of {', '.join(CHOICES)}; got {name!r}")
    if name != "auto":
        return name
    return "bf16" if knows_bf16(device) else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def computing(model: Network, device: torch.device, asked: str = "auto") -> Iterator[str]:
    """The precision that was asked for, inside; its name for results, as in `computes_in`.

    `auto` leaves autocast of the caller as it is. Otherwise it is bf16 on a device that has it, for a network with
    features and a head, which then runs in its own type: logits in bf16 would keep three digits. A network that is one
    function of tokens stays in its own type. `float32` turns autocast off, and weights in float64 stay in float64.
    """
    name = choose_precision(asked, device)
    inside = device.type in AUTOCAST and torch.is_autocast_enabled(device.type)
    if asked == "auto" and (inside or not has_head(model)):
        context: AbstractContextManager[object] = nullcontext()
    elif name == "bf16":
        context = autocast(name, device)
    else:
        context = torch.autocast(device.type, enabled=False) if inside else nullcontext()
    with context:
        yield computes_in(model, device)


def computes_in(model: Network, device: torch.device) -> str:
    """The type of the network's products here: bf16 or float16 under autocast, else that of its weights.

    `unknown` of a plain function.
    """
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    wide = weight is not None and weight.dtype == torch.float64  # which autocast leaves alone
    if device.type in AUTOCAST and torch.is_autocast_enabled(device.type) and not wide:
        return _short(torch.get_autocast_dtype(device.type))
    return "unknown" if weight is None else str(weight.dtype).removeprefix("torch.")


def _short(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return SHORT.get(name, name)
