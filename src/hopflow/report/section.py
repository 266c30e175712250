"""Blocks that a report is made of. They do not know how they are rendered; texts are plain and unescaped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": "prose", "text": self.text}


@dataclass(frozen=True)
class Table:
    """A table of text; the first column names the rows."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if uneven := [row for row in self.rows if len(row) != len(self.head)]:
            raise ValueError(f"a row has {len(uneven[0])} cells under {len(self.head)} headings: {uneven[0]}")

    def as_json(self) -> dict[str, Any]:
        return {"kind": "table", "caption": self.caption, "head": list(self.head), "rows": [list(r) for r in self.rows]}


@dataclass(frozen=True)
class Figure:
    """A drawing, made by `figures.drawn`; its files have its name."""

    name: str
    caption: str
    svg: str
    """Inline SVG whose colours are variables of the page."""
    png: bytes = field(default=b"", repr=False)
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that were drawn."""
    wide: bool = False
    """Whether it takes the full width."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "figure", "name": self.name, "caption": self.caption, "data": dict(self.data)}


@dataclass(frozen=True)
class Samples:
    """Texts that a run drew, a sentence about them, and what they read decoded where they are in Morse code."""

    texts: tuple[str, ...]
    facts: str = ""
    readings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        content = {"kind": "samples", "facts": self.facts, "texts": list(self.texts)}
        return {**content, "decoded": list(self.readings)} if self.readings else content


@dataclass(frozen=True)
class Player:
    """Sequences that hop, played by the script of the page; elsewhere its stills are shown."""

    name: str
    data: Mapping[str, Any]
    stills: tuple[Samples, ...] = ()
    """The sequences at a few times, for paper and markdown."""
    readings: tuple[str, ...] = ()
    """The finished sequences decoded, where they are in Morse code."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "player", "name": self.name, "data": dict(self.data)}


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    title: str
    blocks: tuple["Block", ...]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "folded", "title": self.title, "blocks": [block.as_json() for block in self.blocks]}


@dataclass(frozen=True)
class Commands:
    """Lines to type in a shell."""

    lines: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "commands", "lines": list(self.lines)}


Block = Prose | Table | Figure | Samples | Player | Folded | Commands


@dataclass(frozen=True)
class Section:
    """A heading with its anchor, and the blocks below it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]

    def as_json(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "title": self.title, "blocks": [block.as_json() for block in self.blocks]}
