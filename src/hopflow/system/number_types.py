"""Whether an argument is a number of the right kind, checked before it is compared with a range."""

from numbers import Integral, Real


def is_integer(value: object) -> bool:
    """Whether a value is an integer (of Python or numpy), not True or False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number (of Python or numpy), not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool)
