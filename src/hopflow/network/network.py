"""What hopflow expects of a network, and questions about one: device, float type, head.

A network is any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens. If it also has the methods
`features(xt, t) -> (B, L, D)` and `head(features) -> logits`, the head runs only at the positions that need it.
`NetworkCaller` makes the calls.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Network = Callable[..., Tensor]

_lock = Lock()
_evaluating: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""Modules in evaluation mode: by how many contexts, and whether the first of them found the module in training mode."""


@contextmanager
def evaluation_mode(model: Network) -> Iterator[None]:
    """Disable gradients and dropout inside; afterwards every submodule returns to the mode it was in.

    Several threads may use one network at the same time: the last one to leave restores the modes.
    """
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    with _lock:
        for part in parts:
            count, found = _evaluating.get(part, (0, part.training))
            _evaluating[part] = count + 1, found
            part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        with _lock:
            for part in parts:
                count, found = _evaluating.pop(part)
                if count > 1:
                    _evaluating[part] = count - 1, found
                else:
                    part.training = found


def time_dtype(model: Network, plain: torch.dtype = torch.float32) -> torch.dtype:
    """The float type of the times t that a network gets: float64 for a float64 module, otherwise float32.

    bf16 and float16 have too few digits for times. `plain` is the type for a plain function; the exact oracle passes
    float64 there, because its integrators need exact times.
    """
    if not isinstance(model, nn.Module):
        return plain
    return torch.float64 if next(model.parameters(), torch.empty(0)).dtype == torch.float64 else torch.float32


def device_of(model: Network) -> torch.device:
    """The device of a module's weights; the CPU for a plain function."""
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    return next(model.parameters(), torch.empty(0)).device


def embedding_table(model: Network) -> Tensor | None:
    """The token embeddings (V, D) that a network offers as its attribute `table`; None if it has none."""
    table = getattr(model, "table", None)
    return table if isinstance(table, Tensor) else None


def has_head(model: Network) -> bool:
    """Whether a network has the methods `features` and `head`, so that the head can run at chosen positions only."""
    return all(callable(getattr(model, name, None)) for name in ("features", "head"))


def is_autoregressive(model: object) -> bool:
    """Whether a network predicts each token from those before it, without a flow: its `is_autoregressive` is True."""
    return getattr(model, "is_autoregressive", False) is True
