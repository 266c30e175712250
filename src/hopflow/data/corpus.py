"""Corpus: rows of tokens to train on and rows held out; rows are packed or padded, and visited in a shuffled order."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from ..vocab import Vocab
from .store import Store
from .tokenizers import Tokenizer

Index = NDArray[np.int64]
ROUNDS = 8
"""Rounds of the Feistel network that shuffles."""


@dataclass(frozen=True)
class TokenRows(ABC):
    """The rows of a split, by index."""

    store: Store
    split: str
    length: int

    @cached_property
    def _flat(self) -> NDArray[Any]:
        return self.store.tokens(self.split)

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of rows."""

    @abstractmethod
    def tokens(self, index: Index) -> NDArray[np.int64]:
        """The tokens of these rows."""

    @abstractmethod
    def keep(self, index: Index) -> NDArray[np.bool_] | None:
        """Where the loss counts in these rows; None if it counts everywhere."""

    def labels(self, index: Index) -> NDArray[np.int64] | None:
        """The labels of these rows; None if they have none."""
        return None


class PackedRows(TokenRows):
    """Concatenated documents, cut every `length` tokens; an incomplete last row is not used."""

    @property
    def count(self) -> int:
        return int(self._flat.size // self.length)

    def tokens(self, index: Index) -> NDArray[np.int64]:
        used = self._flat[: self.count * self.length].reshape(self.count, self.length)
        return used[index].astype(np.int64)

    def keep(self, index: Index) -> None:
        return None


class PaddedRows(TokenRows):
    """One document per row; a long document takes several, and its last row is padded with the end-of-text token."""

    @cached_property
    def _first_rows(self) -> Index:
        """The number of rows before each document, and the total."""
        lengths = np.diff(self.store.ends(self.split), prepend=0)
        return np.concatenate([[0], np.cumsum(-(-lengths // self.length))]).astype(np.int64)

    @property
    def count(self) -> int:
        return int(self._first_rows[-1])

    def _places(self, index: Index) -> tuple[Index, Index]:
        """Where each row starts in the split, and its number of tokens."""
        document = np.searchsorted(self._first_rows, index, side="right") - 1
        ends = self.store.ends(self.split)
        begin = np.where(document > 0, ends[document - 1], 0)
        start = begin + (index - self._first_rows[document]) * self.length
        return start, np.minimum(ends[document] - start, self.length)

    def tokens(self, index: Index) -> NDArray[np.int64]:
        start, size = self._places(index)
        place = start[:, None] + np.minimum(np.arange(self.length), size[:, None] - 1)
        tokens = self._flat[place].astype(np.int64)
        end = self.store.tokenizer.end
        if end is None:
            raise ValueError("rows are padded with the end-of-text token, which this tokenizer does not have")
        tokens[~self._mask(size)] = end
        return tokens

    def keep(self, index: Index) -> NDArray[np.bool_]:
        return self._mask(self._places(index)[1])

    def _mask(self, size: Index) -> NDArray[np.bool_]:
        return np.arange(self.length) < size[:, None]


class StoredRows(TokenRows):
    """One stored row per row; shorter ones are padded with the end-of-row token."""

    @property
    def count(self) -> int:
        return len(self.store.ends(self.split))

    def _places(self, index: Index) -> tuple[Index, Index]:
        ends = self.store.ends(self.split)
        start = np.where(index > 0, ends[index - 1], 0)
        return start, ends[index] - start

    def tokens(self, index: Index) -> NDArray[np.int64]:
        start, size = self._places(index)
        place = start[:, None] + np.minimum(np.arange(self.length), size[:, None] - 1)
        tokens = self._flat[place].astype(np.int64)
        if (end := self.store.tokenizer.end) is not None:
            tokens[np.arange(self.length) >= size[:, None]] = end
        return tokens

    def keep(self, index: Index) -> NDArray[np.bool_] | None:
        start, size = self._places(index)
        stored = self.store.column(self.split, "keep", np.uint8)
        if stored is not None:
            return stored[start[:, None] + np.arange(self.length)].astype(bool)
        if self.store.tokenizer.end is None or self.store.header["padding_counts"]:
            return None
        return np.arange(self.length) < size[:, None]

    def labels(self, index: Index) -> NDArray[np.int64] | None:
        stored = self.store.column(self.split, "labels", np.int64)
        return None if stored is None else stored[index].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as rows of `length` tokens.

    `batch(seed, start, count)` returns the training rows at these positions of an endless sequence: every epoch visits
    each row once, in an order that depends only on (seed, epoch). `keep` returns the loss mask of the same rows, None
    if rows are packed. `test` are held-out rows, at most 8192, evenly spaced; `counts` is how often each token occurs
    in the training split; `identity` is what a run stores to recognize the same data. `labels` returns the labels of
    the same rows, None for data without labels.
    """

    length: int
    tokenizer: Tokenizer
    counts: Int[Tensor, "V"]
    test: Int[Tensor, "N L"]
    test_keep: Bool[Tensor, "N L"] | None
    identity: dict[str, str | int | float]
    store: Store
    _train: TokenRows
    test_labels: Int[Tensor, "N"] | None = None
    """The labels of `test`; None without labels."""
    label_names: tuple[str, ...] = ()
    """The name of every label, in the order of their numbers."""
    decoder: Callable[[Sequence[int]], str] | None = None
    """How `decode` shows rows in this process, in place of the tokenizer."""

    def __str__(self) -> str:
        labels = f"\n  labels     {', '.join(self.label_names)}" if self.label_names else ""
        return (
            f"Corpus of {self.rows:,} training and {len(self.test):,} held-out rows of {self.length:,} tokens\n"
            f"  data       {self.store.header['source']}, {int(self.counts.sum()):,} training tokens\n"
            f"  tokenizer  {self.tokenizer.name}, {self.vocab_size:,} tokens{labels}"
        )

    @cached_property
    def vocab_size(self) -> int:
        return self.tokenizer.size

    @property
    def rows(self) -> int:
        """The number of training rows, which is the length of an epoch."""
        return self._train.count

    def batch(self, seed: int, start: int, count: int) -> Int[Tensor, "count L"]:
        """The training rows at positions start … start+count-1."""
        tokens = torch.from_numpy(self._train.tokens(self._visited(seed, start, count)))
        if tokens.numel() and int(tokens.max()) >= self.vocab_size:
            raise ValueError(
                f"token id {int(tokens.max())} is out of range 0 … {self.vocab_size - 1}: the file is damaged\n"
                f"delete {self.store.folder}: it will be prepared again"
            )
        return tokens

    def keep(self, seed: int, start: int, count: int) -> Bool[Tensor, "count L"] | None:
        """Where the loss counts in the same rows; None if it counts everywhere."""
        mask = self._train.keep(self._visited(seed, start, count))
        return None if mask is None else torch.from_numpy(mask)

    def labels(self, seed: int, start: int, count: int) -> Int[Tensor, " count"] | None:
        """The labels of the same rows; None without labels."""
        found = self._train.labels(self._visited(seed, start, count))
        return None if found is None else torch.from_numpy(found)

    def training_rows(self, size: int = 4096) -> Iterator[Int[Tensor, "m L"]]:
        """All training rows in the order of the data, in parts of `size` rows."""
        for start in range(0, self.rows, size):
            index = np.arange(start, min(start + size, self.rows), dtype=np.int64)
            yield torch.from_numpy(self._train.tokens(index))

    @cached_property
    def position_counts(self) -> Int[Tensor, "L V"]:
        """How often each token occurs at each position of the training rows."""
        return sum(
            (Vocab(self.vocab_size).position_counts(rows) for rows in self.training_rows()),
            torch.zeros(self.length, self.vocab_size, dtype=torch.int64),
        )

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Int[Tensor, "L"] | Sequence[int]) -> str:
        return (self.decoder or self.tokenizer.decode)([int(token) for token in tokens])

    def _visited(self, seed: int, start: int, count: int) -> NDArray[np.int64]:
        """The indices of the rows at positions start … start+count-1, which may span several epochs."""
        if start < 0 or count < 0:
            raise ValueError(f"start and count must not be negative, got start={start}, count={count}")
        if self.rows == 0:
            raise ValueError("there is no text to train on: everything is held out")
        return visited(start, count, self.rows, seed)


def visited(start: int, count: int, size: int, seed: int) -> NDArray[np.int64]:
    """The indices at positions start … start+count-1 of an endless sequence; each epoch shuffles 0 … size-1 anew."""
    epochs, index = np.divmod(np.arange(start, start + count, dtype=np.int64), size)
    found = np.empty_like(index)
    for epoch in np.unique(epochs):
        found[epochs == epoch] = shuffled(index[epochs == epoch], size, seed, int(epoch))
    return found


def shuffled(index: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The images of `index` under this epoch's permutation of 0 … size-1, which is never stored.

    A Feistel network permutes the next power of two; it is applied again to an image outside the range until the
    image is inside (cycle walking), which makes the map a bijection of the range.
    """
    if size < 1:
        raise ValueError(f"size must be an integer ≥ 1, got {size}")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= size):
        raise ValueError(f"index must be from 0 to {size - 1}, got {int(index.min())} … {int(index.max())}")
    keys, bits = _keys(seed, epoch), (size - 1).bit_length()
    image = _feistel(index.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(image >= size)
    while outside.size:
        image[outside] = _feistel(image[outside], bits, keys)
        outside = outside[image[outside] >= size]
    return image.astype(np.int64)


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    digest = hashlib.blake2b(f"order/{int(seed)}/{int(epoch)}".encode(), digest_size=8 * ROUNDS).digest()
    return [np.uint64(int.from_bytes(digest[8 * i : 8 * i + 8], "big")) for i in range(ROUNDS)]


def _feistel(x: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 0 … 2^bits - 1: the halves are alternately xored with a hash of the other."""
    low = bits - bits // 2
    low_mask, high_mask = np.uint64((1 << low) - 1), np.uint64((1 << (bits - low)) - 1)
    left, right = x >> np.uint64(low), x & low_mask
    for turn, key in enumerate(keys):
        if turn % 2 == 0:
            right = right ^ (_mix(left ^ key) & low_mask)
        else:
            left = left ^ (_mix(right ^ key) & high_mask)
    return (left << np.uint64(low)) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit finalizer (multiply and shift); uint64 arithmetic wraps around, as it should."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
