"""Durations in words."""

UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
"""A unit, its seconds, and the next smaller unit that is shown with it."""


def duration(seconds: int | float) -> str:
    """A duration in one or two units.

    >>> [duration(x) for x in (0.0123, 3.44, 12.3, 306, 25680, 813600)]
    ['12 ms', '3.4 s', '12 s', '5 min 6 s', '7 h 8 min', '9 d 10 h']
    """
    for unit, size, smaller, part in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {smaller}"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
