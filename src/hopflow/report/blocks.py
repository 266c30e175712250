"""The content of a report before it is rendered: blocks, sections, and the document. Texts are plain and unescaped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from .run_data import RunData

FORMAT, VERSION = "hopflow report", 1


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; text in backticks is code."""

    text: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": "prose", "text": self.text}


@dataclass(frozen=True)
class TableBlock:
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
    """A drawing of `figures.draw_figure`; its files have its name."""

    name: str
    caption: str
    svg: str
    """Inline SVG; its colors are CSS variables of the page."""
    png: bytes = field(default=b"", repr=False)
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that are drawn."""
    wide: bool = False
    """Whether it takes the full width of the page."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "figure", "name": self.name, "caption": self.caption, "data": dict(self.data)}


@dataclass(frozen=True)
class SampleTexts:
    """Texts that a network sampled, a sentence about them, and the decoded texts if they are in Morse code."""

    texts: tuple[str, ...]
    facts: str = ""
    readings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        content = {"kind": "samples", "facts": self.facts, "texts": list(self.texts)}
        return {**content, "decoded": list(self.readings)} if self.readings else content


@dataclass(frozen=True)
class AnimationBlock:
    """An animation of sequences from source to text; paper and markdown show its stills instead."""

    name: str
    data: Mapping[str, Any]
    """From `animation.animation_data`."""
    stills: tuple[SampleTexts, ...] = ()
    """The sequences at a few times."""
    readings: tuple[str, ...] = ()
    """The final sequences decoded, if they are in Morse code."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "player", "name": self.name, "data": dict(self.data)}


@dataclass(frozen=True)
class Collapsible:
    """Blocks that are hidden until the reader opens them."""

    title: str
    blocks: tuple["Block", ...]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "folded", "title": self.title, "blocks": [block.as_json() for block in self.blocks]}


@dataclass(frozen=True)
class ShellCommands:
    """Lines to type in a shell."""

    lines: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"kind": "commands", "lines": list(self.lines)}


Block = Paragraph | TableBlock | Figure | SampleTexts | AnimationBlock | Collapsible | ShellCommands


@dataclass(frozen=True)
class Section:
    """A heading with its anchor, and the blocks below it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]

    def as_json(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "title": self.title, "blocks": [block.as_json() for block in self.blocks]}


@dataclass(frozen=True)
class ReportDocument:
    """Everything that a report shows."""

    title: str
    headline: str
    """The result in one sentence; empty if nothing was measured."""
    lead: str
    """One sentence on what these runs are."""
    runs: tuple[RunData, ...]
    sections: tuple[Section, ...]

    def as_json(self) -> dict[str, Any]:
        """The content of report.json: every number of the page, and where it comes from."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "hopflow": __version__,
            "title": self.title,
            "headline": self.headline,
            "runs": [run.as_json() for run in self.runs],
            "sections": [section.as_json() for section in self.sections],
        }
