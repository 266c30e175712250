"""Tables: rows of an evaluation as markdown that also reads well on a terminal."""

from collections.abc import Sequence
from typing import Any

from .rows import Row

LIKELIHOODS = ("b", "coupled", "nll")
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


def page(rows: Sequence[Row], remarks: Sequence[str] = ()) -> str:
    """A table of likelihoods per set, one of all samples beside the texts, and what has to be said with them."""
    parts = [f"# Evaluation of {rows[0].run}"] if rows else ["# Evaluation"]
    for name in dict.fromkeys(row.set for row in rows if _is_likelihood(row)):
        here = [row for row in rows if row.set == name and _is_likelihood(row)]
        parts += [f"## {name}", _likelihoods(here), *_origin(here[0])]
    others = [row for row in rows if not _is_likelihood(row)]
    if others:
        parts += ["## samples, and texts to hold them against", _points(others), *_judges(others)]
    parts += [f"{line[0].upper()}{line[1:]}." for line in remarks]
    return "\n\n".join(parts) + "\n"


def _is_likelihood(row: Row) -> bool:
    return row.unit == "ppl"


def _likelihoods(rows: Sequence[Row]) -> str:
    columns = ("quantity", "speaks of", "perplexity", "nats a sequence", "draws", "sequences", "bits/char", "n", "is")
    lines = []
    for row in rows:
        more = row.more
        bits = f"{more['bits_per_char']:.4g}" if "bits_per_char" in more else "-"
        nats = (_pm(more["nats"], more["nats_stderr"]), f"{more['nats_draw_stderr']:.2g}")
        noise = f"{more['nats_sequence_stderr']:.2g}"
        lines.append(
            (_name(row), _sampler(row), _pm(row.value, row.stderr), *nats, noise, bits, _n(row), _verdict(row))
        )
    return grid(columns, lines)


def _name(row: Row) -> str:
    if "ot_n" not in row.more:
        return row.quantity
    eps = f", eps {row.more['eps']:g}" if "eps" in row.more else ""
    return f"{row.quantity} ({row.more['coupling']}, {row.more['cost']}, n = {row.more['ot_n']}{eps})"


def _sampler(row: Row) -> str:
    step = row.more.get("checkpoint")
    return f"{row.more['sampler']}" + (f"; step {step}" if step is not None else "")


def _n(row: Row) -> str:
    return f"{row.n} minibatches" if "ot_n" in row.more else str(row.n)


def _verdict(row: Row) -> str:
    return "exact" if row.more.get("exact") else "a bound" if row.is_bound else "no bound"


def _origin(row: Row) -> list[str]:
    """What is said under a set's table."""
    more = row.more
    said = [f"{more['of']:,} sequences of {more['length']} tokens, {row.dtype}, weights: {more['weights']}"]
    if "data_sha256" in more:
        said.append(f"text {more['detokenised']} ({more['split']}), tokens sha256 {more['data_sha256'][:12]}")
    if more.get("trained_on"):
        said.append("this is the text that the run was trained on")
    return [f"{'; '.join(said)}. ± is the standard error; `draws` and `sequences` are its parts, in nats."]


def _points(rows: Sequence[Row]) -> str:
    """One line for every point of the frontier, one column for every number."""
    points: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        more = row.more
        judged = row.quantity.startswith("gen_")
        place = (row.set, _sampler(row), more.get("temperature"), more.get("seed"), more.get("length"))
        points.setdefault(place, {})[_column(row) if judged else row.quantity] = row
    known = [name for name in _columns(rows) if any(name in numbers for numbers in points.values())]
    lines = []
    for (name, sampler, temperature, *_), numbers in points.items():
        values = (_pm(numbers[key].value, numbers[key].stderr) if key in numbers else "-" for key in known)
        n = next(iter(numbers.values())).n
        lines.append((name, sampler, "-" if temperature is None else f"{temperature:g}", *values, str(n)))
    headings = [SHOWN[key.partition(" ")[0]] + key.partition(" ")[1] + key.partition(" ")[2] for key in known]
    return grid(("set", "speaks of", "temperature", *headings, "n"), lines)


def _column(row: Row) -> str:
    """A number by one judge and one way of reading is another column than by another."""
    return f"{row.quantity} {row.more['judge_hash'][:6]}{'' if row.more['retokenised'] else ' ids'}"


def _columns(rows: Sequence[Row]) -> list[str]:
    judged = [row for row in rows if row.quantity.startswith("gen_")]
    columns: list[str] = []
    for name in SHOWN:
        columns += dict.fromkeys(_column(row) for row in judged if row.quantity == name) or (
            [name] if not name.startswith("gen_") else []
        )
    return columns


def _judges(rows: Sequence[Row]) -> list[str]:
    found: dict[str, str] = {}
    for row in rows:
        if "judge_hash" in row.more:
            judge, how = row.more["judge"], "the judge's own tokens" if row.more["retokenised"] else "ids as drawn"
            found[row.more["judge_hash"][:6]] = f"{judge['name']}, {judge['precision']}, {how}"
    said = [
        f"Judge {mark}: {what}; gen_ppl over all its tokens, gen_ppl_mean the mean of texts."
        for mark, what in found.items()
    ]
    return [*said, "Entropy is of the tokens within a sequence, in bits; jumps are hops of tokens per sample."]


def _pm(value: float, error: float) -> str:
    """With as many digits as the error leaves."""
    return f"{value:.4g} ± {error:.2g}"


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A markdown table, its columns in line."""
    widths = [max(len(line[place]) for line in (columns, *lines)) for place in range(len(columns))]

    def drawn(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([drawn(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(drawn, lines)])
