"""Numbers as text: each with its error where it has one."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, PlainSerializer

from ..estimate import known as known_or_none

GREATEST = 1e150
"""The square of a larger number is not finite."""
Error = Annotated[
    float, BeforeValidator(lambda error: math.nan if error is None else error), PlainSerializer(known_or_none)
]
"""A standard error that is NaN where it is unknown, and null in a file."""


def measured(value: int | float, error: int | float | None, n: int | None = None, unit: str = "") -> str:
    """24.31 ± 0.53 (n = 64), with two digits of the error; 24.31 ± ? where the error is unknown."""
    if math.isinf(value):
        return "infinite" if n is None else f"infinite (n = {n:,})"
    error = error_of(error, n)
    digits = _digits(value, error if known(error) else 0)
    if abs(value) >= 1e7:
        said = f"{value:.3g} ± {f'{error:.1g}' if known(error) else '?'}"
    else:
        said = f"{value:,.{digits}f} ± {f'{error:,.{digits}f}' if known(error) else '?'}"
    said += f" {unit}" if unit else ""
    return said if n is None else f"{said} (n = {n:,})"


def error_of(error: int | float | None, n: int | None) -> int | float | None:
    """The standard error over n values, or None if it is unknown: for n = 1, also where an older file holds 0."""
    return None if n == 1 and not error else error if known(error) else None


def known(error: int | float | None) -> TypeGuard[int | float]:
    """Whether there is an error; an unknown one is None or NaN."""
    return error is not None and math.isfinite(error)


def finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that can be drawn and written; JSON allows integers that no float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= GREATEST


def plain(value: int | float) -> str:
    """A number without an error."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}"


def lasting(seconds: int | float) -> str:
    """12 ms, 8.3 s, 5 min 6 s, 7 h 8 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def _digits(value: int | float, error: int | float) -> int:
    """Decimals that show two digits of the error, or four digits of a number without one."""
    if error > 0:
        return max(0, 1 - math.floor(math.log10(error)))
    if float(value).is_integer():
        return 0
    return max(0, 3 - math.floor(math.log10(abs(value))))


def json_ready(content: Any) -> Any:
    """The same data with null for numbers that are not finite, which JSON cannot hold."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: json_ready(value) for key, value in content.items()}
    return [json_ready(value) for value in content] if isinstance(content, list | tuple) else content
