"""A report as markdown, with figures as PNG files. All text from runs is escaped here."""

import re
from functools import singledispatch

from ..system.safe_text import printable
from .blocks import (
    AnimationBlock,
    Block,
    Collapsible,
    Figure,
    Paragraph,
    ReportDocument,
    SampleTexts,
    ShellCommands,
    TableBlock,
)
from .page import FOOTER

# -- escaping ----------------------------------------------------------------------------------------------------------


def escape_markdown(text: str) -> str:
    """Text on one line of markdown, also in a table cell; nothing in it is markup."""
    flat = " ".join(printable(text).split())
    return re.sub(r"([\\`*_\[\]<>|#&!~$])", r"\\\1", flat)


def escape_paragraph(text: str) -> str:
    """A paragraph of markdown; text in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(printable(part) if place % 2 else _escape_part(part) for place, part in enumerate(parts))


def _escape_part(text: str) -> str:
    """`escape_markdown` that keeps the blanks at both ends."""
    if not text.strip():
        return " " * bool(text)
    return " " * text[0].isspace() + escape_markdown(text) + " " * text[-1].isspace()


def fence(text: str) -> str:
    """A block of literal text, in a fence that is longer than any fence in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}text\n{printable(text)}\n{bar}"


# -- document ----------------------------------------------------------------------------------------------------------


def render_markdown(report: ReportDocument, figures: str) -> str:
    """The complete text; `figures` is the folder of the figures."""
    parts = [f"# {escape_markdown(report.title)}"]
    parts += [f"**{escape_markdown(report.headline)}**"] if report.headline else []
    parts.append(escape_markdown(report.lead))
    for section in report.sections:
        parts += [f"## {escape_markdown(section.title)}", *(_block(block, figures) for block in section.blocks)]
    parts.append(FOOTER)
    return "\n\n".join(parts) + "\n"


@singledispatch
def _block(block: Block, figures: str) -> str:
    raise TypeError(f"no markdown is defined for the block {type(block).__name__}")


@_block.register
def _paragraph(block: Paragraph, figures: str) -> str:
    return escape_paragraph(block.text)


@_block.register
def _table(block: TableBlock, figures: str) -> str:
    lines = [_line(block.head), "|" + "---|" * len(block.head), *map(_line, block.rows)]
    return "\n".join(lines) + (f"\n\n{escape_markdown(block.caption)}" if block.caption else "")


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(escape_markdown(cell) for cell in cells)} |"


@_block.register
def _figure(block: Figure, figures: str) -> str:
    first = block.caption.partition(". ")[0]
    return f"![{escape_markdown(first)}]({figures}/{block.name}.png)\n\n{escape_markdown(block.caption)}"


@_block.register
def _samples(block: SampleTexts, figures: str) -> str:
    parts = [escape_markdown(block.facts)]
    for text, reading in zip(block.texts, block.readings or ("",) * len(block.texts), strict=True):
        parts += [fence(text), *([f"decoded: {escape_markdown(reading)}"] if reading else [])]
    return "\n\n".join(parts)


@_block.register
def _animation(block: AnimationBlock, figures: str) -> str:
    return "\n\n".join(_samples(still, figures) for still in block.stills)


@_block.register
def _collapsible(block: Collapsible, figures: str) -> str:
    return "\n\n".join([f"**{escape_markdown(block.title)}**", *(_block(inner, figures) for inner in block.blocks)])


@_block.register
def _commands(block: ShellCommands, figures: str) -> str:
    return fence("\n".join(block.lines))
