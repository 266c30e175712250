"""Reading JSON that others may have written: integers that no float can represent are refused."""

import json
from collections.abc import Callable
from typing import Any

DIGITS = 20
"""Digits of the largest seed, 2^64 - 1."""


def loads(text: str | bytes, **options: Callable[..., Any]) -> Any:
    """The value of a JSON text; raises ValueError for an integer with more than 20 digits, RecursionError if too deep.

    Python's own integers have no limit: such a number would pass every check of its type, and fail as a float.
    """
    return json.loads(text, parse_int=_integer, **options)  # type: ignore[arg-type]


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > DIGITS:
        raise ValueError(f"an integer has more than {DIGITS} digits: {digits[:DIGITS]}…")
    return int(digits)
