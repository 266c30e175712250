"""Record: what was ever measured of a run, in its folder: eval.json, and eval.md to read."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from .. import __version__, atomic, regular_file
from . import values
from .rows import Row, merged
from .table import page

FILE, PAGE, LOCK = "eval.json", "eval.md", ".eval.lock"
FORMAT, VERSION = "hopflow evaluation", 1
LARGEST = 1 << 30
"""Bytes of a file that is read."""


def read(folder: Path) -> list[Row]:
    """The rows of a run's folder; none where nothing was measured yet."""
    file = folder / FILE
    try:
        content = json.loads(regular_file.read(file, LARGEST))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        if content["version"] > VERSION:
            raise ValueError(f"it is of version {content['version']}, this hopflow reads up to {VERSION}")
        return [Row.from_json(row) for row in content["rows"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}\nmove it away to begin a new one") from None


def check(folder: Path) -> None:
    """Find out whether rows can be kept in a folder, before they are measured."""
    read(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            errno.EACCES, "rows are kept in the run's folder, which may not be written to", str(folder)
        )


def keep(folder: Path, rows: Sequence[Row], remarks: Sequence[str] = ()) -> list[Row]:
    """Add rows to what is there, one process after another; all of them are given back."""
    # two evaluations of one run may end at once: the second adds to what the first has written
    with atomic.locked(folder / LOCK):
        whole = merged(read(folder), list(rows))
        content = {"format": FORMAT, "version": VERSION, "hopflow": __version__}
        text = json.dumps({**content, "rows": [row.as_json() for row in whole]}, indent=1, allow_nan=False)
        values.keep(folder, whole)
        atomic.write(folder / FILE, f"{text}\n".encode())
        atomic.write(folder / PAGE, page(whole, remarks).encode())
    return whole
