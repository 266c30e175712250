"""Preparing: a source and a choice of tokens -> a store."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .corpora import cache_folder, resolve
from .cutting import segments
from .making import chosen, from_text, named_in_cache, ready_made
from .pulse import Pulse
from .reading import Piece, Tally, kind
from .sources import Source
from .splitting import split, survey
from .store import FORMAT, Store, Writer, open_or_build
from .tokenizers import Ids, Tokenizer, canonical

BATCH = 1 << 20  # characters tokenised at once


@dataclass(frozen=True)
class Plan:
    """All that decides which tokens a store holds; its hash is the store's name."""

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
    pulse: Pulse,
    offline: bool,
) -> Store:
    """Find the source, and tokenise it unless the cache holds it already."""
    folder = cache_folder(cache)
    tokenizer = ready_made(tokens, folder, pulse, offline)
    with resolve(source, folder, pulse, offline) as found:
        plan = Plan(
            FORMAT,
            found.sha256(folder, pulse),
            kind(found.files[0]),
            tokenizer.sha256 if tokenizer else named_in_cache(str(tokens)),
            float(holdout),
            seed,
            pack,
        )

        def build(target: Path) -> None:
            _build(target, found, plan, tokenizer, pulse)
            if found.sha256(folder, pulse) != plan.source_sha256:
                raise ValueError(f"{found.name} changed while it was read; try again when it is complete")

        return open_or_build(folder / "tokens" / plan.key, build, pulse)


def _build(target: Path, source: Source, plan: Plan, tokenizer: Tokenizer | None, pulse: Pulse) -> None:
    found = survey(source, pulse)
    if tokenizer is None:
        documents = split(source, found, plan.holdout, plan.seed, Tally())
        tokens = chosen(plan.tokens, found.tally.characters, len(found.characters))
        tokenizer = from_text(tokens, found.characters, documents, pulse)
    if found.several or not plan.pack:
        tokenizer = tokenizer.with_end()
    writer, tally, start = Writer(target, tokenizer), Tally(), time.perf_counter()
    try:
        documents = split(source, found, plan.holdout, plan.seed, tally)
        for piece, ids in _tokenised(documents, tokenizer, tally):
            writer.add("test" if piece.held else "train", ids, piece.last)
            pulse.beat(lambda: _how_far(source, tally, found.tally, start))
        seconds = time.perf_counter() - start
        about = {"source": source.name, "plan": asdict(plan), "read": tally.as_json(), "seconds": round(seconds, 3)}
        writer.finish(about)
    finally:
        writer.close()


def _tokenised(documents: Iterable[Piece], tokenizer: Tokenizer, tally: Tally) -> Iterator[tuple[Piece, Ids]]:
    """Segments with their ids, many at a time: the tokenizer then works on all cores."""
    waiting: list[Piece] = []
    characters = 0
    for segment in segments(documents, tokenizer, tally):
        waiting.append(segment)
        characters += len(segment.text)
        if characters >= BATCH:
            yield from zip(waiting, tokenizer.encode_all([piece.text for piece in waiting]), strict=True)
            waiting, characters = [], 0
    if waiting:
        yield from zip(waiting, tokenizer.encode_all([piece.text for piece in waiting]), strict=True)


def _how_far(source: Source, tally: Tally, total: Tally, start: float) -> str:
    rate = tally.bytes / 1e6 / max(time.perf_counter() - start, 1e-3)
    return f"tokenising {source.name}: {tally.bytes / max(total.bytes, 1):.0%}, {rate:.1f} MB/s"
