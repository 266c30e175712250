"""The named corpora and tokenizers that `hopflow data` lists, downloads and prepares."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..system.hints import did_you_mean
from ..system.progress import Progress, ProgressCallback
from .file_hashes import file_sha256
from .load_corpus import load
from .named_corpora import NAMED, cache_folder, data_folder, local_corpora, obtain, state


@dataclass(frozen=True)
class CatalogueEntry:
    """A corpus or tokenizer with a name, and where it is."""

    name: str
    what: str
    licence: str
    bytes: int | None
    where: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def entries() -> list[CatalogueEntry]:
    """All named corpora and tokenizers, then the folders of $HOPFLOW_DATA."""
    cache = cache_folder()
    named = [CatalogueEntry(n.name, n.what, n.licence, n.bytes, state(n, cache)) for n in NAMED.values()]
    for name, source in local_corpora().items():
        files = [path for paths in source.splits.values() for path in paths]
        what = f"{len(files)} files, splits: {', '.join(source.splits)}"
        size = sum(path.stat().st_size for path in files)
        named.append(CatalogueEntry(name, what, "see its folder", size, str(data_folder())))
    return named


def fetch(name: str, progress: ProgressCallback | None = None, offline: bool = False) -> dict[str, Any]:
    """Download a named corpus, unless it is here already; returns facts about it."""
    if name not in NAMED:
        hint = did_you_mean(name.lower(), NAMED) or f"known names: {', '.join(NAMED)}"
        raise ValueError(f"{name!r} is not a corpus that can be downloaded\n{hint}")
    named, cache, status = NAMED[name], cache_folder(), Progress(progress)
    before = state(named, cache)
    folder = obtain(named, cache, status, offline)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    facts: dict[str, Any] = {"name": name, "was": before, "licence": named.licence}
    if named.wheel:
        facts |= {"wheel": named.wheel.file, "wheel_sha256": named.wheel.sha256}
    facts |= {"files": len(files), "bytes": sum(path.stat().st_size for path in files), "folder": str(folder)}
    if len(files) <= 4:
        facts |= {f"sha256 of {path.name}": file_sha256(path, cache, status) for path in files}
    return facts


def prepare(source: str, progress: ProgressCallback | None = None, **choices: Any) -> dict[str, Any]:
    """Tokenize a source; returns facts about the result."""
    corpus = load(source, progress=progress, **choices)
    header = corpus.store.header
    read, seconds = header["read"], header["seconds"]
    counted = {
        name: count for name, count in read.items() if name not in ("bytes", "characters", "documents") and count
    }
    facts: dict[str, Any] = {
        "source": header["source"],
        **corpus.identity,
        "bytes": read["bytes"],
        "characters": read["characters"],
    }
    facts |= {"dtype": header["dtype"], "prepared_in_seconds": seconds}
    facts |= {"bytes_per_second": round(read["bytes"] / max(seconds, 1e-3)), **counted}
    return {**facts, "folder": str(Path(corpus.store.folder).resolve())}
