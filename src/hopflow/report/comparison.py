"""Comparison: several runs side by side, differences taken from the first."""

from collections.abc import Sequence

from ..evaluation.compare import Comparison, Line
from ..evaluation.compare_table import point_of, quantity_of, sampler_of, shown
from .numbers import measured
from .section import Block, Folded, Prose, Section, Table
from .story import Story


def section(stories: Sequence[Story]) -> Section | None:
    """Every number that runs have in common; None for one run, or where fewer than two were evaluated."""
    told = [story for story in stories if story.side is not None]
    if len(told) < 2:
        return None
    found = Comparison(tuple(story.side for story in told if story.side is not None))
    lines = [line for line in found.lines if shown(line, found)]
    blocks: list[Block] = [
        Prose(
            f"Differences are taken from {told[0].name}, each with its error; in brackets how many errors it is from 0."
        )
    ]
    for name in dict.fromkeys(line.place["set"] for line in lines):
        here = [line for line in lines if line.place["set"] == name]
        table = _table(here, found.runs, name)
        likelihood = any(row.unit == "ppl" and row.quantity != "gen_ppl" for row in here[0].rows.values())
        blocks.append(table if likelihood else Folded(f"{len(here)} numbers of {name}", (table,)))
    if found.matches:
        rows = tuple((point_of(match.at), str(match)) for match in found.matches)
        blocks.append(Table(("samples", "steps to be as good"), rows, "Steps that one run needs to match another."))
    blocks += [Prose(f"{text[0].upper()}{text[1:]}.") for text in found.remarks]
    return Section("comparison", "Side by side", tuple(blocks))


def _table(lines: list[Line], runs: tuple[str, ...], name: str) -> Table:
    first, *others = runs
    rows = []
    for line in lines:
        numbers = [
            measured(line.rows[run].value, line.rows[run].stderr, line.rows[run].n) if run in line.rows else "-"
            for run in runs
        ]
        rows.append((quantity_of(line), sampler_of(line), *numbers, *(_difference(line, run) for run in others)))
    head = ("quantity", "speaks of", *runs, *(f"{run} less {first}" for run in others))
    return Table(head, tuple(rows), f"On {name}.")


def _difference(line: Line, run: str) -> str:
    found = next((one for one in line.differences if one.run == run), None)
    if found is None:
        return line.refused.get(run, "-")
    sign = "+" if found.value >= 0 else ""
    paired = ", paired" if found.how == "paired" else ""
    away = "" if found.errors is None else f" ({found.errors:+.1f} s.e.{paired})"
    return f"{sign}{measured(found.value, found.stderr)}{away}"
