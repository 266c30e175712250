"""Tokenizers: text <-> ids, as plain data that is stored inside saved models."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .morse import to_morse
from .tokenizer_check import check, try_out
from .words import Ids as Ids
from .words import Words

if TYPE_CHECKING:
    import tokenizers

FORMAT = 1
END = "<|endoftext|>"
END_NAMES = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # what tokenizer files call it
LARGEST = 1 << 24  # ids; a file that claims more is damaged or hostile
WINDOW = 128  # characters on each side of a cut that decide whether it is safe
TRIES = 16
BLANKS = (" ", "Ġ", "▁")  # how vocabularies write a blank: as it is, byte-level, Metaspace


class Tokenizer(ABC):
    """A reversible map from text to ids 0 … size-1; `end` marks the end of a document, where there are several."""

    name: str
    end: int | None

    @property
    def attaches_blanks(self) -> bool:
        """Whether a word and the blank before it can be one token, as " time" is for GPT-2."""
        return False

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, as arrays."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything needed to rebuild it, in plain JSON."""

    @abstractmethod
    def with_end(self) -> "Tokenizer":
        """The same tokenizer with an end-of-text token; itself, if it has one."""

    def cut(self, text: str, near: int) -> int:
        """The last place up to `near` where `text` may be cut in two without changing an id; 0 if none is found."""
        return near  # one character after the other: anywhere

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0].tolist()

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        return len(self.encode(text))

    @property
    def sha256(self) -> str:
        """Of its content; the name is only how it was called."""
        content = {key: value for key, value in self.to_json().items() if key != "name"}
        return hashlib.sha256(canonical(content)).hexdigest()

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Tokenizer":
        """Rebuild a tokenizer; whatever is not exactly one is refused."""
        return _from_json(content)

    def _check(self, ids: Sequence[int]) -> None:
        for i in ids:
            if not 0 <= i < self.size:
                raise ValueError(
                    f"token id {i} is out of range: the tokenizer {self.name!r} has the ids 0 … {self.size - 1}. "
                    "Do the tokens come from a model with another tokenizer?"
                )


@dataclass(frozen=True)
class Characters(Tokenizer):
    """One token per character; `symbols` in order of their code points."""

    symbols: str
    ends: bool = False
    name = "char"

    def __post_init__(self) -> None:
        if not self.symbols or list(self.symbols) != sorted(set(self.symbols)):
            raise ValueError("the symbols of a character tokenizer are distinct, in order, and at least one")

    @property
    def end(self) -> int | None:  # type: ignore[override]
        return len(self.symbols) if self.ends else None

    @property
    def size(self) -> int:
        return len(self.symbols) + self.ends

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """The id of each code point, -1 where there is none."""
        points = code_points(self.symbols)
        table = np.full(int(points[-1]) + 2, -1, np.int64)  # the last entry stands for all beyond
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
                "tokenizer was made from. Leave it out, or use tokens=byte, which knows every text."
            )
        return ids.astype(np.uint32)

    def count(self, text: str) -> int:
        return len(text)  # also of a text with characters that it does not know

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return "".join(self.symbols[i] if i < len(self.symbols) else END for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self.name, "name": self.name, "symbols": self.symbols, "ends": self.ends}

    def with_end(self) -> "Characters":
        return type(self)(self.symbols, True)


@dataclass(frozen=True)
class Morse(Characters):
    """Text is converted to Morse code first, then one token per character. `decode` gives dots and dashes back."""

    name = "morse"

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return super().encode_all([to_morse(text) for text in texts])

    def count(self, text: str) -> int:
        return len(to_morse(text))


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """One token per byte of UTF-8; bytes that are no UTF-8 are shown as U+FFFD."""

    ends: bool = False
    name = "byte"

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


@dataclass(frozen=True)
class Subwords(Tokenizer):
    """A tokenizer of the library `tokenizers` (BPE, WordPiece, Unigram), as the JSON that describes it."""

    definition: str
    name: str = "tokenizer.json"
    end: int | None = None

    def __post_init__(self) -> None:
        vocabulary = self._vocabulary
        ids = set(vocabulary.values())
        if not ids or max(ids) >= LARGEST or len(ids) != len(vocabulary):
            raise ValueError(f"{self.name}: its ids are not distinct numbers below {LARGEST}")
        if self.end is None:
            known = [vocabulary[token] for token in END_NAMES if token in vocabulary]
            object.__setattr__(self, "end", known[0] if known else None)
        elif not 0 <= self.end <= max(ids) + 1:
            raise ValueError(f"{self.name}: its end-of-text token {self.end} is not one of its tokens")

    @cached_property
    def _engine(self) -> "tokenizers.Tokenizer":
        import tokenizers

        try_out(self.definition, self.name)
        with self._failures("is not a tokenizer that can be used"):
            engine = tokenizers.Tokenizer.from_str(self.definition)
        engine.encode_special_tokens = True  # a text that spells a control token stays text
        return engine

    @contextmanager
    def _failures(self, what: str, advice: str = "") -> Iterator[None]:
        """An error of the library as one message."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{self.name} {what}: {str(error)[:200]}{advice}") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library's Rust side, which is no Exception
                raise
            raise ValueError(f"{self.name} {what}: the library tokenizers failed: {str(error)[:200]}") from None

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self._engine.get_vocab(with_added_tokens=True)

    @cached_property
    def attaches_blanks(self) -> bool:
        return any(
            len(token) > 1 and token[0] in BLANKS and token[1] not in BLANKS and not token[1].isspace()
            for token in self._vocabulary
        )

    @cached_property
    def _own_size(self) -> int:
        return max(self._vocabulary.values()) + 1

    @property
    def size(self) -> int:
        return self._own_size if self.end is None else max(self._own_size, self.end + 1)

    @cached_property
    def _words(self) -> Words | None:
        """Word by word where the definition allows it: GPT-2's pre-tokenizer, no normalizer, no added blanks."""
        parts = json.loads(self.definition)
        before = parts.get("pre_tokenizer") or {}
        plain = before.get("type") == "ByteLevel" and before.get("use_regex", True)
        blank = any(any(map(str.isspace, token["content"])) for token in parts.get("added_tokens") or [])
        stripped = any(token.get("lstrip") or token.get("rstrip") for token in parts.get("added_tokens") or [])
        if not plain or before.get("add_prefix_space", True) or parts.get("normalizer") or blank or stripped:
            return None
        return Words(self._ask)

    def _ask(self, texts: Sequence[str]) -> list[list[int]]:
        advice = "\ngive it a token for what it does not know (unk_token), or use tokens=byte, which knows every text"
        with self._failures("cannot encode this text", advice):
            return [found.ids for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        if self._words is not None:
            return self._words(texts)
        return [np.array(ids, np.uint32) for ids in self._ask(texts)]

    def cut(self, text: str, near: int) -> int:
        """Before a blank, or where letters end; taken only if the ids around it are those of the uncut text."""
        tries = 0
        for at in range(min(near, len(text) - 1), max(0, near - 4096), -1):
            if not _may_part(text[at - 1], text[at]):
                continue
            if self._is_safe(text[max(0, at - WINDOW) : at], text[at : at + WINDOW]):
                return at
            tries += 1
            if tries == TRIES:
                break
        return 0

    def _is_safe(self, left: str, right: str) -> bool:
        whole, first, second = self._ask([left + right, left, right])
        return whole == first + second

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        if self.end is None or self.end < self._own_size:
            return self._decode(ids)
        texts: list[list[int]] = [[]]
        for i in ids:
            if i == self.end:
                texts.append([])
            else:
                texts[-1].append(i)
        return END.join(map(self._decode, texts))

    def _decode(self, ids: Sequence[int]) -> str:
        with self._failures("cannot decode these tokens"):
            return self._engine.decode(list(ids), skip_special_tokens=False)

    def to_json(self) -> dict[str, Any]:
        tokenizer = json.loads(self.definition)
        return {"format": FORMAT, "kind": "subwords", "name": self.name, "end": self.end, "tokenizer": tokenizer}

    @cached_property
    def sha256(self) -> str:
        return super().sha256

    def with_end(self) -> "Subwords":
        return self if self.end is not None else Subwords(self.definition, self.name, self._own_size)


def canonical(content: Mapping[str, Any]) -> bytes:
    """One spelling of a JSON object, to be hashed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _may_part(before: str, after: str) -> bool:
    if after.isspace():
        return not before.isspace()
    return before.isalnum() and before.isalpha() != after.isalpha()


def _from_json(content: Mapping[str, Any]) -> Tokenizer:
    match dict(content):
        case {"format": 1, "kind": "char" | "morse" as kind, "symbols": str(symbols), "ends": bool(ends)}:
            return (Characters if kind == "char" else Morse)(symbols, ends)
        case {"format": 1, "kind": "byte", "ends": bool(ends)}:
            return Bytes(ends)
        case {"format": 1, "kind": "subwords", "name": str(name), "end": int() | None as end, "tokenizer": dict(parts)}:
            return Subwords(definition(parts, name), name, end)
        case {"format": int(version)} if version > FORMAT:
            raise ValueError(
                f"this tokenizer is of format {version}; this hopflow reads up to {FORMAT}: upgrade hopflow"
            )
    raise ValueError("this is not a tokenizer that hopflow has stored: a field is missing or of the wrong type")


def definition(parts: Mapping[str, Any], name: str) -> str:
    """What matters of a tokenizer.json: not how it would cut, pad or frame a text, nor chance."""
    model = parts.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise ValueError(f"{name} is not a tokenizer file: it has no model with a vocabulary")
    check(parts, name)
    if model.get("dropout"):
        model = {**model, "dropout": None}  # merges left out at random: the same text would have other tokens each time
    kept = {**parts, "model": model, "truncation": None, "padding": None, "post_processor": None}
    return canonical(kept).decode()
