"""Checks of a tokenizer definition before the Rust library loads it, so that no file can crash this process.

The library panics, or aborts the process, on definitions that are consistent JSON: a regex that backtracks forever, a
decoder that strips too much, a replacement that makes a text grow without bound. Sizes and growth are checked here; the
rest is tested in a child process (`tokenizer_trial`) once per definition.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..system.child_process import PythonProcess

DEEPEST = 64  # lists and objects within each other
LONGEST = 1 << 14  # characters of a token, a pattern or a replacement
LONGEST_MAP = 1 << 24  # characters of a precompiled map
MOST_PARTS = 1000  # normalizers, pre-tokenizers and decoders, in all
GROWTH = 1000  # how many times longer a text may become
PATIENCE = 120.0  # seconds for a trial, on a busy machine
TRIAL = Path(__file__).with_name("tokenizer_trial.py")

_survived: set[str] = set()


def check(parts: Mapping[str, Any], name: str) -> None:
    """Raise a ValueError for sizes, nesting and growth that no real tokenizer has."""
    if _too_deep(parts):
        raise ValueError(f"{name}: nested deeper than {DEEPEST} levels, so it is not a tokenizer")
    for key in ("normalizer", "pre_tokenizer", "decoder"):
        growth, count = 1, 0
        for part in _objects(parts.get(key)):
            count += 1
            growth *= _growth(part)
            for field, text in part.items():
                most = LONGEST_MAP if field == "precompiled_charsmap" else LONGEST
                if isinstance(text, str) and len(text) > most:
                    raise ValueError(f"{name}: {field} of its {key} has {len(text):,} characters, at most {most:,}")
        if count > MOST_PARTS:
            raise ValueError(f"{name}: its {key} has {count:,} parts, at most {MOST_PARTS:,}")
        if growth > GROWTH:
            raise ValueError(f"{name}: its {key} can make a text more than {GROWTH:,} times longer")
    for token in _tokens(parts):
        if len(token) > LONGEST:
            raise ValueError(f"{name}: a token has {len(token):,} characters, at most {LONGEST:,}")


def try_out(definition: str, name: str) -> None:
    """Encode and decode in a child process; a ValueError if the library panics, aborts or takes too long."""
    digest = hashlib.sha256(definition.encode()).hexdigest()
    if digest in _survived or _is_byte_level(json.loads(definition)) or not sys.executable:
        return
    with tempfile.TemporaryDirectory(prefix="hopflow-") as folder:
        file = Path(folder) / "definition.json"
        file.write_bytes(definition.encode())
        # -S and -E: it imports from these folders only
        child = PythonProcess(
            *("-S", "-E", str(TRIAL), str(file), *_folders()),
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a panic prints a Rust stack trace
        )
        try:
            code, output = child.output(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"{name} cannot be used: encoding a few short texts took more than {PATIENCE:g} s"
            ) from None
    if code:
        reason = output.decode(errors="replace").strip().partition("\n")[0] or _end(code)
        raise ValueError(
            f"{name} cannot be used: the library tokenizers failed on it: {reason[:200]}\n"
            "check its regular expressions, decoder and sizes, or use another tokenizer"
        )
    _survived.add(digest)


def _is_byte_level(parts: Mapping[str, Any]) -> bool:
    """Whether it is a plain byte-level BPE, as GPT-2's, which needs no test."""
    model = parts.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or parts.get("normalizer") is not None:
        return False
    around = [parts.get(key) for key in ("pre_tokenizer", "decoder")]
    plain = all(part is None or (isinstance(part, dict) and part.get("type") == "ByteLevel") for part in around)
    return plain and not any(model[key] for key in model.keys() - {"type", "vocab", "merges"})


def _growth(part: Mapping[str, Any]) -> int:
    """How many times longer this part can make a text; the longest Unicode decomposition has 18 characters."""
    kind, content = part.get("type"), part.get("content")
    if kind == "Replace" and isinstance(content, str):
        pattern = part.get("pattern")
        plain = pattern.get("String") if isinstance(pattern, dict) else None
        return max(1, -(-len(content) // max(1, len(plain))) if isinstance(plain, str) else len(content) + 1)
    return 18 if kind in ("NFKC", "NFKD", "Precompiled") else 1


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """This object and all objects inside it."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _objects(inner)


def _tokens(parts: Mapping[str, Any]) -> Iterator[str]:
    model = parts["model"]
    yield from (str(entry[0] if isinstance(entry, list) and entry else entry) for entry in model.get("vocab") or ())
    yield from (value for value in model.values() if isinstance(value, str))
    added = parts.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        yield str(token.get("content", "") if isinstance(token, dict) else token)


def _too_deep(content: Any) -> bool:
    level = [content]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _folders() -> list[str]:
    """The folders that this process imports from, as absolute paths only."""
    return [entry for entry in sys.path if Path(entry).is_absolute()]


def _end(code: int) -> str:
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
