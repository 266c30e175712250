"""Rows of tokens that were checked: ids in range, one length or padded, one label per row."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .row_files import FileRows

MOST_LABELS = 1 << 20
MOST_TOKENS = 1 << 24


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """Ids of every row with its label, and which positions count in the loss."""

    ids: Sequence[NDArray[Any]] | NDArray[Any]
    vocab: int
    """The number of tokens, without an end of row."""
    ragged: bool
    """Whether rows have different lengths, so that each ends with an end-of-row token."""
    labels: NDArray[np.int64] | None = None
    label_names: tuple[str, ...] = ()
    keep: NDArray[np.bool_] | None = None
    """Positions that count in the loss, for rows of one length; None where all do."""

    def sha256(self) -> str:
        """The hash of all rows, labels and masks."""
        digest = hashlib.sha256(repr((len(self.ids), self.vocab, self.ragged, self.label_names)).encode())
        for row in self.ids:
            digest.update(len(row).to_bytes(8, "little") + np.ascontiguousarray(row, "<i8").tobytes())
        for part, dtype in ((self.labels, "<i8"), (self.keep, "u1")):
            digest.update(b"none" if part is None else np.ascontiguousarray(part, dtype).tobytes())
        return digest.hexdigest()


def check_rows(found: FileRows, name: str, vocab: int | None = None) -> CheckedRows:
    """The rows of ids of a file or an array; a ValueError says which row and value is wrong."""
    rows, keep = _as_rows(found.sequences, name), found.keep
    vocab = found.vocab if vocab is None else vocab
    labels, names = check_labels(found.labels, len(rows), name)
    if keep is not None:
        keep = _mask(keep, rows, name)
        lengths = keep.sum(1)
        if not lengths.all():
            raise ValueError(f"{name}, row {int(lengths.argmin())}: keep is False everywhere, the row is empty")
        if bool((keep == (np.arange(keep.shape[1]) < lengths[:, None])).all()) and not keep.all():  # padding at the end
            rows, keep = [row[:size] for row, size in zip(rows, lengths, strict=True)], None
        elif keep.all():
            keep = None
    ragged = len({len(row) for row in rows}) > 1
    return CheckedRows(rows, _check_ids(rows, vocab, name), ragged, labels, names, keep)


def _as_rows(sequences: Any, name: str) -> Any:
    """A 2-D array of integers, or a list of 1-D ones."""
    array = sequences
    if not isinstance(sequences, np.ndarray):
        parts = [np.asarray(row) for row in sequences]
        if len({part.shape for part in parts}) != 1:
            wrong = [part for part in parts if part.ndim != 1 or not part.size or part.dtype.kind not in "iu"]
            if wrong or not parts:
                kind = f"{wrong[0].dtype} of shape {wrong[0].shape}" if wrong else "no rows"
                raise ValueError(f"{name}: every row must contain one or more integers, got {kind}")
            return [part.astype(np.int64) for part in parts]
        array = np.stack(parts)
    if array.ndim != 2 or not array.size:
        hint = "\nflatten each row: array.reshape(len(array), -1)" if array.ndim > 2 else ""
        raise ValueError(f"{name} must have shape (rows, positions) and not be empty, got {array.shape}{hint}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must contain integers, token ids from 0, got {array.dtype}")
    return array


def _check_ids(rows: Any, vocab: int | None, name: str) -> int:
    """The size of the vocabulary; every id must be in it."""
    if vocab is not None and not (isinstance(vocab, int | np.integer) and 1 <= vocab <= MOST_TOKENS):
        raise ValueError(f"vocab must be the number of tokens, an integer from 1 to {MOST_TOKENS:,}, got {vocab!r}")
    most = max(int(row.max()) for row in rows) if isinstance(rows, list) else int(rows.max())
    size = min(most + 1, MOST_TOKENS) if vocab is None else int(vocab)
    least = min(int(row.min()) for row in rows) if isinstance(rows, list) else int(rows.min())
    if least >= 0 and most < size:
        return size
    place = next(i for i, row in enumerate(rows) if int(row.min()) < 0 or int(row.max()) >= size)
    at = int(np.flatnonzero((rows[place] < 0) | (rows[place] >= size))[0])
    raise ValueError(
        f"{name}, row {place}, position {at}: token id {int(rows[place][at])} is out of range 0 … {max(size, 1) - 1}"
    )


def _mask(keep: Any, rows: Any, name: str) -> NDArray[np.bool_]:
    keep = np.asarray(keep)
    shape = (len(rows), len(rows[0]))
    if isinstance(rows, list) or keep.shape != shape or keep.dtype != bool:
        raise ValueError(
            f"{name}: keep must be True or False for every token, shape {shape} of rows of one length, "
            f"got {keep.dtype} of shape {keep.shape}"
        )
    return keep


def check_labels(labels: Any, rows: int, name: str) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels as numbers from 0, and their names; texts that are not numbers are numbered in alphabetical order."""
    if labels is None:
        return None, ()
    array = np.asarray(labels)
    if array.shape != (rows,):
        raise ValueError(f"{name}: labels must contain one label per row, shape ({rows},), got {array.shape}")
    if array.dtype.kind in "OU":  # numpy makes texts of other values next to a text, such as NaN
        for number, label in enumerate(labels):
            if not isinstance(label, str):
                raise ValueError(f"{name}: the label of row {number} is {label!r}; use integers from 0, or texts only")
        array = array.astype(str)
        words = sorted(set(array.tolist()))
        if "" in words:
            raise ValueError(f"{name}: the label of row {array.tolist().index('')} is empty")
        if not all(word.isdecimal() and word.isascii() for word in words):
            return np.searchsorted(np.array(words), array).astype(np.int64), tuple(words)
        array = np.array([int(word) if len(word) < 10 else MOST_LABELS for word in array.tolist()])
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{name}: the label of row {int(np.isnan(array).argmax())} is NaN; labels are integers from 0")
    if array.dtype.kind not in "iub":
        raise ValueError(f"{name}: labels must be integers from 0 or texts, got {array.dtype}")
    if int(array.min()) < 0 or int(array.max()) >= MOST_LABELS:
        wrong = int(np.flatnonzero((array < 0) | (array >= MOST_LABELS))[0])
        raise ValueError(
            f"{name}: the label of row {wrong} is {int(array[wrong])}; "
            f"labels are integers from 0 to {MOST_LABELS - 1:,}"
        )
    return array.astype(np.int64), tuple(str(i) for i in range(int(array.max()) + 1))
