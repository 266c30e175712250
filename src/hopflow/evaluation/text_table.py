"""Text tables for a terminal: aligned columns that fit a width."""

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

GAP = 2
"""Spaces between two columns."""
LEAST = 8
"""Minimum width of a label."""
TOGETHER = re.compile(r" ([=±]) (?=\S)")
"""Signs at which a line is not broken."""


def text_table(head: Sequence[str], lines: Sequence[Sequence[str]], width: int, names: int = 1) -> str:
    """A table no wider than `width`: the first `names` columns are labels, the others values.

    Cells with several words are wrapped; values that still do not fit are put into further tables below, each with the
    same labels.
    """
    places = range(len(head))
    least = [max(_word(line[place]) for line in (head, *lines)) for place in places]
    widths = [max(len(line[place]) for line in (head, *lines)) for place in places]
    cells = [max([_word(head[place]), *(len(line[place]) for line in lines)]) for place in places]
    for floor in (cells, least):  # headings are wrapped before cells
        while sum(widths) + GAP * (len(head) - 1) > width and (wide := [p for p in places if widths[p] > floor[p]]):
            widths[max(wide, key=lambda place: widths[place])] -= 1
    labels = widths[:names]
    while sum(labels) + GAP * (names - 1) > width // 2 and max(labels) > LEAST:  # a name without spaces is broken
        labels[labels.index(max(labels))] -= 1
    if sum(widths) + GAP * (len(head) - 1) <= width:
        labels = widths[:names]
    left = width - sum(labels) - GAP * names
    tables: list[str] = []
    at = names
    while at < len(head) or not tables:
        taken = _fitting(widths[at:], left)
        shown = [*range(names), *range(at, at + taken)]
        sizes = [*labels, *(min(left, wide) for wide in widths[at : at + taken])]
        tables.append(_drawn([[line[place] for place in shown] for line in (head, *lines)], sizes))
        at += max(1, taken)
    return "\n\n".join(tables)


def fits(lines: Sequence[Sequence[str]], width: int) -> bool:
    """Whether the table fits without wrapping cells; the first line are the headings."""
    return sum(max(len(line[place]) for line in lines) + GAP for place in range(len(lines[0]))) - GAP <= width


def wrapped_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Lines no wider than this; `n = 16` or `3 ± 1` are not broken."""
    broken = textwrap.wrap(_bound(text), width, subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in broken]


def _word(text: str) -> int:
    """Length of the longest part that is not broken."""
    return max(map(len, _bound(text).split(" ")))


def _bound(text: str) -> str:
    return TOGETHER.sub("\u00a0\\1\u00a0", text).replace(" s.e.", "\u00a0s.e.").replace(", n\u00a0", ",\u00a0n\u00a0")


def _fitting(values: Sequence[int], room: int) -> int:
    """How many of these columns fit; at least one."""
    used = 0
    for place, value in enumerate(values):
        used += value + GAP * bool(place)
        if used > room:
            return max(1, place)
    return len(values)


def _drawn(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    head, *rest = (
        [wrapped_lines(cell, wide) or [""] for cell, wide in zip(line, widths, strict=True)] for line in lines
    )
    rule = [["-" * wide] for wide in widths]
    return "\n".join(text for cells in (head, rule, *rest) for text in _aligned(cells, widths))


def _aligned(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    return [
        (" " * GAP).join(part.ljust(wide) for part, wide in zip(parts, widths, strict=True)).rstrip()
        for parts in zip_longest(*cells, fillvalue="")
    ]
