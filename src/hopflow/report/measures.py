"""Section: all rows of `hopflow eval`."""

from collections.abc import Mapping, Sequence

from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import TRANSPORT, Row
from .judges import judge_names
from .numbers import error_of, measured
from .section import Block, Folded, Prose, Section, Table
from .story import Story

HEAD = ("quantity", "sampler", "value", "unit", "n", "kind")
TITLES = {SAMPLES: "Samples", TRANSPORT: "Hops and transport costs"}
HINTS = {
    "`judge=MODEL` scores the samples by a language model": lambda rows: any("judge_hash" in row.more for row in rows),
    "`steps=8,16,32` compares numbers of sampling steps": lambda rows: len(steps_of(rows)) > 1,
}


def section(stories: Sequence[Story]) -> Section | None:
    """All numbers, folded: the main ones are in other sections. None where nothing was evaluated."""
    if not any(story.rows for story in stories):
        return None
    judges, every = judge_names(stories), [row for story in stories for row in story.rows]
    blocks: list[Block] = []
    for story in filter(lambda story: story.rows, stories):
        tables = tuple(_table(story, name, judges) for name in dict.fromkeys(row.set for row in story.rows))
        blocks.append(Folded(f"All {len(story.rows)} numbers of {story.name}", tables))
    if hints := [hint for hint, done in HINTS.items() if not done(every)]:
        blocks.append(Prose(f"More from `hopflow eval RUN`: {'; '.join(hints)}."))
    return Section("evaluation", "Evaluation", tuple(blocks))


def steps_of(rows: Sequence[Row]) -> set[object]:
    """Numbers of sampling steps of which there are samples."""
    return {row.more.get("steps") for row in rows if row.set == SAMPLES}


def _table(story: Story, name: str, judges: Mapping[str, str]) -> Table:
    rows = [row for row in story.rows if row.set == name]
    title = TITLES.get(name, f"Text: {name}")
    remarks = "".join(f" {row.remark}." for row in rows if row.remark)
    return Table(HEAD, tuple(_cells(row, judges) for row in rows), f"{title}. {_origin(rows[0])}{remarks}")


def _cells(row: Row, judges: Mapping[str, str]) -> tuple[str, ...]:
    said = [str(row.more.get("sampler", "-"))]
    if row.paths:
        said.append(row.paths)
    if "ot_n" in row.more:
        trained = row.more.get("trained_ot_n", row.more["ot_n"])
        other = f" (trained with {trained})" if trained != row.more["ot_n"] else ""
        said.append(f"{row.more.get('coupling')}, batches of {row.more['ot_n']}{other}")
    if row.more.get("temperature", 1.0) not in (1.0, None):
        said.append(f"temperature {row.more['temperature']:g}")
    if "judge_hash" in row.more:
        said.append(f"judge {judges[str(row.more['judge_hash'])]}")
    kind = (
        "exact" if row.more.get("exact") else "bound" if row.is_bound else "not a bound" if row.unit == "ppl" else "-"
    )
    unit = "perplexity" if row.unit == "ppl" else row.unit
    return row.quantity, "; ".join(said), measured(row.value, error_of(row.stderr, row.n)), unit, f"{row.n:,}", kind


def _origin(row: Row) -> str:
    more = row.more
    said = [f"{more['of']:,} sequences of {more['length']} tokens"] if {"of", "length"} <= more.keys() else []
    said += [row.dtype, f"weights: {more.get('weights', 'unknown')}"]
    said += [f"checkpoint of step {more['checkpoint']:,}"] if isinstance(more.get("checkpoint"), int) else []
    said += ["the training text"] if more.get("trained_on") else []
    return f"{', '.join(said)}."
