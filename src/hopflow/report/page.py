"""A report as one HTML file that loads nothing else. All text from runs is escaped here."""

import json
import re
from collections.abc import Mapping
from functools import singledispatch
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from .. import __version__
from ..system.safe_text import printable
from .animation import FINAL, MOVED, PROMPT, SOURCE, AnimationFrame, frames_at
from .blocks import (
    AnimationBlock,
    Block,
    Collapsible,
    Figure,
    Paragraph,
    ReportDocument,
    SampleTexts,
    Section,
    ShellCommands,
    TableBlock,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The content security policy: nothing may be loaded, whatever the texts on the page contain."""
SHORT_SAMPLE = 480
"""Characters of a sample that are shown before the reader opens it."""
FOOTER = (
    f"Made by hopflow {__version__}. ± is one standard error (s.e.) over n independent sequences, samples or batches; "
    "± ? if it is unknown."
)
FEW_COLUMNS = 3
"""A table with at most this many columns wraps its numbers on a phone, so that it need not scroll."""
VALUE = re.compile(r"[-+−]?\d[\d.,e]* ± [\d.,e?-]+(?: %)?")
"""A value with its error, which does not wrap on a wide page."""
LONG_CELL = 44
"""Cells with more characters wrap."""
SLIDER_TICKS, SLIDER_START = 200, 100
"""Positions of the slider, and the first one: half-way, all colors are visible. An arrow key moves it by one."""
LEGEND = {SOURCE: "source", MOVED: "just hopped, or will hop again", FINAL: "final", PROMPT: "prompt"}


# -- escaping ----------------------------------------------------------------------------------------------------------


def escape_html(text: str) -> str:
    """Text between tags, or in a quoted attribute."""
    return escape(printable(text), quote=True)


def escape_paragraph(text: str) -> str:
    """A paragraph between tags; text in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape_html(text))


def script_json(content: Mapping[str, Any]) -> str:
    """JSON inside a script element; it can neither end the element nor begin a comment."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- page --------------------------------------------------------------------------------------------------------------


def render_page(report: ReportDocument) -> str:
    """The complete HTML file."""
    title = escape_html(report.title)
    contents = "".join(
        f'<li><a href="#{escape_html(s.anchor)}">{escape_html(s.title)}</a></li>' for s in report.sections
    )
    sections = "\n".join(_section(section) for section in report.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape_html(POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hopflow {__version__}">
<title>{title}</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<header><h1><bdi>{title}</bdi></h1>{_headline(report.headline)}<p class="lead">{escape_html(report.lead)}</p></header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{sections}
</main>
<footer>{FOOTER}</footer>
<script>
{_file("animation.js")}</script>
</body>
</html>
"""


def _headline(text: str) -> str:
    """Numbers stay on one line with their error and unit."""
    bound = re.sub(" (?=[±%=])|(?<=[±=]) ", "\u00a0", text)
    return f'<p class="headline">{escape_html(bound)}</p>' if text else ""


def _section(section: Section) -> str:
    anchor, title = escape_html(section.anchor), escape_html(section.title)
    return f'<section id="{anchor}">\n<h2>{title}</h2>\n{_blocks(section.blocks)}\n</section>'


def _blocks(blocks: tuple[Block, ...]) -> str:
    """Blocks below each other; consecutive figures side by side if there is room."""
    parts = []
    for figures, group in groupby(blocks, key=lambda block: isinstance(block, Figure)):
        content = "\n".join(render_block(block) for block in group)
        parts.append(f'<div class="figures">\n{content}\n</div>' if figures else content)
    return "\n".join(parts)


@singledispatch
def render_block(block: Block) -> str:
    """The HTML of one block."""
    raise TypeError(f"no HTML is defined for the block {type(block).__name__}")


@render_block.register
def _paragraph(block: Paragraph) -> str:
    return f"<p>{escape_paragraph(block.text)}</p>"


@render_block.register
def _table(block: TableBlock) -> str:
    head = "".join(f'<th scope="col">{escape_html(cell)}</th>' for cell in block.head)
    rows = "\n".join(_row(row) for row in block.rows)
    few = " few" if len(block.head) <= FEW_COLUMNS else ""
    caption = f"<caption>{escape_html(block.caption)}</caption>" if block.caption else ""
    return (
        f'<div class="table{few}" tabindex="0" role="region" aria-label="{escape_html(block.caption or "table")}">'
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(row: tuple[str, ...]) -> str:
    first, *others = row
    cells = "".join(f"<td{_length(cell)}>{_numbers_on_one_line(cell)}</td>" for cell in others)
    return f'<tr><th scope="row"{_length(first)}>{escape_html(first)}</th>{cells}</tr>'


def _numbers_on_one_line(cell: str) -> str:
    """The escaped cell; where it wraps, `3.14 ± 0.03` and `(n = 64)` each stay on one line."""
    values = VALUE.sub(r'<span class="value">\g<0></span>', escape_html(cell))
    return re.sub(r"\(?n = [\d,]+\)?", r'<span class="number">\g<0></span>', values)


def _length(cell: str) -> str:
    """Sentences wrap, numbers do not."""
    return ' class="long"' if len(cell) > LONG_CELL else ""


@render_block.register
def _figure(block: Figure) -> str:
    kind, name, caption = ' class="wide"' if block.wide else "", escape_html(block.name), escape_html(block.caption)
    return f'<figure{kind} id="{name}">{block.svg}<figcaption>{caption}</figcaption></figure>'


@render_block.register
def _samples(block: SampleTexts) -> str:
    readings = block.readings or ("",) * len(block.texts)
    both = zip(block.texts, readings, strict=True)
    texts = "\n".join(f"<li>{_sample(text)}{_decoded(reading)}</li>" for text, reading in both)
    return f'<p class="facts">{escape_html(block.facts)}</p>\n<ol class="samples">\n{texts}\n</ol>'


def _sample(text: str) -> str:
    """A text with its own writing direction; the reader opens long texts."""
    complete = f'<pre dir="auto">{escape_html(text)}</pre>'
    if len(text) <= SHORT_SAMPLE:
        return complete
    start = escape_html(text[:SHORT_SAMPLE])
    return f'<details><summary><bdi dir="auto">{start}…</bdi></summary>{complete}</details>'


def _decoded(reading: str, label: str = "decoded") -> str:
    """The letters of Morse symbols, below them."""
    return f'<p class="decoded"><span>{label}</span> {escape_html(reading)}</p>' if reading else ""


@render_block.register
def _collapsible(block: Collapsible) -> str:
    title = escape_html(block.title)
    return f'<details class="folded"><summary>{title}</summary>\n{_blocks(block.blocks)}\n</details>'


@render_block.register
def _commands(block: ShellCommands) -> str:
    return f'<pre class="commands"><code>{escape_html(chr(10).join(block.lines))}</code></pre>'


# -- animation ---------------------------------------------------------------------------------------------------------


@render_block.register
def _animation(block: AnimationBlock) -> str:
    """The final sequences, and the data and controls with which animation.js plays the hops."""
    last = frames_at(block.data, 1.0)
    return f"""<div class="player" id="{escape_html(block.name)}">
<script type="application/json">{script_json(block.data)}</script>
<div class="hop-bar" role="group" aria-label="player" hidden>
<button type="button" aria-label="Play">▶</button>
<input type="range" min="0" max="{SLIDER_TICKS}" step="1" value="{SLIDER_START}" aria-label="time, from source to text">
<span class="hop-clock">t = <span class="hop-time">1.00</span></span>
<span class="hop-sum"><span class="hop-total">{sum(frame.jumps for frame in last)}</span> hops</span>
</div>
<ol class="hop-sequences">
{_sequences(last, block.readings)}</ol>
{_legend(last)}
</div>"""


def _sequences(last: list[AnimationFrame], readings: tuple[str, ...]) -> str:
    both = zip(last, readings or ("",) * len(last), strict=True)
    return "".join(_sequence(frame, reading) for frame, reading in both)


def _sequence(frame: AnimationFrame, reading: str) -> str:
    jumps = f'<span class="hop-jumps"><span class="hop-count">{frame.jumps}</span> hops</span>'
    below = _decoded(reading, "decoded at t = 1")
    return f'<li><bdi class="hop-text" dir="{frame.direction}">{escape_html(frame.text)}</bdi>{below}{jumps}</li>\n'


def _legend(last: list[AnimationFrame]) -> str:
    has_prompt = any(state == PROMPT for frame in last for _, state in frame.tokens)
    names = {state: name for state, name in LEGEND.items() if has_prompt or state != PROMPT}
    keys = "".join(f'<span class="hop-{state}">{name}</span>' for state, name in names.items())
    return f'<p class="hop-legend" hidden>{keys}</p>'


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
