"""The folder of a run, used by one process at a time.

recipe.json              the settings and the identity of the run, with its hash
checkpoints/step-N/      the newest checkpoints; each can be loaded by `from_pretrained`
metrics.jsonl .csv       one row per logged step
samples.jsonl            sequences sampled during training
report/                  pictures of a report on the run
"""

import errno
import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from .. import __version__
from ..system import atomic, bounded_json, regular_file
from . import checkpoint
from .identity import differences, network_settings, recipe_hash

RECIPE, VERSION = "recipe.json", 1
PARTS = {"identity": dict, "recipe": dict, "recipe_hash": str}
CHECKPOINTS, FIGURES, LOCK = "checkpoints", "report", ".lock"
LARGEST_RECIPE = 1 << 28
"""Bytes; a custom tokenizer may be part of it."""

log = logging.getLogger("hopflow")


class RunFolder:
    """A run folder that is locked by this process; the lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "out must be a folder, this is a file", str(path))
        if path.is_dir() and not is_run(path) and not all(_is_ours(f.name) for f in path.iterdir()):
            raise ValueError(f"{path} contains other files and is not a run: choose another folder with out=FOLDER")
        self._content = b""
        self._take(path)

    def _take(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = _lock_folder(path)
        # the handle identifies the folder after a rename
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if hasattr(os, "O_DIRECTORY") else None
        if self._lock is not None:
            checkpoint.clean(self.checkpoints)
            for folder in (path, path / FIGURES):
                atomic.remove_leftovers(folder)

    def follow(self) -> None:
        """Update the path after the folder was renamed; make another folder if it was deleted."""
        before = self.path
        if self._handle is not None and not self._is(before):
            renamed = _path_of(self._handle)
            if renamed is not None and self._is(renamed):
                self.path = renamed
                log.warning("%s was renamed: the run continues in %s", before, renamed)
            else:
                self.close()
                self._take(next_free(before))
                log.warning("%s was deleted: the run continues in %s", before, self.path)
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

    def settle(
        self,
        identity: Mapping[str, Any],
        recipe: Mapping[str, Any],
        may_change: set[str],
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> dict[str, Any]:
        """Write the recipe of a new run, or raise a ValueError if the folder contains a run with another identity.

        `identity` decides what is learned, key by key; `recipe` is every setting. `complete` adds to the identity of an
        older run the keys that it lacks. Returns the identity to write: without those keys, so that the run keeps its
        hash.
        """
        if not is_run(self.path):
            self.write(identity, recipe)
            return dict(identity)
        content = read_recipe(self.path)
        saved = content["identity"]
        if lines := differences(complete(saved), identity, may_change, network_settings(content["recipe"], recipe)):
            shown = lines[:3] + ([f"and {len(lines) - 3} more"] if len(lines) > 3 else [])
            way_out = "for a new folder use --fresh (in Python: hf.train(…, fresh=True)), or another out=FOLDER"
            raise ValueError("\n".join([f"{self.path} contains another run:", *shown, way_out]))
        return {key: value for key, value in identity.items() if key in saved}

    def write(self, identity: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
        """Write recipe.json: the identity and all settings of the run."""
        content = {
            "format": "hopflow run",
            "version": VERSION,
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
    """Whether a file may be left by a run that was killed before it had written its recipe."""
    return name == LOCK or (name.startswith(f".{RECIPE}.") and name.endswith(".tmp"))


def is_run(path: Path) -> bool:
    """Whether a folder contains a run."""
    return (path / RECIPE).is_file()


def read_recipe(path: Path) -> dict[str, Any]:
    """The content of recipe.json: "identity", "recipe", "recipe_hash" and versions."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such run", str(path))
    if not is_run(path):
        raise ValueError(f"{path} is not a run: it has no {RECIPE}. Make one with `hopflow train … out=FOLDER`")
    try:
        content = bounded_json.loads(
            regular_file.read(path / RECIPE, LARGEST_RECIPE).decode(),
            object_pairs_hook=_once,
            parse_constant=_no_number,
        )
        if content["format"] != "hopflow run":
            raise ValueError(f"its format is {content['format']!r}")
        if isinstance(content.get("version"), int) and content["version"] > VERSION:
            raise ValueError(f"it has format version {content['version']}, this hopflow reads up to {VERSION}: upgrade")
        if not all(isinstance(content[part], kind) for part, kind in PARTS.items()):
            raise ValueError(f"{', '.join(PARTS)} must be there, with the right types")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path / RECIPE} is damaged: {error}") from None
    return dict(content)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys, which JSON readers interpret differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def next_free(path: Path) -> Path:
    """The first of path, path-2, path-3, … that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _path_of(handle: int) -> Path | None:
    """The path of an open folder; None if the system does not provide it."""
    try:
        return Path(f"/proc/self/fd/{handle}").readlink()
    except OSError:
        return None


def _lock_folder(path: Path) -> int | None:
    """The handle of the folder's lock; None if the file system has no locks."""
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
