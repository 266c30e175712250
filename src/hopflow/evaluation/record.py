"""eval.json and eval.md: all numbers that were measured of a run, in its folder."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..system import atomic, bounded_json, regular_file
from . import per_sequence
from .rows import Row, merged
from .table import page

FILE, PAGE, LOCK = "eval.json", "eval.md", ".eval.lock"
FORMAT, VERSION = "hopflow evaluation", 1
LARGEST = 1 << 30
"""Size limit of the file, in bytes."""


def read(folder: Path) -> list[Row]:
    """The rows of a run folder; empty where nothing was measured yet."""
    file = folder / FILE
    try:
        content = bounded_json.loads(regular_file.read(file, LARGEST))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        if content["version"] > VERSION:
            raise ValueError(f"its version is {content['version']}, and this hopflow reads up to {VERSION}")
        return [Row.from_json(row) for row in content["rows"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}\nmove it away to start a new one") from None


def check(folder: Path) -> None:
    """Raise an error if rows cannot be stored in a folder; call it before they are measured."""
    read(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            errno.EACCES, "the run folder is not writable, and eval.json is stored there", str(folder)
        )


def keep(folder: Path, rows: Sequence[Row], remarks: Sequence[str] = ()) -> list[Row]:
    """Add rows to the stored ones, under a lock, and return all of them."""
    # two evaluations of one run may end at the same time: the second adds to the rows of the first
    with atomic.locked(folder / LOCK):
        every = merged(read(folder), list(rows))
        content = {"format": FORMAT, "version": VERSION, "hopflow": __version__}
        text = json.dumps({**content, "rows": [row.as_json() for row in every]}, indent=1, allow_nan=False)
        per_sequence.keep(folder, every)
        atomic.write(folder / FILE, f"{text}\n".encode())
        atomic.write(folder / PAGE, page(every, remarks).encode())
    return every
