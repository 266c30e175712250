"""Section: several runs side by side, with differences from the first."""

from collections.abc import Mapping, Sequence

from ..evaluation.compare import BITS, Comparison, Line
from ..evaluation.compare_table import shown
from ..evaluation.rows import Row
from .judges import judge_names
from .measures import TITLES
from .numbers import measured
from .prediction import own_batch
from .section import Block, Folded, Prose, Section, Table
from .story import Story


def compared(stories: Sequence[Story]) -> Comparison | None:
    """The evaluated runs; None where there are fewer than two."""
    sides = tuple(story.side for story in stories if story.side is not None)
    return Comparison(sides) if len(sides) > 1 else None


def section(stories: Sequence[Story]) -> Section | None:
    """Every number that at least two runs have; None where fewer than two were evaluated."""
    found = compared(stories)
    if found is None:
        return None
    judges = judge_names(stories)
    lines = [line for line in found.lines if shown(line, found) and len(line.rows) > 1 and _own(line)]
    blocks: list[Block] = []
    if any(line.differences for line in lines):
        blocks.append(Prose(f"Differences from {found.runs[0]}, with standard errors (s.e.)."))
    for name in dict.fromkeys(line.place["set"] for line in lines):
        here = [line for line in lines if line.place["set"] == name]
        table = _table(here, found.runs, judges, name)
        open_ = any(_is_likelihood(row) for line in here for row in line.rows.values())
        blocks.append(table if open_ else Folded(f"{TITLES.get(name, name)}: {len(here)} numbers", (table,)))
    if found.matches:
        rows = tuple((_point(match.at, judges), str(match)) for match in found.matches)
        blocks.append(Table(("samples", "steps"), rows, "Sampling steps that one run needs to match another."))
    if found.remarks:
        blocks.append(Prose(" ".join(f"{text[0].upper()}{text[1:]}." for text in found.remarks)))
    return Section("comparison", "Side by side", tuple(blocks)) if blocks else None


def _own(line: Line) -> bool:
    return all("ot_n" not in row.more or "trained_ot_n" not in row.more or own_batch(row) for row in line.rows.values())


def _is_likelihood(row: Row) -> bool:
    return (row.unit == "ppl" and row.quantity != "gen_ppl") or row.quantity.endswith(BITS)


def _table(lines: Sequence[Line], runs: Sequence[str], judges: Mapping[str, str], name: str) -> Table:
    first, *others = runs
    rows = []
    for line in lines:
        numbers = [
            measured(line.rows[run].value, line.rows[run].stderr, line.rows[run].n) if run in line.rows else "-"
            for run in runs
        ]
        rows.append((_quantity(line), sampler(line, judges), *numbers, *(_difference(line, run) for run in others)))
    head = ("quantity", "sampler", *runs, *(f"{run} − {first}" for run in others))
    return Table(head, tuple(rows), f"{TITLES.get(name, f'Text: {name}')}.")


def _quantity(line: Line) -> str:
    rows = list(line.rows.values())
    name = line.place["quantity"].removesuffix(BITS)
    said = name if name == line.place["quantity"] else f"{name}, bits per character"
    if not _is_likelihood(rows[0]):
        return said
    return said if all(row.is_bound or row.more.get("exact") for row in rows) else f"{said} (not a bound)"


def sampler(line: Line, judges: Mapping[str, str]) -> str:
    """What a number refers to: sampler, coupling and judge."""
    row = next(iter(line.rows.values()))
    more = row.more
    said = [str(more.get("sampler", "-"))]
    if more.get("temperature", 1.0) not in (1.0, None):
        said.append(f"temperature {more['temperature']:g}")
    if row.paths:
        said.append(row.paths)
    if "ot_n" in more:
        eps = f", eps {more['eps']:g}" if "eps" in more else ""
        said.append(f"{more.get('coupling')}, batches of {more['ot_n']}{eps}")
    if "judge_hash" in more:
        said.append(f"judge {judges.get(str(more['judge_hash']), 'unknown')}")
    return "; ".join(said)


def _point(at: Mapping[str, object], judges: Mapping[str, str]) -> str:
    said = [] if at["eta"] is None else [f"η = {at['eta']:g}"]
    if at["temperature"] not in (None, 1.0):
        said.append(f"temperature {at['temperature']:g}")
    return ", ".join([*said, f"judge {judges.get(str(at['judge_hash']), 'unknown')}"])


def _difference(line: Line, run: str) -> str:
    found = next((one for one in line.differences if one.run == run), None)
    if found is None:
        return line.refused.get(run, "-")
    sign = "+" if found.value >= 0 else ""
    return f"{sign}{measured(found.value, found.stderr)}{found.note}"
