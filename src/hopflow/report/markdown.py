"""A report as markdown; its figures are PNG files."""

from functools import singledispatch

from .compose import Report
from .escaping import fence, markdown, markdown_prose
from .page import FOOTER
from .section import Block, Commands, Figure, Folded, Player, Prose, Samples, Table


def document(report: Report, figures: str) -> str:
    """The complete text; figures are in the folder of that name."""
    parts = [f"# {markdown(report.title)}", *([f"**{markdown(report.headline)}**"] if report.headline else [])]
    parts.append(markdown(report.lead))
    for section in report.sections:
        parts += [f"## {markdown(section.title)}", *(_block(block, figures) for block in section.blocks)]
    parts.append(FOOTER)
    return "\n\n".join(parts) + "\n"


@singledispatch
def _block(block: Block, figures: str) -> str:
    raise TypeError(f"markdown cannot show a {type(block).__name__}")


@_block.register
def _prose(block: Prose, figures: str) -> str:
    return markdown_prose(block.text)


@_block.register
def _table(block: Table, figures: str) -> str:
    lines = [_line(block.head), "|" + "---|" * len(block.head), *map(_line, block.rows)]
    return "\n".join(lines) + (f"\n\n{markdown(block.caption)}" if block.caption else "")


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(markdown(cell) for cell in cells)} |"


@_block.register
def _figure(block: Figure, figures: str) -> str:
    first = block.caption.partition(". ")[0]
    return f"![{markdown(first)}]({figures}/{block.name}.png)\n\n{markdown(block.caption)}"


@_block.register
def _samples(block: Samples, figures: str) -> str:
    parts = [markdown(block.facts)]
    for text, reading in zip(block.texts, block.readings or ("",) * len(block.texts), strict=True):
        parts += [fence(text), *([f"decoded: {markdown(reading)}"] if reading else [])]
    return "\n\n".join(parts)


@_block.register
def _player(block: Player, figures: str) -> str:
    return "\n\n".join(_samples(still, figures) for still in block.stills)


@_block.register
def _folded(block: Folded, figures: str) -> str:
    return "\n\n".join([f"**{markdown(block.title)}**", *(_block(inner, figures) for inner in block.blocks)])


@_block.register
def _commands(block: Commands, figures: str) -> str:
    return fence("\n".join(block.lines))
