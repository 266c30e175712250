"""Catalogue: what `hopflow data` lists, fetches and reports."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..hints import did_you_mean
from .corpora import NAMED, cache_folder, data_folder, neighbours, obtain, state
from .corpus import load
from .file_hashes import file_sha256
from .pulse import Progress, Pulse


@dataclass(frozen=True)
class Row:
    """A corpus or tokenizer that can be asked for by name."""

    name: str
    what: str
    licence: str
    bytes: int | None
    where: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rows() -> list[Row]:
    """The names that are built in or pinned, then the folders of $HOPFLOW_DATA."""
    cache = cache_folder()
    named = [Row(n.name, n.what, n.licence, n.bytes, state(n, cache)) for n in NAMED.values()]
    for name, source in neighbours().items():
        files = [path for paths in source.splits.values() for path in paths]
        what = f"{len(files)} files, splits: {', '.join(source.splits)}"
        size = sum(path.stat().st_size for path in files)
        named.append(Row(name, what, "see its folder", size, str(data_folder())))
    return named


def fetch(name: str, progress: Progress | None = None, offline: bool = False) -> dict[str, Any]:
    """Bring a named corpus here; where it already is, nothing is fetched."""
    if name not in NAMED:
        hint = did_you_mean(name.lower(), NAMED) or f"known names: {', '.join(NAMED)}"
        raise ValueError(f"{name!r} is not a corpus that can be fetched\n{hint}")
    named, cache, pulse = NAMED[name], cache_folder(), Pulse(progress)
    before = state(named, cache)
    folder = obtain(named, cache, pulse, offline)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    facts: dict[str, Any] = {"name": name, "was": before, "licence": named.licence}
    if named.wheel:
        facts |= {"wheel": named.wheel.file, "wheel_sha256": named.wheel.sha256}
    facts |= {"files": len(files), "bytes": sum(path.stat().st_size for path in files), "folder": str(folder)}
    if len(files) <= 4:
        facts |= {f"sha256 of {path.name}": file_sha256(path, cache, pulse) for path in files}
    return facts


def prepare(source: str, progress: Progress | None = None, **choices: Any) -> dict[str, Any]:
    """Tokenise a source and tell what came of it."""
    corpus = load(source, progress=progress, **choices)
    header = corpus.store.header
    read, seconds = header["read"], header["seconds"]
    met = {name: count for name, count in read.items() if name not in ("bytes", "characters", "documents") and count}
    facts: dict[str, Any] = {
        "source": header["source"],
        **corpus.identity,
        "bytes": read["bytes"],
        "characters": read["characters"],
    }
    facts |= {"dtype": header["dtype"], "prepared_in_seconds": seconds}
    facts |= {"bytes_per_second": round(read["bytes"] / max(seconds, 1e-9)), **met}
    return {**facts, "folder": str(Path(corpus.store.folder).resolve())}
