"""The sha256 of files, cached: a file is read again only if it may have changed."""

import errno
import hashlib
import json
import os
import re
import time
from pathlib import Path

from ..system import atomic
from ..system.progress import Progress

YOUNG = 50_000_000
"""Nanoseconds in which two changes may get the same time stamp: a file younger than this is not cached."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def file_sha256(path: Path, cache: Path, progress: Progress) -> str:
    """The sha256 of a file; a cached one if size, times and inode are unchanged.

    The time of the inode's last change is included, because programs can set the modification time.
    """
    before = _state(path)
    known = _recorded(_note(before, cache))
    if {key: known.get(key) for key in before} == before and re.fullmatch("[0-9a-f]{64}", str(known.get("sha256"))):
        return str(known["sha256"])
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            done += len(chunk)
            progress.update(lambda: f"hashing {path.name}: {done / max(int(before['bytes']), 1):.0%}")  # noqa: B023
    if (after := _state(path)) == before:
        _record(after, digest.hexdigest(), cache)
    return digest.hexdigest()


def record_sha256(path: Path, sha256: str, cache: Path) -> None:
    """Cache the hash of a file, unless it is so young that a later change could have the same time stamp."""
    _record(_state(path), sha256, cache)


def _record(state: dict[str, str | int], sha256: str, cache: Path) -> None:
    if time.time_ns() - max(int(state["time"]), int(state["changed"])) < YOUNG:
        return
    note = _note(state, cache)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        # not durable: a folder may hold thousands of texts, and a damaged entry is ignored
        atomic.write(note, json.dumps({**state, "sha256": sha256}).encode(), durable=False)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        # a read-only cache: the file is hashed each time


def _state(path: Path) -> dict[str, str | int]:
    found: os.stat_result = path.stat()
    return {
        "path": str(path.resolve()),
        "bytes": found.st_size,
        "time": found.st_mtime_ns,
        "changed": found.st_ctime_ns,
        "inode": found.st_ino,
        "device": found.st_dev,
    }


def _note(state: dict[str, str | int], cache: Path) -> Path:
    return cache / "hashes" / f"{hashlib.sha256(str(state['path']).encode()).hexdigest()[:24]}.json"


def _recorded(note: Path) -> dict[str, object]:
    """The cached entry; empty if it is missing or damaged."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
