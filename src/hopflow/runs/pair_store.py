"""A pair store: pairs (x0, x1) that a trained flow has drawn, in files that are memory-mapped in training.

store.json               what the pairs are: seed, sampler, network, source, tokenizer and length, with its sha256
pairs-000000.bin …       the pairs of a chunk, then the sha256 of all bytes before it

Pair i depends on the seed and i only. A file is written under a temporary name and renamed, so that it is complete or
absent: a process may be killed at any moment, several processes may draw chunks of one store at the same time, and a
store grows by further files.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ..bounds.estimate import mean_and_error
from ..flow import Flow
from ..system import atomic, bounded_json, regular_file
from ..vocab import Vocab
from .identity import flatten
from .storage import to_plain

FORMAT, VERSION = "hopflow pairs", 1
HEADER, SHA256_BYTES = "store.json", 32
LARGEST_HEADER = 1 << 26
"""Bytes; the frequencies of a bag of words with a million tokens have about a third of it."""


class DamagedPairs(ValueError):
    """A store whose files are missing, changed or not of a pair store."""


@dataclass(frozen=True, eq=False)
class PairStore:
    """The pairs of a store, by index: row i has the label, if there are labels, then x0, then x1."""

    folder: Path
    header: dict[str, Any]
    chunks: tuple[NDArray[Any], ...]
    """Memory-mapped, each of `header["chunk"]` rows."""
    sha256: str
    """Of all rows in order; the same for every number of processes that drew them."""

    @classmethod
    def open(cls, folder: Path | str) -> "PairStore":
        """Open a store and verify the sha256 of every file; chunks after the first missing one are not used."""
        folder = Path(folder)
        header = read_header(folder)
        chunks: list[NDArray[Any]] = []
        while (file := chunk_file(folder, len(chunks))).exists():
            chunks.append(_verified(file, header))
        if not chunks:
            raise DamagedPairs(f"{folder} has no pairs yet: the same `hopflow rectify` command draws them")
        return cls(folder, header, tuple(chunks), _sha256(chunks))

    def first(self, chunks: int) -> "PairStore":
        """The store as it was when it had this number of chunks."""
        if chunks == len(self.chunks):
            return self
        return replace(self, chunks=self.chunks[:chunks], sha256=_sha256(self.chunks[:chunks]))

    def __len__(self) -> int:
        return len(self.chunks) * int(self.header["chunk"])

    @property
    def length(self) -> int:
        """Tokens per sequence."""
        return int(self.header["length"])

    @property
    def labelled(self) -> bool:
        return self.header["labels"] is not None

    def pairs(self, index: NDArray[np.int64]) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """(x0, x1) of these pairs."""
        rows = torch.from_numpy(self._rows(index))[:, int(self.labelled) :]
        return rows[:, : self.length], rows[:, self.length :]

    def labels(self, index: NDArray[np.int64]) -> Int[Tensor, " n"] | None:
        """The labels of these pairs; None if the store has none."""
        return torch.from_numpy(self._rows(index)[:, 0]) if self.labelled else None

    def distances(self) -> Float[Tensor, " n"]:
        """The number of positions at which x0 and x1 of each pair differ."""
        at = int(self.labelled)
        x0, x1 = slice(at, at + self.length), slice(at + self.length, None)
        return torch.from_numpy(np.concatenate([(c[:, x0] != c[:, x1]).sum(1) for c in self.chunks])).double()

    def hops(self) -> tuple[float, float]:
        """The mean Hamming distance of the pairs and its standard error: the hops of a perfect network at η = 0."""
        return mean_and_error(self.distances())

    def check(self, flow: Flow, length: int, tokenizer: str | None) -> None:
        """Raise a ValueError unless the pairs are of this flow's source, of this length and of this tokenizer."""
        vocab = Vocab(**self.header["vocab"])
        if vocab != flow.vocab:
            raise ValueError(
                f"{self.folder} has pairs of {vocab}, the flow has {flow.vocab}: use the text, tokens, source and "
                "masks of the run that drew the pairs"
            )
        if self.length != length:
            raise ValueError(
                f"{self.folder} has pairs of {self.length} tokens, but the run has length={length}: set "
                f"length={self.length}"
            )
        if None not in (tokenizer, self.header["tokenizer"]) and tokenizer != self.header["tokenizer"]:
            raise ValueError(
                f"{self.folder} has pairs of another tokenizer: use the text and tokens of the run it names"
            )
        if self.header["source"] != to_plain(flow.source):
            raise ValueError(
                f"{self.folder} has pairs of another source ({self.header['source']['kind']}) than the flow "
                f"({type(flow.source).__name__} of this text): use the source and the text of the run that drew them"
            )

    def check_labels(self, count: int, names: Sequence[str]) -> None:
        """Raise a ValueError unless the pairs have labels of a network with this many, and of data with these names."""
        if not self.labelled:
            raise ValueError(
                f"the network has labels, and the pairs of {self.folder} have none: draw them with a network with "
                f"labels (hopflow rectify RUN)"
            )
        if self.header["labels"] > count:
            raise ValueError(
                f"{self.folder} has pairs of {self.header['labels']} labels, the network has {count}: use the data of "
                f"the run that drew them"
            )
        own = self.header.get("label_names") or names
        if names and list(own) != list(names):
            raise ValueError(
                f"{self.folder} has pairs of the labels {', '.join(own)}, the data has {', '.join(names)}: use the "
                f"data of the run that drew them"
            )

    def _rows(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < len(self):
            raise IndexError(f"pairs have indices from 0 to {len(self) - 1}")
        number, place = np.divmod(index, int(self.header["chunk"]))
        out = np.empty((len(index), self.chunks[0].shape[1]), np.int64)
        for chunk in np.unique(number):
            chosen = number == chunk
            out[chosen] = self.chunks[chunk][place[chosen]]
        return out


def chunk_file(folder: Path, number: int) -> Path:
    """The file of a chunk of pairs."""
    return folder / f"pairs-{number:06d}.bin"


def write_header(folder: Path, header: Mapping[str, Any]) -> None:
    """Create the store, or check that the store in this folder has the same header."""
    content = {"format": FORMAT, "version": VERSION, **header}
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "out must be a folder, this is a file", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    _check_only_pairs(folder)  # before anything is written to it
    with atomic.locked(folder / ".lock"):  # of several processes, one writes it
        atomic.remove_leftovers(folder)
        if not (folder / HEADER).exists():
            body = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
            atomic.write(folder / HEADER, f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode())
            return
    # the same network may have another folder now
    now, there = (flatten("", {**one, "about": None}) for one in (json.loads(json.dumps(content)), read_header(folder)))
    different = sorted(key for key in now.keys() | there.keys() if now.get(key) != there.get(key))
    if different:
        key = different[0]
        raise ValueError(
            f"{folder} has other pairs: {key} is {_short(there.get(key))} there, {_short(now.get(key))} now. "
            f"Choose another out=FOLDER"
        )


def _check_only_pairs(folder: Path) -> None:
    """Raise a ValueError if a folder without a header contains files that are not of a store."""
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if others and not (folder / HEADER).exists():
        raise ValueError(f"{folder} contains {others[0]} and is not a pair store: choose another out=FOLDER")


def read_header(folder: Path) -> dict[str, Any]:
    """The content of store.json."""
    file = folder / HEADER
    if not folder.is_dir():
        raise DamagedPairs(f"there is no pair store {folder}: draw one with `hopflow rectify RUN out={folder}`")
    try:
        body, digest, rest = regular_file.read(file, LARGEST_HEADER).decode().rsplit("\n", 2)
        if rest or digest != hashlib.sha256(body.encode()).hexdigest():
            raise ValueError("its sha256 does not match")
        header = bounded_json.loads(body)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        if header["version"] <= VERSION:
            _check_header(header)
    except FileNotFoundError:
        raise DamagedPairs(f"{folder} is not a pair store: it has no {HEADER}. `hopflow rectify` writes one") from None
    except OSError as error:
        raise DamagedPairs(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedPairs(f"{file} is damaged: {error}") from None
    if header["version"] > VERSION:
        raise ValueError(f"{file} has format version {header['version']}, this hopflow reads up to {VERSION}: upgrade")
    return dict(header)


def _check_header(header: Mapping[str, Any]) -> None:
    """Raise an error of the built-in kinds unless the values can describe files of pairs."""
    counts = [header["chunk"], header["length"], 1 if header["labels"] is None else header["labels"]]
    vocab = Vocab(**header["vocab"])
    if not all(type(count) is int and count >= 1 for count in counts):
        raise ValueError("chunk, length and labels must be integers ≥ 1")
    if header["dtype"] != token_type(vocab, header["labels"]):
        raise ValueError(f"its dtype is {header['dtype']!r}")
    if not isinstance(header["source"], dict) or "kind" not in header["source"]:
        raise ValueError("its source has no kind")


def token_type(vocab: Vocab, labels: int | None) -> str:
    """The smallest integer type for all ids and labels, little-endian on all machines."""
    largest = max(vocab.size - 1, labels or 0)
    return "u1" if largest < 1 << 8 else "<u2" if largest < 1 << 16 else "<u4"


def write_chunk(folder: Path, number: int, rows: NDArray[np.int64], dtype: str) -> None:
    """Write the rows of a chunk and their sha256, by one rename."""
    raw = rows.astype(dtype).tobytes()
    atomic.write(chunk_file(folder, number), raw + hashlib.sha256(raw).digest())


@contextmanager
def claimed(folder: Path, number: int) -> Iterator[bool]:
    """Whether this process should draw a chunk: it is missing, and no other process is drawing it.

    The lock of a killed process is free. Without locks two processes may draw the same pairs, which does no harm.
    """
    if chunk_file(folder, number).exists():
        yield False
        return
    file = folder / f".{chunk_file(folder, number).name}.lock"
    handle = atomic.open_lock(file)
    try:
        ours = atomic.lock(handle) is not False and not chunk_file(folder, number).exists()
        yield ours
        if ours:
            file.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _sha256(chunks: Sequence[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for rows in chunks:
        digest.update(rows.data)
    return digest.hexdigest()


def _verified(file: Path, header: Mapping[str, Any]) -> NDArray[Any]:
    """The rows of a chunk, memory-mapped after its sha256 was compared."""
    dtype = np.dtype(header["dtype"])
    columns = 2 * header["length"] + (header["labels"] is not None)
    size = header["chunk"] * columns * dtype.itemsize
    try:
        if not file.is_file() or file.stat().st_size != size + SHA256_BYTES:
            raise DamagedPairs(f"{file} is damaged: it must have {size + SHA256_BYTES:,} bytes. Delete it to redraw it")
        with file.open("rb") as stream:
            stream.seek(size)
            claimed_sha256 = stream.read()
        rows: NDArray[Any] = np.memmap(file, dtype, "r", shape=(header["chunk"], columns))
    except OSError as error:
        raise DamagedPairs(f"{file} cannot be read: {error.strerror}") from None
    if hashlib.sha256(rows.data).digest() != claimed_sha256:
        raise DamagedPairs(f"{file} has changed since it was written. Delete it and run `hopflow rectify` to redraw it")
    largest, vocab = int(rows[:, -header["length"] :].max()), header["vocab"]
    if largest >= vocab["data"] or int(rows.max()) >= max(sum(vocab.values()), header["labels"] or 0):
        raise DamagedPairs(f"{file} contains tokens that are not in the vocabulary, such as {int(rows.max())}")
    return rows


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
