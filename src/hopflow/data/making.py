"""Making a tokenizer: from its name, from files, or from the text itself."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .corpora import NAMED, obtain
from .cutting import segments
from .morse import to_morse
from .pulse import Pulse
from .reading import Piece, Tally
from .tokenizers import END, Bytes, Characters, Morse, Subwords, Tokenizer, definition

LARGEST_FILE = 1 << 28  # bytes
FROM_TEXT = "char, morse or bpe:N"
AUTO = "auto"
CHARACTERS, SIZES = 500, (512, 1024, 2048, 4096)
"""Of `auto`: characters of text for each token of the vocabulary, and the sizes it may have."""
SHORT, FEW = 20_000, 256
"""Of `auto`: a text with fewer characters is taken character by character, unless it has more distinct ones."""
KNOWN = (
    "auto, char, byte, morse, bpe:8000, gpt2, or a path to a tokenizer.json or to a folder with encoder.json and "
    "vocab.bpe"
)


def ready_made(tokens: str | Path | Tokenizer, cache: Path, pulse: Pulse, offline: bool) -> Tokenizer | None:
    """The tokenizer that `tokens` asks for, or None for one that is made from the text: auto, char, morse, bpe:N."""
    if isinstance(tokens, Tokenizer):
        return tokens
    text = str(tokens)
    if text in (AUTO, "char", "morse"):
        return None
    if text.startswith("bpe:"):
        vocabulary_size(text)
        return None
    if text == "byte":
        return Bytes()
    if text == "gpt2":
        return from_files(obtain(NAMED["gpt2"], cache, pulse, offline), "gpt2")
    path = Path(text).expanduser()
    if path.exists():
        return from_files(path, path.name)
    if path.suffix or "/" in text:
        raise FileNotFoundError(errno.ENOENT, "no such tokenizer file", text)
    raise ValueError(f"unknown tokens {text!r}\nknown: {KNOWN}")


def vocabulary_size(tokens: str) -> int:
    size = tokens.removeprefix("bpe:")
    if not (size.isascii() and size.isdigit() and 257 <= int(size) <= 1_000_000):
        raise ValueError(f"{tokens!r}: write bpe:N with N from 257 (all bytes and the end of text) to 1000000")
    return int(size)


def named_in_cache(tokens: str) -> str:
    """The name of tokens in the cache: `auto` with the numbers of its rule, so that another rule is another entry."""
    return f"{AUTO}, {CHARACTERS}, {SIZES}, {SHORT}, {FEW}" if tokens == AUTO else tokens


def chosen(tokens: str, characters: int, distinct: int) -> str:
    """The tokens that `auto` means for a text of this many characters: BPE with as many as the text can teach."""
    if tokens != named_in_cache(AUTO):
        return tokens
    if characters < SHORT and distinct <= FEW:
        return "char"
    return f"bpe:{max((size for size in SIZES if size * CHARACTERS <= characters), default=SIZES[0])}"


def from_text(tokens: str, characters: str, documents: Iterator[Piece], pulse: Pulse) -> Tokenizer:
    """A tokenizer made from the text: of its characters, held-out ones too, or of what is trained on alone."""
    if tokens == "char":
        return Characters(characters)
    if tokens == "morse":
        return Morse("".join(sorted(set(to_morse(characters)))))
    return _train(vocabulary_size(tokens), (piece for piece in documents if not piece.held), pulse)


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
    """The content of a file; of a pipe or a device without end no more than a tokenizer may have."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"{path}: larger than any tokenizer ({LARGEST_FILE >> 20} MB)")
    return content


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a tokenizer file: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a tokenizer file: an object is expected")
    return content


def _from_pair(encoder: Path, merges: Path, name: str) -> Subwords:
    vocabulary = _json(encoder)
    try:
        lines = _bytes(merges).decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{merges} is not a list of merges: it is not UTF-8") from None
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{merges} is not a list of merges: each line holds two parts")
    return Subwords(_byte_level(vocabulary, pairs), name)


def _byte_level(vocabulary: dict[str, int], merges: list[list[str]]) -> str:
    """GPT-2's way: words with the blank before them, as bytes, then merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    parts = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}
    return definition({**parts, "normalizer": None}, "BPE")


def _train(size: int, documents: Iterator[Piece], pulse: Pulse) -> Subwords:
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
        for segment in segments(documents, untrained, Tally()):
            yield segment.text
            read += len(segment.text)

    with pulse.meanwhile(lambda: f"learning BPE: {read / 1e6:.0f} M characters read, up to {size} tokens"):
        engine.train_from_iterator(texts(), trainer)
    model = json.loads(engine.to_str())["model"]
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    return Subwords(_byte_level(model["vocab"], merges), f"bpe:{size}")
