"""Subword tokenizers (BPE, WordPiece, Unigram) of the library `tokenizers`: read from files or learned from a text."""

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system import regular_file
from ..system.progress import Progress
from .documents import DocumentChunk, ReadStatistics
from .segments import WINDOW, segments
from .tokenizer_check import check, try_out
from .tokenizers import END, FORMAT, Ids, Tokenizer, canonical, field_of
from .word_cache import WordCache

if TYPE_CHECKING:
    import tokenizers

END_NAMES = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # the end-of-text token in tokenizer files
LARGEST = 1 << 24  # ids; a file with more is damaged or hostile
LARGEST_FILE = 1 << 28  # bytes
TRIES = 16
BLANKS = (" ", "Ġ", "▁")  # a blank in vocabularies: plain, byte-level, Metaspace


@dataclass(frozen=True)
class Subwords(Tokenizer):
    """A tokenizer of the library `tokenizers` (BPE, WordPiece, Unigram), as the JSON that describes it."""

    definition: str
    name: str = "tokenizer.json"
    end: int | None = None
    kind = "subwords"
    option = "bpe:SIZE"

    @classmethod
    def check_option(cls, tokens: str) -> None:
        vocabulary_size(tokens)

    @classmethod
    def from_text(
        cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress
    ) -> "Subwords":
        return _learn_bpe(vocabulary_size(tokens), documents, progress)

    @classmethod
    def read_json(cls, content: Mapping[str, Any]) -> "Subwords":
        name, end = field_of(content, "name", str), field_of(content, "end", int, type(None))
        return cls(definition(field_of(content, "tokenizer", dict), name), name, end)

    def __post_init__(self) -> None:
        vocabulary = self.vocabulary
        ids = set(vocabulary.values())
        if not ids or max(ids) >= LARGEST or len(ids) != len(vocabulary):
            raise ValueError(f"{self.name}: its ids are not distinct integers below {LARGEST}")
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
        """Turn an error of the library into a ValueError with one message."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{self.name} {what}: {str(error)[:200]}{advice}") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # from the library's Rust code; not an Exception
                raise
            raise ValueError(f"{self.name} {what}: the library tokenizers failed: {str(error)[:200]}") from None

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token, by its text in the file."""
        return self._engine.get_vocab(with_added_tokens=True)

    @cached_property
    def attaches_blanks(self) -> bool:
        return any(
            len(token) > 1 and token[0] in BLANKS and token[1] not in BLANKS and not token[1].isspace()
            for token in self.vocabulary
        )

    @cached_property
    def _own_size(self) -> int:
        return max(self.vocabulary.values()) + 1

    @property
    def size(self) -> int:
        return self._own_size if self.end is None else max(self._own_size, self.end + 1)

    @cached_property
    def _word_cache(self) -> WordCache | None:
        """A cache of encoded words, for definitions with GPT-2's pre-tokenizer and no normalizer or added blanks."""
        parts = json.loads(self.definition)
        before = parts.get("pre_tokenizer") or {}
        plain = before.get("type") == "ByteLevel" and before.get("use_regex", True)
        blank = any(any(map(str.isspace, token["content"])) for token in parts.get("added_tokens") or [])
        stripped = any(token.get("lstrip") or token.get("rstrip") for token in parts.get("added_tokens") or [])
        if not plain or before.get("add_prefix_space", True) or parts.get("normalizer") or blank or stripped:
            return None
        return WordCache(self._encode_batch)

    def _encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        advice = "\nadd a token for unknown text (unk_token), or use tokens=byte, which can encode every text"
        with self._failures("cannot encode this text", advice):
            return [found.ids for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        if self._word_cache is not None:
            return self._word_cache(texts)
        return [np.array(ids, np.uint32) for ids in self._encode_batch(texts)]

    def cut(self, text: str, near: int) -> int:
        """A cut before a blank or after a letter, if the ids around it are those of the uncut text."""
        tries = 0
        for at in range(min(near, len(text) - 1), max(0, near - 4096), -1):
            if not _may_cut(text[at - 1], text[at]):
                continue
            if self._is_safe(text[max(0, at - WINDOW) : at], text[at : at + WINDOW]):
                return at
            tries += 1
            if tries == TRIES:
                break
        return 0

    def _is_safe(self, left: str, right: str) -> bool:
        whole, first, second = self._encode_batch([left + right, left, right])
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
        return {"format": FORMAT, "kind": self.kind, "name": self.name, "end": self.end, "tokenizer": tokenizer}

    @cached_property
    def sha256(self) -> str:
        return super().sha256

    def with_end(self) -> "Subwords":
        return self if self.end is not None else Subwords(self.definition, self.name, self._own_size)


def vocabulary_size(tokens: str) -> int:
    """The SIZE of "bpe:SIZE"."""
    size = tokens.removeprefix("bpe:")
    if not (size.isascii() and size.isdigit() and 257 <= int(size) <= 1_000_000):
        raise ValueError(f"{tokens!r}: write bpe:SIZE with SIZE from 257 (all bytes and the end of text) to 1000000")
    return int(size)


def from_files(path: Path, name: str) -> Subwords:
    """A `tokenizer.json`, or a folder with one or with GPT-2's pair of files."""
    if path.is_dir():
        if (path / "encoder.json").is_file() and (path / "vocab.bpe").is_file():
            return _from_pair(path / "encoder.json", path / "vocab.bpe", name)
        path = path / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "no tokenizer.json, nor encoder.json and vocab.bpe", str(path.parent))
    parts = _json(path)
    return Subwords(definition(parts, name), name)


def _bytes(path: Path) -> bytes:
    """The content of a file, at most as much as a tokenizer may have: a pipe or device may never end."""
    try:
        return regular_file.read(path, LARGEST_FILE)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a tokenizer file: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a tokenizer file: expected an object")
    return content


def _from_pair(encoder: Path, merges: Path, name: str) -> Subwords:
    vocabulary = _json(encoder)
    try:
        lines = _bytes(merges).decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{merges} is not a list of merges: it is not UTF-8") from None
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{merges} is not a list of merges: each line must have two parts")
    return Subwords(_byte_level(vocabulary, pairs), name)


def _byte_level(vocabulary: dict[str, int], merges: list[list[str]]) -> str:
    """The definition of a BPE as GPT-2's: words with the blank before them, as bytes, then merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    parts = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}
    return definition({**parts, "normalizer": None}, "BPE")


def _learn_bpe(size: int, documents: Iterator[DocumentChunk], progress: Progress) -> Subwords:
    """Byte-level BPE as GPT-2's, learned from a training split."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    start = {END: 0, **{letter: i for i, letter in enumerate(alphabet, 1)}}
    untrained = Subwords(_byte_level(start, []), "bpe")
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )

    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for segment in segments(documents, untrained, ReadStatistics()):
            yield segment.text
            read += len(segment.text)

    with progress.keep_updating(lambda: f"learning BPE: {read / 1e6:.0f} M characters read, up to {size} tokens"):
        engine.train_from_iterator(texts(), trainer)
    model = json.loads(engine.to_str())["model"]
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    return Subwords(_byte_level(model["vocab"], merges), f"bpe:{size}")


def definition(parts: Mapping[str, Any], name: str) -> str:
    """A tokenizer.json without what changes a text: truncation, padding, added tokens and random dropout of merges."""
    model = parts.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise ValueError(f"{name} is not a tokenizer file: it has no model with a vocabulary")
    check(parts, name)
    if model.get("dropout"):
        model = {**model, "dropout": None}  # skips merges at random
    kept = {**parts, "model": model, "truncation": None, "padding": None, "post_processor": None}
    return canonical(kept).decode()


def _may_cut(before: str, after: str) -> bool:
    if after.isspace():
        return not before.isspace()
    return before.isalnum() and before.isalpha() != after.isalpha()
