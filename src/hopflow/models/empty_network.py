"""Networks without weights: shapes only, until the weights of a file take their place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NoInitialWeights(TorchFunctionMode):
    """Skips torch.nn.init: on the meta device it draws nothing, but imports torch's compiler, which takes a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks on the meta device: no memory is allocated, and no weight is drawn."""
    with torch.device("meta"), _NoInitialWeights():
        yield
