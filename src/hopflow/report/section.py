"""Section: what a report is made of. Nothing here knows how it is shown; texts are plain and unescaped."""

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
    """Names in the first column, cells as they are shown."""

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
    """A drawing, made by `figures.drawn`; its name is that of its files."""

    name: str
    caption: str
    svg: str
    """To stand in a page: its colours are the page's variables."""
    png: bytes = field(default=b"", repr=False)
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that were drawn."""
    wide: bool = False
    """Whether it wants a row of its own."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "figure", "name": self.name, "caption": self.caption, "data": dict(self.data)}


@dataclass(frozen=True)
class Samples:
    """Texts that a run drew, and what is known of them, such as the step."""

    texts: tuple[str, ...]
    facts: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "samples", "facts": self.facts, "texts": list(self.texts)}


@dataclass(frozen=True)
class Player:
    """Sequences that hop, to be played by the page's script; elsewhere its stills are shown."""

    name: str
    data: Mapping[str, Any]
    stills: tuple[Samples, ...] = ()
    """What it looks like at a few times, for paper and markdown."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "player", "name": self.name, "data": dict(self.data)}


@dataclass(frozen=True)
class Folded:
    """What few will want to see: a line that opens when it is asked for."""

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
    """A heading, by which it is also found, and what stands below it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]

    def as_json(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "title": self.title, "blocks": [block.as_json() for block in self.blocks]}
