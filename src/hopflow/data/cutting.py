"""Cutting: documents -> segments that can be tokenised one by one, with the ids of the whole document."""

from collections.abc import Iterable, Iterator

from .reading import Piece, Tally
from .tokenizers import WINDOW, Tokenizer

SEGMENT = 1 << 16  # characters
LONGEST = 1 << 20  # characters without a safe place to cut; beyond it the cut is made and counted


def segments(pieces: Iterable[Piece], tokenizer: Tokenizer, tally: Tally, size: int = SEGMENT) -> Iterator[Piece]:
    """The same documents in segments of about `size` characters, however long their lines are."""
    text = ""
    for piece in pieces:
        text += piece.text
        while len(text) > size + WINDOW:
            at = _place(text, tokenizer, size)
            if not at and len(text) < LONGEST + WINDOW:
                break  # more text may bring a better place
            tally.forced_cuts += not at
            at = at or LONGEST
            yield Piece(text[:at], False, piece.held)
            text = text[at:]
        if piece.last:
            yield Piece(text, True, piece.held)
            text = ""


def _place(text: str, tokenizer: Tokenizer, near: int) -> int:
    """A safe place near `near`, or further on, always with enough text behind it to judge; 0 if there is none."""
    while near + WINDOW < len(text) and near <= LONGEST:
        if at := tokenizer.cut(text, near):
            return at
        near *= 2
    return 0
