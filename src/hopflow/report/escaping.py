"""Escaping of all text that comes from a run."""

import json
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from .legible import legible


def html(text: str) -> str:
    """Text between tags, or in a quoted attribute."""
    return escape(legible(text), quote=True)


def prose(text: str) -> str:
    """A paragraph between tags; text in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html(text))


def script_json(content: Mapping[str, Any]) -> str:
    """Data inside a script element, which cannot end the element or begin a comment."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def markdown(text: str) -> str:
    """Text on a line of markdown, also in a cell of a table: nothing in it is markup."""
    flat = " ".join(legible(text).split())
    return re.sub(r"([\\`*_\[\]<>|#&!~$])", r"\\\1", flat)


def markdown_prose(text: str) -> str:
    """A paragraph of markdown; text in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(legible(part) if place % 2 else _spaced(part) for place, part in enumerate(parts))


def _spaced(text: str) -> str:
    """`markdown` that keeps the blanks at both ends."""
    if not text.strip():
        return " " * bool(text)
    return " " * text[0].isspace() + markdown(text) + " " * text[-1].isspace()


def fence(text: str) -> str:
    """A block of literal text, in a fence longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}text\n{legible(text)}\n{bar}"
