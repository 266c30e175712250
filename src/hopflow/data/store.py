"""A store: tokenized text as flat files with a header, written once and memory-mapped afterwards."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..system import atomic
from ..system.progress import Progress
from .file_hashes import file_sha256, record_sha256
from .tokenizers import Ids, Tokenizer, canonical

FORMAT = 1
SPLITS = ("train", "test")
HEADER, TOKENIZER, COUNTS = "header.json", "tokenizer.json", "counts.bin"


class DamagedStore(ValueError):
    """A store whose files do not match its header."""


@dataclass(frozen=True)
class Store:
    """A folder with the tokens of both splits, where their documents end, and how often each token occurs."""

    folder: Path
    header: dict[str, Any]
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: Path, progress: Progress | None = None) -> "Store":
        """Open a store and verify every size and hash; a file that has not changed since it was hashed is not read."""
        if folder.is_dir() and not (folder / HEADER).exists():
            raise DamagedStore(f"{folder}: its header is missing")
        header = _read_json(folder / HEADER)
        claimed = header.pop("sha256", None)
        if claimed != hashlib.sha256(canonical(header)).hexdigest() or header.get("format") != FORMAT:
            raise DamagedStore(f"{folder}: its header is damaged")
        for name, size in header["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                raise DamagedStore(f"{path}: missing, or its size is not {size} bytes")
        for name, sha256 in _hashes(header).items():
            if file_sha256(folder / name, _cache(folder), progress or Progress(None)) != sha256:
                raise DamagedStore(f"{folder / name}: changed since it was written")
        tokenizer = Tokenizer.from_json(_read_json(folder / TOKENIZER))
        if tokenizer.sha256 != header["tokenizer"]["sha256"]:
            raise DamagedStore(f"{folder}: its tokenizer does not match its header")
        return cls(folder, header, tokenizer)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.header["dtype"])

    def tokens(self, split: str) -> NDArray[Any]:
        return self._map(f"{split}.bin", self.dtype)

    def ends(self, split: str) -> NDArray[np.int64]:
        """Where each document ends, its end-of-text token included."""
        return self._map(f"{split}.ends", np.int64)

    def column(self, split: str, name: str, dtype: DTypeLike) -> NDArray[Any] | None:
        """A further file of a split, such as its labels; None if there is none."""
        return self._map(f"{split}.{name}", dtype) if f"{split}.{name}" in self.header["files"] else None

    def counts(self) -> NDArray[np.int64]:
        return np.fromfile(self.folder / COUNTS, np.int64)

    def _map(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        path = self.folder / name
        # an empty file cannot be memory-mapped
        return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


class StoreWriter:
    """Writes the tokens of both splits to files, without keeping them in memory; `columns` are further files."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, columns: tuple[str, ...] = ()) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self.dtype = _dtype(tokenizer.size)
        self._files: dict[str, BufferedIOBase] = {
            f"{split}.{kind}": (folder / f"{split}.{kind}").open("wb")
            for split in SPLITS
            for kind in ("bin", "ends", *columns)
        }
        self._hashes = {name: hashlib.sha256() for name in self._files}
        self._counts = np.zeros(tokenizer.size, np.int64)
        self.tokens = dict.fromkeys(SPLITS, 0)
        self.documents = dict.fromkeys(SPLITS, 0)

    def add(self, split: str, ids: Ids, last: bool) -> None:
        """Write a part of a document; after its last part, the end-of-text token if there is one."""
        if last and self._tokenizer.end is not None:
            ids = np.append(ids, np.uint32(self._tokenizer.end))
        content = ids.astype(self.dtype)
        raw = content.tobytes()
        self._write(f"{split}.bin", raw)
        self.tokens[split] += content.size
        if split == "train":
            self._counts += np.bincount(ids, minlength=self._counts.size)
        if last:
            self.documents[split] += 1
            self._write(f"{split}.ends", np.int64(self.tokens[split]).tobytes())

    def add_column(self, split: str, name: str, raw: bytes) -> None:
        """Append to a further file of a split."""
        self._write(f"{split}.{name}", raw)

    def _write(self, name: str, raw: bytes) -> None:
        self._files[name].write(raw)
        self._hashes[name].update(raw)

    def finish(self, about: dict[str, Any]) -> None:
        """Write the tokenizer, the counts and, last, the header; flush everything to the disk."""
        (self._folder / TOKENIZER).write_bytes(canonical(self._tokenizer.to_json()))
        (self._folder / COUNTS).write_bytes(self._counts.tobytes())
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.close()
        files = {path.name: path.stat().st_size for path in sorted(self._folder.iterdir())}
        splits = {
            split: {
                "tokens": self.tokens[split],
                "documents": self.documents[split],
                "sha256": self._hashes[f"{split}.bin"].hexdigest(),
            }
            for split in SPLITS
        }
        tokenizer = {"name": self._tokenizer.name, "sha256": self._tokenizer.sha256, "size": self._tokenizer.size}
        header = {
            **about,
            "format": FORMAT,
            "dtype": self.dtype.str,
            "tokenizer": tokenizer,
            "splits": splits,
            "files": files,
            "hashes": {
                **{name: digest.hexdigest() for name, digest in self._hashes.items()},
                COUNTS: hashlib.sha256(self._counts.tobytes()).hexdigest(),
            },
        }
        header["sha256"] = hashlib.sha256(canonical(header)).hexdigest()
        (self._folder / HEADER).write_text(json.dumps(header, indent=2), encoding="utf-8")
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        atomic.sync_folder(self._folder)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def open_or_build(folder: Path, build: Callable[[Path], None], progress: Progress) -> Store:
    """The store in this folder; if it is missing or damaged, it is built in a temporary folder, which is renamed."""
    try:
        return Store.open(folder, progress)
    except FileNotFoundError:
        pass
    except ValueError as error:
        progress.write(f"{error}; preparing it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one_builds(folder, progress):
        try:
            return Store.open(folder, progress)  # another process has built it meanwhile
        except FileNotFoundError:
            pass
        except ValueError:
            shutil.rmtree(folder)
        with atomic.temporary_folder(folder) as temporary:
            build(temporary)
            _move(temporary, folder)
            for name, sha256 in _hashes(_read_json(folder / HEADER)).items():
                record_sha256(
                    folder / name, sha256, _cache(folder)
                )  # known from writing: no need to read the files again
    return Store.open(folder, progress)


def _cache(folder: Path) -> Path:
    """The cache folder of a store, which also contains the hashes of its files."""
    return folder.parents[1]


def _hashes(header: dict[str, Any]) -> dict[str, str]:
    """The sha256 of each binary file; stores of earlier versions have only those of the tokens."""
    return header.get("hashes") or {f"{split}.bin": header["splits"][split]["sha256"] for split in SPLITS}


def _move(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES) or not folder.is_dir():
            raise
        # without locks, another process may have built the same store meanwhile
    atomic.sync_folder(folder.parent)


@contextmanager
def _only_one_builds(folder: Path, progress: Progress) -> Iterator[None]:
    """Let one process build a store while others wait; without locks, two may do the same work."""

    def waiting() -> None:
        progress.update(lambda: "waiting for another process that prepares the same text")

    with atomic.locked(folder.with_name(f".{folder.name}.lock"), waiting) as ours:
        if ours:
            atomic.remove_leftovers(folder.parent, f".{folder.name}.*{atomic.SUFFIX}")
        yield


def _dtype(size: int) -> np.dtype[Any]:
    """The smallest integer type for all ids, little-endian on all machines."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise DamagedStore(f"{path}: not JSON") from None
    if not isinstance(content, dict):
        raise DamagedStore(f"{path}: not a JSON object")
    return content
