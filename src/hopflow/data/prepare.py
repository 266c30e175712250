"""Tokenize a source into a store, or find it in the cache."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..system.progress import Progress
from .build_tokenizer import chosen, existing_tokenizer, from_text, named_in_cache
from .documents import DocumentChunk, ReadStatistics, kind, read
from .held_out_split import scan, split
from .named_corpora import cache_folder, resolve
from .segments import segments
from .store import FORMAT, Store, StoreWriter, open_or_build
from .text_files import TextFiles
from .tokenizers import Ids, Tokenizer, canonical

BATCH = 1 << 20  # characters tokenized at once


@dataclass(frozen=True)
class Preparation:
    """Everything that determines the tokens of a store; its hash is the name of the store."""

    format: int
    source_sha256: str
    kind: str
    tokens: str
    holdout: float
    seed: int
    pack: bool

    @property
    def key(self) -> str:
        return hashlib.sha256(canonical(asdict(self))).hexdigest()[:32]


def prepare(
    source: str | Path,
    tokens: str | Path | Tokenizer,
    holdout: float,
    pack: bool,
    cache: Path | str | None,
    seed: int,
    progress: Progress,
    offline: bool,
) -> Store:
    """The store of a tokenized source, from the cache if it is there."""
    folder = cache_folder(cache)
    tokenizer = existing_tokenizer(tokens, folder, progress, offline)
    with resolve(source, folder, progress, offline) as found:
        next(read(found.files[:1], ReadStatistics()), None)  # a large binary file is refused before it is hashed
        preparation = Preparation(
            FORMAT,
            found.sha256(folder, progress),
            kind(found.files[0]),
            tokenizer.sha256 if tokenizer else named_in_cache(str(tokens)),
            float(holdout),
            seed,
            pack,
        )

        def build(target: Path) -> None:
            _build(target, found, preparation, tokenizer, progress)
            if found.sha256(folder, progress) != preparation.source_sha256:
                raise ValueError(f"{found.name} changed while it was read: try again when it is complete")

        return open_or_build(folder / "tokens" / preparation.key, build, progress)


def _build(
    target: Path, source: TextFiles, preparation: Preparation, tokenizer: Tokenizer | None, progress: Progress
) -> None:
    found = scan(source, progress)
    if tokenizer is None:
        documents = split(source, found, preparation.holdout, preparation.seed, ReadStatistics())
        tokens = chosen(preparation.tokens, found.statistics.characters, len(found.characters))
        tokenizer = from_text(tokens, found.characters, documents, progress)
    if found.several or not preparation.pack:
        tokenizer = tokenizer.with_end()
    writer, statistics, start = StoreWriter(target, tokenizer), ReadStatistics(), time.perf_counter()
    try:
        documents = split(source, found, preparation.holdout, preparation.seed, statistics)
        for chunk, ids in _tokenised(documents, tokenizer, statistics):
            writer.add("test" if chunk.held else "train", ids, chunk.last)
            progress.update(lambda: _progress_text(source, statistics, found.statistics, start))
        seconds = time.perf_counter() - start
        about = {
            "source": source.name,
            "plan": asdict(preparation),
            "read": statistics.as_json(),
            "seconds": round(seconds, 3),
        }
        writer.finish(about)
    finally:
        writer.close()


def _tokenised(
    documents: Iterable[DocumentChunk], tokenizer: Tokenizer, statistics: ReadStatistics
) -> Iterator[tuple[DocumentChunk, Ids]]:
    """Segments with their ids; many are tokenized at once, which uses all cores."""
    pending: list[DocumentChunk] = []
    characters = 0
    for segment in segments(documents, tokenizer, statistics):
        pending.append(segment)
        characters += len(segment.text)
        if characters >= BATCH:
            yield from zip(pending, tokenizer.encode_all([chunk.text for chunk in pending]), strict=True)
            pending, characters = [], 0
    if pending:
        yield from zip(pending, tokenizer.encode_all([chunk.text for chunk in pending]), strict=True)


def _progress_text(source: TextFiles, statistics: ReadStatistics, total: ReadStatistics, start: float) -> str:
    rate = statistics.bytes / 1e6 / max(time.perf_counter() - start, 1e-3)
    return f"tokenizing {source.name}: {statistics.bytes / max(total.bytes, 1):.0%}, {rate:.1f} MB/s"
