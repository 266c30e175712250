"""Store: tokenised text as flat files with a header, written once and mapped into memory ever after."""

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

from .. import atomic
from .file_hashes import file_sha256, record_sha256
from .pulse import Pulse
from .tokenizers import Ids, Tokenizer, canonical

FORMAT = 1
SPLITS = ("train", "test")
HEADER, TOKENIZER, COUNTS = "header.json", "tokenizer.json", "counts.bin"


class Damaged(ValueError):
    """A store that is not what its header says."""


@dataclass(frozen=True)
class Store:
    """A folder with the tokens of both splits, where their documents end, and how often each token occurs."""

    folder: Path
    header: dict[str, Any]
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: Path, pulse: Pulse | None = None) -> "Store":
        """Check the header, every size and every hash; a file that has not changed since it was hashed is not read."""
        if folder.is_dir() and not (folder / HEADER).exists():
            raise Damaged(f"{folder}: its header is missing")
        header = _read_json(folder / HEADER)
        claimed = header.pop("sha256", None)
        if claimed != hashlib.sha256(canonical(header)).hexdigest() or header.get("format") != FORMAT:
            raise Damaged(f"{folder}: its header is damaged")
        for name, size in header["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                raise Damaged(f"{path}: missing or not of {size} bytes")
        for name, sha256 in _hashes(header).items():
            if file_sha256(folder / name, _cache(folder), pulse or Pulse(None)) != sha256:
                raise Damaged(f"{folder / name}: changed since it was written")
        tokenizer = Tokenizer.from_json(_read_json(folder / TOKENIZER))
        if tokenizer.sha256 != header["tokenizer"]["sha256"]:
            raise Damaged(f"{folder}: its tokenizer is not the one in its header")
        return cls(folder, header, tokenizer)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.header["dtype"])

    def tokens(self, split: str) -> NDArray[Any]:
        return self._map(f"{split}.bin", self.dtype)

    def ends(self, split: str) -> NDArray[np.int64]:
        """Where each document ends, its end-of-text token included."""
        return self._map(f"{split}.ends", np.int64)

    def counts(self) -> NDArray[np.int64]:
        return np.fromfile(self.folder / COUNTS, np.int64)

    def _map(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        path = self.folder / name
        # an empty file cannot be mapped
        return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


class Writer:
    """Takes the tokens of both splits as they come, and keeps none of them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self.dtype = _dtype(tokenizer.size)
        self._files: dict[str, BufferedIOBase] = {
            f"{split}.{kind}": (folder / f"{split}.{kind}").open("wb") for split in SPLITS for kind in ("bin", "ends")
        }
        self._hashes = {name: hashlib.sha256() for name in self._files}
        self._counts = np.zeros(tokenizer.size, np.int64)
        self.tokens = dict.fromkeys(SPLITS, 0)
        self.documents = dict.fromkeys(SPLITS, 0)

    def add(self, split: str, ids: Ids, last: bool) -> None:
        """More of a document; `last` closes it, with the end-of-text token where there is one."""
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

    def _write(self, name: str, raw: bytes) -> None:
        self._files[name].write(raw)
        self._hashes[name].update(raw)

    def finish(self, about: dict[str, Any]) -> None:
        """Everything on disk, the header last."""
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


def open_or_build(folder: Path, build: Callable[[Path], None], pulse: Pulse) -> Store:
    """The store in this folder; where there is none, or a damaged one, it is built aside and then moved in place."""
    try:
        return Store.open(folder, pulse)
    except FileNotFoundError:
        pass
    except ValueError as error:
        pulse.say(f"{error}; preparing it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder, pulse):
        try:
            return Store.open(folder, pulse)  # another process has built it meanwhile
        except FileNotFoundError:
            pass
        except ValueError:
            shutil.rmtree(folder)
        with atomic.temporary_folder(folder) as temporary:
            build(temporary)
            _move(temporary, folder)
            for name, sha256 in _hashes(_read_json(folder / HEADER)).items():
                record_sha256(folder / name, sha256, _cache(folder))  # what was just written need not be read again
    return Store.open(folder, pulse)


def _cache(folder: Path) -> Path:
    """The cache that a store lies in, which also keeps the hashes of its files."""
    return folder.parents[1]


def _hashes(header: dict[str, Any]) -> dict[str, str]:
    """The sha256 of each file of numbers; stores of earlier versions know those of the tokens only."""
    return header.get("hashes") or {f"{split}.bin": header["splits"][split]["sha256"] for split in SPLITS}


def _move(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES) or not folder.is_dir():
            raise
        # without locks another process may have been quicker; it has built the same
    atomic.sync_folder(folder.parent)


@contextmanager
def _alone(folder: Path, pulse: Pulse) -> Iterator[None]:
    """One process builds a store; the others wait. Without locks two of them may do the same work twice."""

    def waiting() -> None:
        pulse.beat(lambda: "waiting for another process that prepares the same text")

    with atomic.locked(folder.with_name(f".{folder.name}.lock"), waiting) as ours:
        if ours:
            atomic.remove_leftovers(folder.parent, f".{folder.name}.*{atomic.SUFFIX}")
        yield


def _dtype(size: int) -> np.dtype[Any]:
    """The smallest that holds every id, in one byte order for all machines."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise Damaged(f"{path}: not JSON") from None
    if not isinstance(content, dict):
        raise Damaged(f"{path}: not a JSON object")
    return content
