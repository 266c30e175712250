"""Tables: rows of an evaluation as markdown that also reads well on a terminal."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ..estimate import plus_minus
from .rows import TRANSPORT, Row

SHOWN = {
    "gen_ppl": "gen_ppl",
    "gen_ppl_mean": "gen_ppl_mean",
    "gen_bits_per_byte": "bits/byte",
    "entropy_bits": "entropy, bits",
    "distinct_2": "distinct 2-grams",
    "repeated_4": "repeated 4-grams",
    "jumps": "jumps",
    "calls": "calls",
}
"""Of the samples' numbers those that are shown, and their headings; the file holds all."""
PARTS = ("nats_draw_stderr", "nats_sequence_stderr")
"""Of the error of nats."""


def page(rows: Sequence[Row], remarks: Iterable[str] = ()) -> str:
    """Likelihoods set by set, then samples beside texts, and what has to be said with them."""
    parts = [f"# Evaluation of {rows[0].run}" if rows else "# Evaluation"]
    likelihoods = [row for row in rows if row.unit == "ppl"]
    for (name, step, *_), here in _grouped(likelihoods, "set", "checkpoint", "data_sha256", "length", "detokenised"):
        parts += [f"## {name}{_step(step)}", _likelihoods(here), _origin(here[0])]
    travelled = [row for row in rows if row.set == TRANSPORT]
    points = [row for row in rows if row.unit != "ppl" and row.set != TRANSPORT]
    for (step,), here in _grouped(points, "checkpoint"):
        parts += [f"## samples, and texts to hold them against{_step(step)}", _points(here), *_judges(here)]
    for (step, *_), here in _grouped(travelled, "checkpoint", "steps", "length", "data_sha256", "seed"):
        parts += [f"## transport{_step(step)}", _travelled(here), *_pairs(here)]
    parts += [f"{line[0].upper()}{line[1:]}." for line in remarks]
    return "\n\n".join(parts) + "\n"


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A markdown table, its columns in line."""
    widths = [max(len(line[place]) for line in (columns, *lines)) for place in range(len(columns))]

    def drawn(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([drawn(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(drawn, lines)])


def _grouped(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    found: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        content = row.as_json()
        found.setdefault(tuple(content.get(name) for name in names), []).append(row)
    return list(found.items())


def _step(step: int | None) -> str:
    return "" if step is None else f", step {step}"


def _likelihoods(rows: Sequence[Row]) -> str:
    columns = ("quantity", "speaks of", "perplexity", "nats a sequence", "draws", "sequences", "bits/char", "n", "is")
    lines = []
    for row in rows:
        more = row.more
        parts = tuple("?" if more[part] is None else f"{more[part]:.2g}" for part in PARTS)
        bits = f"{more['bits_per_char']:.4g}" if "bits_per_char" in more else "-"
        n = f"{row.n} minibatches" if "ot_n" in more else str(row.n)
        verdict = "exact" if more.get("exact") else "a bound" if row.is_bound else "no bound"
        nats = _pm(more["nats"], more["nats_stderr"])
        lines.append((_name(row), more["sampler"], _pm(row.value, row.stderr), nats, *parts, bits, n, verdict))
    return grid(columns, lines)


def _name(row: Row) -> str:
    if "ot_n" not in row.more:
        return row.quantity
    eps = f", eps {row.more['eps']:g}" if "eps" in row.more else ""
    return f"{row.quantity} ({row.more['coupling']}, {row.more.get('cost', '-')}, n = {row.more['ot_n']}{eps})"


def _origin(row: Row) -> str:
    """What is said under a set's table."""
    more = row.more
    said = [f"{more['of']:,} sequences of {more['length']} tokens, {row.dtype}, weights: {more['weights']}"]
    if "data_sha256" in more:
        said.append(f"text: {more['detokenised']}, {more['split']}; sha256 of its tokens {more['data_sha256'][:12]}")
    if more.get("trained_on"):
        said.append("this is the text that the run was trained on")
    return f"{'; '.join(said)}. ± is the standard error, and `draws` and `sequences` are its parts, in nats."


def _points(rows: Sequence[Row]) -> str:
    """One line for every point of the frontier, one column for every number by every judge."""
    several = len({_judge(row) for row in rows if _judge(row)}) > 1
    columns: dict[tuple[str, str], str] = {}
    for quantity, heading in SHOWN.items():
        for row in rows:
            if row.quantity == quantity:
                columns[quantity, _judge(row)] = f"{heading} [{_judge(row)}]" if several and _judge(row) else heading
    lines = []
    for (name, sampler, temperature, *_), here in _grouped(rows, "set", "sampler", "temperature", "length", "seed"):
        numbers = {(row.quantity, _judge(row)): _pm(row.value, row.stderr) for row in here}
        values = (numbers.get(column, "-") for column in columns)
        lines.append((name, sampler, "-" if temperature is None else f"{temperature:g}", *values, str(here[0].n)))
    return grid(("set", "speaks of", "temperature", *columns.values(), "n"), lines)


def _travelled(rows: Sequence[Row]) -> str:
    return grid(
        ("quantity", "value", "n", "unit"),
        [(row.quantity, _pm(row.value, row.stderr), str(row.n), row.unit) for row in rows],
    )


def _pairs(rows: Sequence[Row]) -> list[str]:
    """What is said under a table of costs."""
    said = [f"Samples: {rows[0].more['sampler']}; embeddings: {rows[0].more['embeddings']}."]
    for more in (row.more for row in rows if row.quantity == "predicted_jumps"):
        fewer = "" if more["ot_n"] == more["trained_ot_n"] else f" (training: {more['trained_ot_n']})"
        said.append(f"Pairs: {more['coupling']} of {more['ot_n']} rows{fewer} of {more['text']}.")
    return [" ".join([*said, "The excess is what was paid beyond what pairs predict."])]


def _judge(row: Row) -> str:
    """A mark for the judge and what it was given; none for a number without judge."""
    mark = str(row.more.get("judge_hash", ""))[:6]
    return mark if row.more.get("retokenised", True) else f"{mark} ids"


def _judges(rows: Sequence[Row]) -> list[str]:
    said = {}
    for row in rows:
        if mark := _judge(row):
            judge, how = (
                row.more["judge"],
                "its own tokens" if row.more["retokenised"] else "the ids as they were drawn",
            )
            said[mark] = (
                f"Judge [{mark}]: {judge['name']}, {judge['precision']}, on {how}; gen_ppl is over all tokens, "
                f"gen_ppl_mean the mean of texts."
            )
    return [*said.values(), "Entropy is that of the tokens within a sequence; jumps are hops of tokens per sample."]


def _pm(value: float, error: float | None) -> str:
    return plus_minus(value, math.nan if error is None else error)
