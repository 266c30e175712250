"""Words: what commands take, options and settings written key=value."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..hints import did_you_mean

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE, as JSON.")]
Offline = Annotated[bool, typer.Option("--offline", help="Fetch nothing: use what is here, or say what is missing.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def parse_settings(pairs: list[str], readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Read `key=value` words; each key has a reader that turns its text into a value or raises ValueError."""
    chosen: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {pair!r}\nknown keys: {', '.join(readers)}")
        if key not in readers:
            hint = did_you_mean(key.lower(), readers) or f"known keys: {', '.join(readers)}"
            raise ValueError(f"unknown setting {key!r}\n{hint}")
        if key in chosen:
            raise ValueError(f"setting {key!r} is given twice")
        try:
            chosen[key] = readers[key](text)
        except ValueError as error:
            raise ValueError(f"setting {pair!r}: {error}") from None
    return chosen


def parse_keys(pairs: list[str]) -> dict[str, str]:
    """The words key=value of a command line, unread."""
    keys: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {pair!r}; `hopflow config keys` lists them")
        if key in keys:
            raise ValueError(f"setting {key!r} is given twice")
        keys[key] = text
    return keys


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63


def whole_number(text: str) -> int:
    if not _is_whole(text):
        raise ValueError("a whole number from 0 to 2^63 - 1 is expected, e.g. 0")
    return int(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(whole_number(part) for part in text.split(","))


def at_least_one(text: str) -> int:
    if not _is_whole(text) or int(text) < 1:
        raise ValueError("a whole number from 1 on is expected, e.g. 32")
    return int(text)


def real_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number is expected, e.g. 0.9")
    return value


def truth(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


def batch_size(text: str) -> int:
    if not (_is_whole(text) and 1 <= int(text) <= 1 << 15):
        raise ValueError("a number of rows from 1 to 32768 is expected, e.g. 512")
    return int(text)


def row_length(text: str) -> int:
    if not (_is_whole(text) and 1 <= int(text) <= 1 << 20):
        raise ValueError("a number of tokens from 1 to 1048576 is expected, e.g. 128")
    return int(text)


def share(text: str) -> float:
    """A reader of numbers from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also refuses nan
        raise ValueError("a share from 0 to 1 is expected, e.g. 0.02")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """A reader that takes one of these words, and says which is nearest to any other."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(did_you_mean(text.lower(), words) or f"one of {', '.join(words)} is expected")
        return text

    return read
