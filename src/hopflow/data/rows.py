"""The rows of a split: sequences of equal length, packed or padded."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .store import Store

Index = NDArray[np.int64]


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
