"""Sources: the files that a corpus is made of, their splits and their hash."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .file_hashes import file_sha256
from .pulse import Pulse
from .reading import is_readable, kind

SPLITS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev"), "test": ("test",)}
ALL = "all"


@dataclass(frozen=True)
class Source:
    """Named files, either all together or as the splits train, valid and test."""

    name: str
    splits: Mapping[str, tuple[Path, ...]]

    @property
    def training(self) -> tuple[Path, ...]:
        """What is trained on, and split further where nothing is held out by its name."""
        if ALL in self.splits or "train" not in self.splits:
            return tuple(path for paths in self.splits.values() for path in paths)
        return self.splits["train"]

    @property
    def held_out(self) -> tuple[Path, ...]:
        """The files that are held out by their names; none, where the source has no splits of its own."""
        if "train" not in self.splits:
            return ()
        return self.splits.get("valid") or self.splits.get("test") or ()

    @property
    def files(self) -> tuple[Path, ...]:
        return self.training + self.held_out

    def only(self, split: str) -> "Source":
        """One split alone, as `NAME:SPLIT` asks for."""
        if split not in self.splits:
            raise ValueError(f"{self.name} has no split {split!r}; it has: {', '.join(self.splits)}")
        return Source(f"{self.name}:{split}", {ALL: self.splits[split]})

    def sha256(self, cache: Path, pulse: Pulse) -> str:
        """Of a single file what `sha256sum` prints; of several the hash of their roles, kinds and hashes, in order."""
        roles = [("train", path) for path in self.training] + [("held_out", path) for path in self.held_out]
        if len(roles) == 1:
            return file_sha256(roles[0][1], cache, pulse)
        lines = [f"{role} {kind(path)} {file_sha256(path, cache, pulse)}\n" for role, path in roles]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def from_path(path: Path, name: str | None = None) -> Source:
    """A file, or a folder: all its readable files in order, as splits where their names say so."""
    if not path.is_dir():
        return Source(name or path.name, {ALL: (path,)})
    files = tuple(sorted(file for file in path.rglob("*") if file.is_file() and is_readable(file)))
    if not files:
        raise ValueError(f"{path} holds no text: files that end in .txt or .jsonl, or these with .gz or .xz, are read")
    return Source(name or path.name, _splits(files))


def _splits(files: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """By the words in the file names; only where every file belongs to one."""
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for file in files:
        words = set(re.split(r"[^a-z0-9]+", file.name.lower()))
        splits = [split for split, names in SPLITS.items() if words & set(names)]
        if len(splits) != 1:
            return {ALL: files}
        found[splits[0]].append(file)
    return {split: tuple(paths) for split, paths in found.items() if paths}
