"""The tokenizer that `tokens=` names: one of the classes, of a file, or the choice of `auto`."""

import errno
from collections.abc import Iterator
from pathlib import Path

from ..system.progress import Progress
from .documents import DocumentChunk
from .named_corpora import NAMED, obtain
from .subwords import from_files as from_files
from .tokenizers import Tokenizer, class_of, options

AUTO = "auto"
CHARACTERS, SIZES = 500, (512, 1024, 2048, 4096)
"""Of `auto`: characters of text for each token of the vocabulary, and the sizes it may have."""
SHORT, FEW = 20_000, 256
"""Of `auto`: a text with fewer characters is tokenized by characters, unless it has more distinct ones."""


def token_choices() -> str:
    """All values of `tokens=`, as a phrase for help and errors."""
    return f"{AUTO}, {', '.join(options())}, gpt2, or the path of a tokenizer.json"


def existing_tokenizer(
    tokens: str | Path | Tokenizer, cache: Path, progress: Progress, offline: bool
) -> Tokenizer | None:
    """The tokenizer that `tokens` names, or None if it has to be made from the text: auto, char, morse, bpe:SIZE."""
    if isinstance(tokens, Tokenizer):
        return tokens
    text = str(tokens)
    if text == AUTO:
        return None
    if cls := class_of(text):
        return None if cls.needs_text else cls.from_text(text, "", iter(()), progress)
    if text == "gpt2":
        return from_files(obtain(NAMED["gpt2"], cache, progress, offline), "gpt2")
    path = Path(text).expanduser()
    if path.exists():
        return from_files(path, path.name)
    if path.suffix or "/" in text:
        raise FileNotFoundError(errno.ENOENT, "no such tokenizer file", text)
    more = "; a folder with a tokenizer.json, or with encoder.json and vocab.bpe, works, too"
    raise ValueError(f"unknown tokens {text!r}\nallowed: {token_choices()}{more}")


def named_in_cache(tokens: str) -> str:
    """The name of tokens in the cache; that of `auto` contains the numbers of its rule."""
    return f"{AUTO}, {CHARACTERS}, {SIZES}, {SHORT}, {FEW}" if tokens == AUTO else tokens


def chosen(tokens: str, characters: int, distinct: int) -> str:
    """The tokens that `auto` means for a text of this many characters; any other tokens as they are."""
    if tokens != named_in_cache(AUTO):
        return tokens
    if characters < SHORT and distinct <= FEW:
        return "char"
    return f"bpe:{max((size for size in SIZES if size * CHARACTERS <= characters), default=SIZES[0])}"


def from_text(tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress) -> Tokenizer:
    """A tokenizer made from a text: its characters include held-out ones, its documents are used if not held out."""
    cls = class_of(tokens)
    if cls is None:
        raise ValueError(f"unknown tokens {tokens!r}\nallowed: {token_choices()}")
    return cls.from_text(tokens, characters, (chunk for chunk in documents if not chunk.held), progress)
