"""A report as one HTML file that loads nothing else."""

import re
from functools import singledispatch
from importlib.resources import files
from itertools import groupby

from .. import __version__
from . import player
from .compose import Report
from .escaping import html, prose
from .player import decoded
from .section import Block, Commands, Figure, Folded, Player, Prose, Samples, Section, Table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded, whatever the texts on the page contain."""
SHORT = 480
"""Characters of a sample that are shown before it is unfolded."""
FOOTER = f"Made by hopflow {__version__}. ± is one standard error over n independent units; ± ? where it is unknown."
FEW = 3
"""Columns of a table whose numbers may wrap on a phone, so that it need not scroll."""
LONG = 44
"""Characters from which on a cell may wrap."""


def page(report: Report) -> str:
    """The complete file."""
    title = html(report.title)
    contents = "".join(f'<li><a href="#{html(s.anchor)}">{html(s.title)}</a></li>' for s in report.sections)
    sections = "\n".join(_section(section) for section in report.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hopflow {__version__}">
<title>{title}</title>
<style>
{_file("page.css")}{_file("player.css")}</style>
</head>
<body>
<header><h1><bdi>{title}</bdi></h1>{_headline(report.headline)}<p class="lead">{html(report.lead)}</p></header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{sections}
</main>
<footer>{FOOTER}</footer>
<script>
{_file("player.js")}</script>
</body>
</html>
"""


def _headline(text: str) -> str:
    """Numbers keep their error and unit on the same line."""
    bound = re.sub(" (?=[±%=])|(?<=[±=]) ", "\u00a0", text)
    return f'<p class="headline">{html(bound)}</p>' if text else ""


def _section(section: Section) -> str:
    return (
        f'<section id="{html(section.anchor)}">\n<h2>{html(section.title)}</h2>\n{_blocks(section.blocks)}\n</section>'
    )


def _blocks(blocks: tuple[Block, ...]) -> str:
    """One below the other, and figures side by side where there is room."""
    parts = []
    for figures, group in groupby(blocks, key=lambda block: isinstance(block, Figure)):
        shown = "\n".join(_block(block) for block in group)
        parts.append(f'<div class="figures">\n{shown}\n</div>' if figures else shown)
    return "\n".join(parts)


@singledispatch
def _block(block: Block) -> str:
    raise TypeError(f"a page cannot show a {type(block).__name__}")


@_block.register
def _prose(block: Prose) -> str:
    return f"<p>{prose(block.text)}</p>"


@_block.register
def _table(block: Table) -> str:
    head = "".join(f'<th scope="col">{html(cell)}</th>' for cell in block.head)
    rows = "\n".join(_row(row) for row in block.rows)
    few = " few" if len(block.head) <= FEW else ""
    caption = f"<caption>{html(block.caption)}</caption>" if block.caption else ""
    return (
        f'<div class="table{few}" tabindex="0" role="region" aria-label="{html(block.caption or "table")}">'
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(row: tuple[str, ...]) -> str:
    first, *others = row
    cells = "".join(f"<td{_length(cell)}>{html(cell)}</td>" for cell in others)
    return f'<tr><th scope="row"{_length(first)}>{html(first)}</th>{cells}</tr>'


def _length(cell: str) -> str:
    """Sentences may wrap, numbers may not."""
    return ' class="long"' if len(cell) > LONG else ""


@_block.register
def _figure(block: Figure) -> str:
    kind = ' class="wide"' if block.wide else ""
    return f'<figure{kind} id="{html(block.name)}">{block.svg}<figcaption>{html(block.caption)}</figcaption></figure>'


@_block.register
def _samples(block: Samples) -> str:
    readings = block.readings or ("",) * len(block.texts)
    both = zip(block.texts, readings, strict=True)
    texts = "\n".join(f"<li>{_text(text)}{decoded(reading)}</li>" for text, reading in both)
    return f'<p class="facts">{html(block.facts)}</p>\n<ol class="samples">\n{texts}\n</ol>'


def _text(text: str) -> str:
    """With its own writing direction; long texts are folded."""
    whole = f'<pre dir="auto">{html(text)}</pre>'
    if len(text) <= SHORT:
        return whole
    return f'<details><summary><bdi dir="auto">{html(text[:SHORT])}…</bdi></summary>{whole}</details>'


@_block.register
def _player(block: Player) -> str:
    return player.markup(block)


@_block.register
def _folded(block: Folded) -> str:
    return f'<details class="folded"><summary>{html(block.title)}</summary>\n{_blocks(block.blocks)}\n</details>'


@_block.register
def _commands(block: Commands) -> str:
    return f'<pre class="commands"><code>{html(chr(10).join(block.lines))}</code></pre>'


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
