"""Numbers, as a report writes them: never without their error where they have one."""

import math
from typing import TypeGuard

GREATEST = 1e150
"""Beyond it, squares are no numbers any more."""


def measured(value: int | float, error: int | float, n: int | None = None, unit: str = "") -> str:
    """24.31 ± 0.53 (n = 64): as many digits as the error can bear."""
    digits = _digits(value, error)
    said = f"{value:,.{digits}f} ± {error:,.{digits}f}" if abs(value) < 1e7 else f"{value:.3g} ± {error:.1g}"
    said += f" {unit}" if unit else ""
    return said if n is None else f"{said} (n = {n:,})"


def finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that can be drawn and written; JSON knows integers that no float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= GREATEST


def plain(value: int | float) -> str:
    """A number that has no error."""
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
    """Decimals that show two digits of the error; of a number without one four digits."""
    if error > 0:
        return max(0, 1 - math.floor(math.log10(error)))
    if float(value).is_integer():
        return 0
    return max(0, 3 - math.floor(math.log10(abs(value))))
