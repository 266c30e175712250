"""Segments of documents that can be tokenized separately with the same ids as the complete document."""

from collections.abc import Iterable, Iterator

from .documents import DocumentChunk, ReadStatistics
from .tokenizers import Tokenizer

WINDOW = 128  # characters on each side of a cut that decide whether it is safe
SEGMENT = 1 << 16  # characters
LONGEST = 1 << 20  # characters without a safe place to cut, after which the text is cut anyway and counted


def segments(
    chunks: Iterable[DocumentChunk], tokenizer: Tokenizer, statistics: ReadStatistics, size: int = SEGMENT
) -> Iterator[DocumentChunk]:
    """The documents in segments of about `size` characters."""
    text = ""
    for chunk in chunks:
        text += chunk.text
        while len(text) > size + WINDOW:
            at = _place(text, tokenizer, size)
            if not at and len(text) < LONGEST + WINDOW:
                break  # more text may contain a safe place
            statistics.forced_cuts += not at
            at = at or LONGEST
            yield DocumentChunk(text[:at], False, chunk.held)
            text = text[at:]
        if chunk.last:
            yield DocumentChunk(text, True, chunk.held)
            text = ""


def _place(text: str, tokenizer: Tokenizer, near: int) -> int:
    """A safe place to cut near `near`, or later, with enough text after it to check; 0 if there is none."""
    while near + WINDOW < len(text) and near <= LONGEST:
        if at := tokenizer.cut(text, near):
            return at
        near *= 2
    return 0
