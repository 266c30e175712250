"""Reading JSON that others may have written: huge integers and deep nesting are refused."""

import json
from collections.abc import Callable
from typing import Any

DIGITS = 20
"""Digits of the largest seed, 2^64 - 1."""


DEPTH = 200
"""Levels of nesting; files of hopflow have about ten."""
TOO_DEEP = f"it is nested more than {DEPTH} levels deep"


def loads(text: str | bytes, **options: Callable[..., Any]) -> Any:
    """The value of a JSON text; raises ValueError for integers of more than 20 digits and nesting beyond 200 levels.

    Python's own integers have no limit: such a number would pass every check of its type, and fail as a float. A value
    that is nested more deeply would fail in a function that calls itself.
    """
    try:
        value = json.loads(text, parse_int=_integer, **options)  # type: ignore[arg-type]
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level = [value]
    for _ in range(DEPTH):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return value
    raise ValueError(TOO_DEEP)


def _parts(value: Any) -> list[Any]:
    """The objects and lists in an object or list."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in values if isinstance(part, dict | list)]


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > DIGITS:
        raise ValueError(f"an integer has more than {DIGITS} digits: {digits[:DIGITS]}…")
    return int(digits)
