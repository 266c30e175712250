"""Labels by name: the names that data gives to the numbers of labels."""

import re
from collections.abc import Sequence

from ..system.hints import did_you_mean
from .network import NO_LABEL, label_count

MOST_LISTED = 12
"""Names of labels that a message shows."""


def check_names(model: object, names: Sequence[str]) -> None:
    """Raise a ValueError if there are more names than the network has labels, or two equal ones."""
    count = label_count(model)
    if count is not None and len(names) > count:
        raise ValueError(f"label_names has {len(names)} names, but the network has {count} labels")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"label_names must be different, got {twice!r} twice")


def label_number(word: str, names: Sequence[str], count: int) -> int:
    """The number of the label that a word names, by its name or its number; -1 is no label."""
    if word in names:
        return list(names).index(word)
    if re.fullmatch(r"-?\d{1,9}", word, re.ASCII) and NO_LABEL <= int(word) < count:
        return int(word)
    known = listed(names) if names else f"0 to {count - 1}"
    hint = did_you_mean(word, names)
    raise ValueError(f"label={word} is unknown; " + (f"{hint} " if hint else "") + f"labels are {known}; -1: no label")


def listed(names: Sequence[str]) -> str:
    """Names in one line, at most 12 of them."""
    return ", ".join(names[:MOST_LISTED]) + (
        f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    )
