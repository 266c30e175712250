"""Tokenizers: text <-> ids. Each is plain data that is stored inside saved networks.

A new tokenizer is a subclass of `Tokenizer`. With an `option` it can be chosen by `tokens=OPTION`, and it is listed in
the help; nothing else has to be changed.
"""

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..system.progress import Progress
from .documents import END as END
from .documents import DocumentChunk
from .morse import to_morse
from .word_cache import Ids as Ids

FORMAT = 1


class Tokenizer(ABC):
    """A reversible map from text to ids 0 … size-1. `end` is the end-of-text token, or None without one."""

    name: str
    end: int | None
    kind: ClassVar[str]
    """The name of the class in stored files, different for every class."""
    option: ClassVar[str] = ""
    """How `tokens=` names a tokenizer of this class that is made from a text, such as "char" or "bpe:SIZE"."""
    needs_text: ClassVar[bool] = True
    """Whether the text decides what the tokenizer is; False if the option alone does."""

    @classmethod
    def check_option(cls, tokens: str) -> None:
        """Raise a ValueError if `tokens`, such as "bpe:12", is not valid for this class."""
        return

    @classmethod
    def from_text(
        cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress
    ) -> "Tokenizer":
        """A tokenizer for a text, from its distinct characters in order and the documents of its training split."""
        raise ValueError(f"{cls.__name__} cannot be made from a text")

    @property
    def attaches_blanks(self) -> bool:
        """Whether a word and the blank before it can be one token, as " time" is for GPT-2."""
        return False

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ids."""

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, as arrays."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything needed to rebuild it, as JSON data with "format", "kind" and "name"."""

    @classmethod
    @abstractmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer that `to_json` has described; a ValueError, TypeError or KeyError for other content."""

    @abstractmethod
    def with_end(self) -> "Tokenizer":
        """The same tokenizer with an end-of-text token; itself, if it has one."""

    def cut(self, text: str, near: int) -> int:
        """The last place up to `near` where `text` can be cut without changing an id; 0 if none is found."""
        return near  # for one token per character, any place

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, got {type(text).__name__}. For several texts use encode_all.")
        return self.encode_all([text])[0].tolist()

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        return len(self.encode(text))

    @property
    def sha256(self) -> str:
        """The hash of its content; the name is not part of it."""
        content = {key: value for key, value in self.to_json().items() if key != "name"}
        return hashlib.sha256(canonical(content)).hexdigest()

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Tokenizer":
        """Rebuild a stored tokenizer; a ValueError says what is wrong with other content."""
        version, kind = content.get("format"), content.get("kind")
        if isinstance(version, int) and version > FORMAT:
            raise ValueError(f"the tokenizer has format {version}, this hopflow reads up to {FORMAT}: upgrade hopflow")
        found = [cls for cls in classes() if cls.kind == kind]
        if version != FORMAT or not found:
            kinds = ", ".join(cls.kind for cls in classes())
            raise ValueError(
                f"not a stored tokenizer: format {version!r} and kind {str(kind)[:40]!r}, expected format {FORMAT} and "
                f"one of {kinds}. Import the class first if the tokenizer is your own"
            )
        try:
            return found[-1].read_json(content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field of the stored tokenizer is missing or has the wrong type: {error}") from None

    def _check(self, ids: Sequence[int]) -> None:
        first: Any = next(iter(ids), 0) if hasattr(ids, "__iter__") else None
        if first is None or (hasattr(first, "__len__") and getattr(first, "ndim", 1) > 0):  # no ids, or rows of ids
            raise ValueError(
                "ids must be the token ids of one text. For several texts: [tokenizer.decode(row) for row in tokens]."
            )
        for i in ids:
            if not 0 <= i < self.size:
                raise ValueError(
                    f"token id {i} is out of range: the tokenizer {self.name!r} has the ids 0 … {self.size - 1}. "
                    "Do the tokens come from a model with another tokenizer?"
                )


def classes() -> list[type[Tokenizer]]:
    """All tokenizer classes that are imported and declare a `kind` of their own, in the order of their definition."""
    todo: list[Any] = [Tokenizer]
    found: list[type[Tokenizer]] = []
    while todo:
        cls = todo.pop(0)
        if "kind" in vars(cls) and not inspect.isabstract(cls):  # a subclass without one does not replace its parent
            found.append(cls)
        todo = [*type.__subclasses__(cls), *todo]
    return found


def options() -> list[str]:
    """What `tokens=` may name, apart from auto, gpt2 and files: char, morse, byte, bpe:SIZE."""
    return [cls.option for cls in classes() if cls.option]


def class_of(tokens: str) -> type[Tokenizer] | None:
    """The class that `tokens`, such as "char" or "bpe:8000", names; None if there is none."""
    for cls in classes():
        if cls.option and cls.option.partition(":")[:2] == tokens.partition(":")[:2]:
            cls.check_option(tokens)
            return cls
    return None


def field_of(content: Mapping[str, Any], name: str, *types: type) -> Any:
    """A field of stored data, which must have one of these types; bool is not an int."""
    value = content[name]
    if type(value) not in types:
        raise TypeError(f"{name} is {type(value).__name__}")
    return value


@dataclass(frozen=True)
class Characters(Tokenizer):
    """One token per character; `symbols` are sorted by code point. `ends` adds an end-of-text token."""

    symbols: str
    ends: bool = False
    name = kind = option = "char"

    @classmethod
    def from_text(
        cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress
    ) -> "Characters":
        return cls(characters)

    @classmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Characters":
        return cls(field_of(content, "symbols", str), field_of(content, "ends", bool))

    def __post_init__(self) -> None:
        if not self.symbols or list(self.symbols) != sorted(set(self.symbols)):
            raise ValueError("symbols must be distinct characters in the order of their code points, at least one")

    @property
    def end(self) -> int | None:  # type: ignore[override]
        return len(self.symbols) if self.ends else None

    @property
    def size(self) -> int:
        return len(self.symbols) + self.ends

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """The id of each code point, -1 for a code point without one."""
        points = code_points(self.symbols)
        table = np.full(int(points[-1]) + 2, -1, np.int64)  # the last entry is for all code points beyond
        table[points] = np.arange(points.size)
        return table

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Ids:
        points = code_points(text)
        ids = self._ids[np.minimum(points, self._ids.size - 1)]
        if ids.size and ids.min() < 0:
            unknown = chr(points[int(ids.argmin())])
            raise ValueError(
                f"the character {unknown!r} (U+{ord(unknown):04X}) is not among the {len(self.symbols)} that this "
                "tokenizer was made from. Remove it, or use tokens=byte, which can encode every text."
            )
        return ids.astype(np.uint32)

    def count(self, text: str) -> int:
        return len(text)  # unknown characters are counted, too

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return "".join(self.symbols[i] if i < len(self.symbols) else END for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self.kind, "name": self.name, "symbols": self.symbols, "ends": self.ends}

    def with_end(self) -> "Characters":
        return type(self)(self.symbols, True)


@dataclass(frozen=True)
class Morse(Characters):
    """Text is converted to Morse code, then there is one token per character; `decode` returns dots and dashes."""

    name = kind = option = "morse"

    @classmethod
    def from_text(cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress) -> "Morse":
        return cls("".join(sorted(set(to_morse(characters)))))

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return super().encode_all([to_morse(text) for text in texts])

    def count(self, text: str) -> int:
        return len(to_morse(text))


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """One token per byte of UTF-8; bytes that are not UTF-8 are decoded as U+FFFD."""

    ends: bool = False
    name = kind = option = "byte"
    needs_text = False

    @classmethod
    def from_text(cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress) -> "Bytes":
        return cls()

    @classmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Bytes":
        return cls(field_of(content, "ends", bool))

    @property
    def end(self) -> int | None:  # type: ignore[override]
        return 256 if self.ends else None

    @property
    def size(self) -> int:
        return 256 + self.ends

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return b"".join(bytes([i]) if i < 256 else END.encode() for i in ids).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": "byte", "name": "byte", "ends": self.ends}

    def with_end(self) -> "Bytes":
        return Bytes(True)


def canonical(content: Mapping[str, Any]) -> bytes:
    """The one spelling of a JSON object that is hashed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def code_points(text: str) -> NDArray[np.uint32]:
    """The Unicode code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
