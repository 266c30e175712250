"""Measures: every number that `hopflow eval` kept, set by set."""

from collections.abc import Sequence

from ..evaluation.rows import TRANSPORT, Row
from .numbers import measured
from .section import Block, Folded, Section, Table
from .story import Story

HEAD = ("quantity", "speaks of", "value", "unit", "n", "is")


def section(stories: Sequence[Story]) -> Section | None:
    """Likelihoods in the open, all else folded; None where nothing was evaluated."""
    if not any(story.rows for story in stories):
        return None
    blocks: list[Block] = []
    for story in stories:
        likelihoods = [row for row in story.rows if row.unit == "ppl"]
        for name in dict.fromkeys(row.set for row in likelihoods):
            here = [row for row in likelihoods if row.set == name]
            blocks.append(Table(HEAD, tuple(map(_cells, here)), f"{story.name} on {name}. {_origin(here[0])}"))
    for story in stories:
        others = [row for row in story.rows if row.unit != "ppl"]
        tables = [
            Table(HEAD, tuple(_cells(row) for row in others if row.set == name), f"{story.name}: {_words(name)}.")
            for name in dict.fromkeys(row.set for row in others)
        ]
        if tables:
            blocks.append(Folded(f"All {len(others)} other numbers of {story.name}", tuple(tables)))
    return Section("evaluation", "Evaluation", tuple(blocks))


def _cells(row: Row) -> tuple[str, ...]:
    said = [str(row.more.get("sampler", "-"))]
    if "ot_n" in row.more:
        said.append(f"{row.more.get('coupling')} of {row.more['ot_n']}")
    if row.more.get("temperature", 1.0) not in (1.0, None):
        said.append(f"temperature {row.more['temperature']:g}")
    if "judge_hash" in row.more:
        said.append(f"judge {row.more['judge_hash'][:6]}")
    kind = "exact" if row.more.get("exact") else "a bound" if row.is_bound else "no bound" if row.unit == "ppl" else "-"
    unit = "perplexity" if row.unit == "ppl" else row.unit
    return row.quantity, "; ".join(said), measured(row.value, row.stderr), unit, f"{row.n:,}", kind


def _origin(row: Row) -> str:
    more = row.more
    said = [f"{more['of']:,} sequences of {more['length']} tokens"] if {"of", "length"} <= more.keys() else []
    said += [row.dtype, f"weights: {more.get('weights', 'unknown')}"]
    said += [f"checkpoint at step {more['checkpoint']:,}"] if isinstance(more.get("checkpoint"), int) else []
    said += ["the text it was trained on"] if more.get("trained_on") else []
    return f"{', '.join(said)}."


def _words(name: str) -> str:
    return {"samples": "samples", TRANSPORT: "what samples and pairs pay on the way"}.get(name, f"the text of {name}")
