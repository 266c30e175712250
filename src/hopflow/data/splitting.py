"""Splitting: which documents are trained on and which are held out."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .order import shuffled
from .pulse import Pulse
from .reading import Piece, Tally, read
from .sources import Source
from .tokenizers import code_points

UNICODE = 0x110000


@dataclass(frozen=True)
class Survey:
    """What a first reading of a source finds: how much there is, and of which characters."""

    tally: Tally
    characters: str
    several: bool  # documents in one split, so that there is something to part


def survey(source: Source, pulse: Pulse) -> Survey:
    tally, seen = Tally(), np.zeros(UNICODE, bool)
    documents = []
    for files in (source.training, source.held_out):
        before = tally.documents
        for piece in read(files, tally):
            seen[code_points(piece.text)] = True
            pulse.beat(lambda: f"reading {source.name}: {tally.bytes / 1e6:.0f} MB")
        documents.append(tally.documents - before)
    if not tally.documents:
        raise ValueError(f"{source.name} is empty: there is nothing to learn from")
    return Survey(tally, "".join(map(chr, np.flatnonzero(seen))), max(documents) > 1)


def split(source: Source, found: Survey, holdout: float, seed: int, tally: Tally) -> Iterator[Piece]:
    """Every document, marked where it is held out: by the source's own splits, by document, or a text's last part."""
    if source.held_out:
        yield from read(source.training, tally)
        for piece in read(source.held_out, tally):
            yield piece._replace(held=True)
    elif found.tally.documents == 1:
        yield from _last_part(read(source.files, tally), round((1 - holdout) * found.tally.characters))
    else:
        yield from _by_document(read(source.files, tally), found.tally.documents, holdout, seed)


def _last_part(pieces: Iterator[Piece], border: int) -> Iterator[Piece]:
    """One document: the first `border` characters are trained on, the rest is held out."""
    position = 0
    for piece in pieces:
        first, rest = piece.text[: max(border - position, 0)], piece.text[max(border - position, 0) :]
        if first:
            yield Piece(first, piece.last or bool(rest))
        if rest:
            yield Piece(rest, piece.last, held=True)
        position += len(piece.text)


def _by_document(pieces: Iterator[Piece], documents: int, holdout: float, seed: int) -> Iterator[Piece]:
    count = round(holdout * documents)
    if 0 < holdout < 1:
        count = min(max(count, 1), documents - 1)
    marks = _marks(documents, count, seed)
    held, fresh = False, True
    for piece in pieces:
        if fresh:
            held = next(marks)
        fresh = piece.last
        yield piece._replace(held=held)


def _marks(documents: int, count: int, seed: int, block: int = 1 << 12) -> Iterator[bool]:
    """`count` of the documents, chosen by the seed, without a list of all of them."""
    for start in range(0, documents, block):
        index = np.arange(start, min(start + block, documents))
        yield from (shuffled(index, documents, seed, 0) < count).tolist()
