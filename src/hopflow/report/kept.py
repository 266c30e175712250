"""Cache of what a report has drawn and coupled, in the folder of the run. Unknown errors are kept as NaN."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from .. import __version__, atomic, regular_file

FILE = "report-draws.json"
LARGEST = 1 << 30
"""Bytes of a file that is read."""
Found = TypeVar("Found")


def kept(folder: Path, name: str, key: Mapping[str, Any], kind: type[Found], make: Callable[[], Found]) -> Found:
    """What was made under this name with this key (weights and settings); made and kept if it is not there."""
    whole, wanted, form = _read(folder), {**key, "hopflow": __version__}, TypeAdapter(kind)
    there = whole.get(name)
    if isinstance(there, dict) and there.get("key") == wanted:
        try:
            return form.validate_python(there.get("found"))
        except ValidationError:
            pass  # of another version, or damaged
    found = make()
    whole[name] = {"key": wanted, "found": form.dump_python(found, mode="json")}
    _write(folder, whole)
    return found


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(regular_file.read(folder / FILE, LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(folder: Path, whole: dict[str, Any]) -> None:
    """Write the cache if the folder is writable; a report does not need it."""
    if os.access(folder, os.W_OK):
        atomic.write(folder / FILE, json.dumps(whole, separators=(",", ":"), allow_nan=False).encode())
