"""The text files of a corpus, their splits and their hash."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..system.progress import Progress
from .documents import is_readable, kind
from .file_hashes import file_sha256

SPLITS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev"), "test": ("test",)}
ALL = "all"


@dataclass(frozen=True)
class TextFiles:
    """The files of a corpus, as one set or as the splits train, valid and test."""

    name: str
    splits: Mapping[str, tuple[Path, ...]]

    @property
    def training(self) -> tuple[Path, ...]:
        """The files to train on; they are split further if no file is held out by its name."""
        if ALL in self.splits or "train" not in self.splits:
            return tuple(path for paths in self.splits.values() for path in paths)
        return self.splits["train"]

    @property
    def held_out(self) -> tuple[Path, ...]:
        """The files that are held out by their names; none if the files have no splits."""
        if "train" not in self.splits:
            return ()
        return self.splits.get("valid") or self.splits.get("test") or ()

    @property
    def files(self) -> tuple[Path, ...]:
        return self.training + self.held_out

    def only(self, split: str) -> "TextFiles":
        """Only one split, as `NAME:SPLIT` selects."""
        if split not in self.splits:
            raise ValueError(f"{self.name} has no split {split!r}; it has: {', '.join(self.splits)}")
        return TextFiles(f"{self.name}:{split}", {ALL: self.splits[split]})

    def sha256(self, cache: Path, progress: Progress) -> str:
        """The sha256 of a single file; of several files the hash of their roles, kinds and hashes, in order."""
        roles = [("train", path) for path in self.training] + [("held_out", path) for path in self.held_out]
        if len(roles) == 1:
            return file_sha256(roles[0][1], cache, progress)
        lines = [f"{role} {kind(path)} {file_sha256(path, cache, progress)}\n" for role, path in roles]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def from_path(path: Path, name: str | None = None) -> TextFiles:
    """A file, or all text files of a folder, as splits if every file name contains train, valid or test."""
    if not path.is_dir():
        return TextFiles(name or path.name, {ALL: (path,)})
    files = tuple(sorted(file for file in path.rglob("*") if file.is_file() and is_readable(file)))
    if not files:
        raise ValueError(f"{path} contains no text: files that end in .txt or .jsonl, also with .gz or .xz, are read")
    return TextFiles(name or path.name, _splits(files))


def _splits(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """The splits by the words in the file names, if every file belongs to exactly one."""
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for file in files:
        words = set(re.split(r"[^a-z0-9]+", file.name.lower()))
        splits = [split for split, names in SPLITS.items() if words & set(names)]
        if len(splits) != 1:
            return {ALL: files}
        found[splits[0]].append(file)
    return {split: tuple(paths) for split, paths in found.items() if paths}
