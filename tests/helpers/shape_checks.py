"""Check the shapes of arguments by beartype, except in code that torch.compile traces."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked; a traced isinstance of a jaxtyping annotation is always false."""
    strict = beartype(function)
    if isinstance(function, type):
        return strict

    @wraps(function)
    def call(*args: Any, **keys: Any) -> Any:
        return (function if torch.compiler.is_compiling() else strict)(*args, **keys)

    return call
