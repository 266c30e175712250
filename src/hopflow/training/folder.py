"""Run folders: what a run is, kept beside its checkpoints, and one process at a time.

recipe.json              what is learned and from what, with its hash
checkpoints/step-N/      the newest ones; each loads as a model, too
metrics.jsonl .csv       one row per logged step
samples.jsonl            sequences drawn along the way
"""

import errno
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from .. import __version__, atomic, regular_file
from . import checkpoint

RECIPE = "recipe.json"
PARTS = {"identity": dict, "recipe": dict, "recipe_hash": str}
CHECKPOINTS, LOCK = "checkpoints", ".lock"
LARGEST_RECIPE = 1 << 28
"""Bytes; a tokenizer of one's own may be part of it."""

log = logging.getLogger("hopflow")


class RunFolder:
    """A folder that this process has claimed; the claim ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a run needs a folder, this is a file", str(path))
        if path.is_dir() and not is_run(path) and not all(_is_ours(f.name) for f in path.iterdir()):
            raise ValueError(
                f"{path} is a folder with other things in it, not a run: choose another one with out=FOLDER"
            )
        self._content = b""
        self._take(path)

    def _take(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = _claim(path)
        # an open folder is known by its handle, whatever its name becomes
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if hasattr(os, "O_DIRECTORY") else None
        if self._lock is not None:
            checkpoint.clean(self.checkpoints)
            atomic.remove_leftovers(path)

    def follow(self) -> None:
        """Find the folder after a rename, and make another one if it was deleted: a run that goes on needs one."""
        before = self.path
        if self._handle is not None and not self._is(before):
            renamed = _path_of(self._handle)
            if renamed is not None and self._is(renamed):
                self.path = renamed
                log.warning("%s was renamed: the run goes on in %s", before, renamed)
            else:
                self.close()
                self._take(next_free(before))
                log.warning("%s was deleted: the run goes on in %s", before, self.path)
        if self._content and not is_run(self.path):
            atomic.write(self.path / RECIPE, self._content)

    def _is(self, path: Path) -> bool:
        try:
            return self._handle is not None and os.path.samestat(os.fstat(self._handle), path.stat())
        except OSError:
            return False

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def settle(self, identity: Mapping[str, Any], recipe: Mapping[str, Any], may_change: set[str]) -> None:
        """Write what a new run is, or refuse to go on with another one.

        `identity` decides what is learned, key by key; `recipe` is all of it as it was asked for.
        """
        if is_run(self.path):
            _refuse_changes(self.path, read_recipe(self.path)["identity"], identity, may_change)
        else:
            self.write(identity, recipe)

    def write(self, identity: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
        """What the run is from now on: some of it may have changed."""
        content = {
            "format": "hopflow run",
            "version": 1,
            "hopflow": __version__,
            "recipe_hash": recipe_hash(identity),
            "identity": identity,
            "recipe": recipe,
        }
        self._content = (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
        atomic.write(self.path / RECIPE, self._content)

    def close(self) -> None:
        for handle in (self._lock, self._handle):
            if handle is not None:
                os.close(handle)
        self._lock = self._handle = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_ours(name: str) -> bool:
    """What a run that was killed before it had a recipe leaves behind."""
    return name == LOCK or (name.startswith(f".{RECIPE}.") and name.endswith(".tmp"))


def is_run(path: Path) -> bool:
    return (path / RECIPE).is_file()


def read_recipe(path: Path) -> dict[str, Any]:
    """What a run folder says it is."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such run", str(path))
    if not is_run(path):
        raise ValueError(f"{path} is not a run: it has no {RECIPE}. `hopflow train … out=FOLDER` makes one")
    try:
        content = json.loads(
            regular_file.read(path / RECIPE, LARGEST_RECIPE).decode(),
            object_pairs_hook=_once,
            parse_constant=_no_number,
        )
        if content["format"] != "hopflow run":
            raise ValueError(f"its format is {content['format']!r}")
        if not all(isinstance(content[part], kind) for part, kind in PARTS.items()):
            raise ValueError("a part of it is missing, or of another kind")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path / RECIPE} is damaged: {error}") from None
    return dict(content)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that is there twice means one thing to one reader and another to the next."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def recipe_hash(identity: Mapping[str, Any]) -> str:
    """16 hex digits that name what is learned, wherever it runs."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def next_free(path: Path) -> Path:
    """path, or path-2, path-3, … : the first that is not there yet."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _refuse_changes(path: Path, saved: Mapping[str, Any], asked: Mapping[str, Any], may_change: set[str]) -> None:
    keys = [key for key in {**saved, **asked} if saved.get(key) != asked.get(key) and key not in may_change]
    if keys:
        # what people type first; what follows from it, such as flow.source.kind, only where that is all
        keys = [key for key in keys if "." not in key] or keys
        lines = [f"{key}: {_short(saved.get(key))} there, {_short(asked.get(key))} now" for key in sorted(keys)]
        shown = lines[:3] + ([f"and {len(lines) - 3} more"] if len(lines) > 3 else [])
        way_out = "use --fresh (fresh=True) for a new folder, or another out=FOLDER"
        raise ValueError("\n".join([f"{path} holds another run:", *shown, way_out]))


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _path_of(handle: int) -> Path | None:
    """Where an open folder is now; None where the system does not say so."""
    try:
        return Path(f"/proc/self/fd/{handle}").readlink()
    except OSError:
        return None


def _claim(path: Path) -> int | None:
    """The handle of the folder's lock; None where locks do not work."""
    handle = atomic.open_lock(path / LOCK)
    ours = atomic.lock(handle)
    if ours:
        return handle
    os.close(handle)
    if ours is None:
        warnings.warn(
            f"files in {path} cannot be locked: make sure that no other process trains in it",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    raise ValueError(f"another process is training in {path}: wait for it, or choose another folder with out=FOLDER")
