"""Which documents are trained on and which are held out."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..system.progress import Progress
from .corpus import shuffled
from .documents import DocumentChunk, ReadStatistics, read
from .text_files import TextFiles
from .tokenizers import code_points

UNICODE = 0x110000
BLOCK = 1 << 12  # documents that are marked at once


@dataclass(frozen=True)
class TextStatistics:
    """The result of reading a text once: its size, its distinct characters, and whether it has several documents."""

    statistics: ReadStatistics
    characters: str
    several: bool  # more than one document in a split


def scan(source: TextFiles, progress: Progress) -> TextStatistics:
    """Read a text once, to count its documents and to find its characters."""
    statistics, seen = ReadStatistics(), np.zeros(UNICODE, bool)
    documents = []
    for files in (source.training, source.held_out):
        before = statistics.documents
        for chunk in read(files, statistics):
            seen[code_points(chunk.text)] = True
            progress.update(lambda: f"reading {source.name}: {statistics.bytes / 1e6:.0f} MB")
        documents.append(statistics.documents - before)
    if not statistics.documents:
        raise ValueError(f"{source.name} is empty: there is no text")
    return TextStatistics(statistics, "".join(map(chr, np.flatnonzero(seen))), max(documents) > 1)


def split(
    source: TextFiles, found: TextStatistics, holdout: float, seed: int, statistics: ReadStatistics
) -> Iterator[DocumentChunk]:
    """All documents, marked if held out: the source's own split, a choice of documents, or the last part of one."""
    if source.held_out:
        yield from read(source.training, statistics)
        for chunk in read(source.held_out, statistics):
            yield chunk._replace(held=True)
    elif found.statistics.documents == 1:
        yield from _last_part(read(source.files, statistics), round((1 - holdout) * found.statistics.characters))
    else:
        yield from _by_document(read(source.files, statistics), found.statistics.documents, holdout, seed)


def _last_part(chunks: Iterator[DocumentChunk], border: int) -> Iterator[DocumentChunk]:
    """One document, whose text after the first `border` characters is held out."""
    position = 0
    for chunk in chunks:
        first, rest = chunk.text[: max(border - position, 0)], chunk.text[max(border - position, 0) :]
        if first:
            yield DocumentChunk(first, chunk.last or position + len(chunk.text) >= border)
        if rest:
            yield DocumentChunk(rest, chunk.last, held=True)
        position += len(chunk.text)


def _by_document(chunks: Iterator[DocumentChunk], documents: int, holdout: float, seed: int) -> Iterator[DocumentChunk]:
    count = round(holdout * documents)
    if 0 < holdout < 1:
        count = min(max(count, 1), documents - 1)
    marks = _marks(documents, count, seed)
    held, fresh = False, True
    for chunk in chunks:
        if fresh:
            held = next(marks)
        fresh = chunk.last
        yield chunk._replace(held=held)


def _marks(documents: int, count: int, seed: int) -> Iterator[bool]:
    """For each document whether it is among the `count` that the seed chooses, without a list of all documents."""
    for start in range(0, documents, BLOCK):
        index = np.arange(start, min(start + BLOCK, documents))
        yield from (shuffled(index, documents, seed, 0) < count).tolist()
