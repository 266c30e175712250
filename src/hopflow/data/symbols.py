"""Tokenizers of rows that are not text: numbers, and symbols with a name each.

They have no `option`: `hf.data.rows` makes them, `tokens=` does not name them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .tokenizers import FORMAT, Ids, Tokenizer, field_of

END_OF_ROW = "<|end|>"
"""How the end of a row is written; rows of different lengths have it."""


class _Spelled(Tokenizer):
    """Tokens that are spelled out, with `separator` between them."""

    ends: bool
    count_data: int
    separator: str

    @property
    def end(self) -> int | None:  # type: ignore[override]
        return self.count_data if self.ends else None

    @property
    def size(self) -> int:
        return self.count_data + self.ends

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array([self._id(word) for word in self._words(text)], np.uint32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return self.separator.join(END_OF_ROW if i == self.end else self._spell(i) for i in ids)

    def _words(self, text: str) -> Iterator[str]:
        for part in text.split():
            yield from [part] if self.separator else part

    @abstractmethod
    def _id(self, word: str) -> int:
        """The token of a word."""

    @abstractmethod
    def _spell(self, token: int) -> str:
        """The word of a token; the inverse of `_id`."""


@dataclass(frozen=True)
class Numbers(_Spelled):
    """Tokens that are numbers, written with blanks between them.

    >>> Numbers(300).decode([7, 299])
    '7 299'
    """

    count_data: int
    ends: bool = False
    name = kind = "numbers"
    separator = " "

    def __post_init__(self) -> None:
        if self.count_data < 1:
            raise ValueError(f"a vocabulary must have at least 1 token, got {self.count_data}")

    @classmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Numbers":
        return cls(field_of(content, "count", int), field_of(content, "ends", bool))

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self.kind, "name": self.name, "count": self.count_data, "ends": self.ends}

    def with_end(self) -> "Numbers":
        return Numbers(self.count_data, True)

    def _id(self, word: str) -> int:
        if not (word.isdecimal() and word.isascii() and len(word) < 10 and int(word) < self.count_data):
            raise ValueError(f"{word[:20]!r} is not a token: tokens are the numbers 0 … {self.count_data - 1}")
        return int(word)

    def _spell(self, token: int) -> str:
        return str(token)


@dataclass(frozen=True)
class Symbols(_Spelled):
    """Tokens with a name each, in the order of their ids; written without blanks if every name is one character.

    >>> Symbols(("A", "C", "G", "T")).decode([2, 0, 3])
    'GAT'
    """

    names: tuple[str, ...]
    ends: bool = False
    name = kind = "symbols"

    def __post_init__(self) -> None:
        if (
            not self.names
            or len(set(self.names)) < len(self.names)
            or any(name.split() != [name] for name in self.names)
        ):
            raise ValueError("symbols must be different texts without blanks, at least one")

    @classmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Symbols":
        names = field_of(content, "names", list)
        if any(type(name) is not str for name in names):
            raise TypeError("names contains a value that is not text")
        return cls(tuple(names), field_of(content, "ends", bool))

    @property
    def count_data(self) -> int:  # type: ignore[override]
        return len(self.names)

    @property
    def separator(self) -> str:  # type: ignore[override]
        return "" if all(len(name) == 1 for name in self.names) else " "

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def to_json(self) -> dict[str, Any]:
        names = list(self.names)
        return {"format": FORMAT, "kind": self.kind, "name": self.name, "names": names, "ends": self.ends}

    def with_end(self) -> "Symbols":
        return Symbols(self.names, True)

    def _id(self, word: str) -> int:
        if word not in self._ids:
            raise ValueError(f"{word[:20]!r} is not among the {len(self.names)} symbols of this vocabulary")
        return self._ids[word]

    def _spell(self, token: int) -> str:
        return self.names[token]
