"""Sections: the results of `hopflow eval`, compared between runs, and the complete list of each run."""

import re
from collections.abc import Mapping, Sequence

from ...evaluation.compare import Comparison, ComparisonLine
from ...evaluation.compare_table import shown
from ...evaluation.rows import SAMPLES, TRANSPORT, Row
from ...evaluation.run_results import BITS
from ..blocks import Block, Collapsible, Paragraph, Section, TableBlock
from ..hop_counts import has_training_ot_batch
from ..numbers import format_value, standard_error
from ..run_data import RunData, compare, judge_names

TITLES = {SAMPLES: "Samples", TRANSPORT: "Hops and transport costs"}
QUANTITIES = {
    "entropy_bits": "entropy of a sample, bits",
    "gen_ppl": "generative perplexity",
    "jumps": "hops per sequence",
    "predicted_jumps": "hops per sequence, predicted",
    "excess_jumps": "hops per sequence above the prediction",
    "calls": "network calls per sequence",
}
FAMILIES = {
    r"distinct_(\d+)": r"distinct \1-grams, share",
    r"repeated_(\d+)": r"repeated \1-grams, share",
    r"dynamic_cost_(\w+)": r"transport cost of the hops (\1)",
    r"kantorovich_cost_(\w+)": r"transport cost, predicted (\1)",
    r"excess_cost_(\w+)": r"transport cost above the prediction (\1)",
    r"independent_cost_(\w+)": r"transport cost of independent pairs (\1)",
    r"gain_(\w+)": r"share of the transport cost that the coupling saves (\1)",
}
"""Patterns of further quantities of eval.json, and their words."""
BOUNDS = (
    "A perplexity bound is an upper bound on the perplexity per token of the text, for the sampler in the second "
    "column; lower is better."
)
HEAD = ("quantity", "sampler", "value", "unit", "n", "kind")
HINTS = {
    "`judge=MODEL` scores the samples by a language model": lambda rows: any("judge_hash" in row.more for row in rows),
    "`steps=8,16,32` compares numbers of sampling steps": lambda rows: len(steps_of(rows)) > 1,
}


# -- comparison of runs ------------------------------------------------------------------------------------------------


def comparison(runs: Sequence[RunData]) -> Section | None:
    """Every result that at least two runs have; None if fewer than two runs were evaluated."""
    found = compare(runs)
    if found is None:
        return None
    judges = judge_names(runs)
    lines = [line for line in found.lines if shown(line, found) and len(line.rows) > 1 and _has_training_ot_batch(line)]
    blocks: list[Block] = []
    for name in dict.fromkeys(line.place["set"] for line in lines):
        here = [line for line in lines if line.place["set"] == name]
        table = _comparison_table(here, found.runs, judges, name)
        is_open = any(_is_likelihood(row) for line in here for row in line.rows.values())
        blocks.append(table if is_open else Collapsible(f"{TITLES.get(name, name)}: {len(here)} results", (table,)))
    if found.matches:
        rows = tuple((_sampling_point(match.at, judges), str(match)) for match in found.matches)
        blocks.append(
            TableBlock(("samples", "sampling steps"), rows, "Sampling steps that one run needs to match another.")
        )
    if found.remarks:
        blocks.append(Paragraph(" ".join(f"{text[0].upper()}{text[1:]}." for text in found.remarks)))
    if not blocks:
        return None
    return Section("comparison", "Comparison of runs", (Paragraph(_lead(found, lines)), *blocks))


def _lead(found: Comparison, lines: Sequence[ComparisonLine]) -> str:
    text = "Results of `hopflow eval`, side by side."
    if any(line.differences for line in lines):
        text += f" The last columns are differences from {found.runs[0]}, with their standard errors (s.e.)."
    return f"{text} {BOUNDS}" if any(_is_likelihood(row) for line in lines for row in line.rows.values()) else text


def _has_training_ot_batch(line: ComparisonLine) -> bool:
    return all(
        "ot_n" not in row.more or "trained_ot_n" not in row.more or has_training_ot_batch(row)
        for row in line.rows.values()
    )


def _is_likelihood(row: Row) -> bool:
    return (row.unit == "ppl" and row.quantity != "gen_ppl") or row.quantity.endswith(BITS)


def _comparison_table(
    lines: Sequence[ComparisonLine], runs: Sequence[str], judges: Mapping[str, str], name: str
) -> TableBlock:
    first, *others = runs
    rows = []
    for line in lines:
        numbers = [
            format_value(line.rows[run].value, line.rows[run].stderr, line.rows[run].n) if run in line.rows else "-"
            for run in runs
        ]
        sampler = _sampler(next(iter(line.rows.values())), judges)
        rows.append((_quantity(line), sampler, *numbers, *(_difference(line, run) for run in others)))
    head = ("quantity", "sampler", *runs, *(f"{run} − {first}" for run in others))
    return TableBlock(head, tuple(rows), f"{TITLES.get(name, f'Results on {name} text')}.")


def _quantity(line: ComparisonLine) -> str:
    rows = list(line.rows.values())
    name = line.place["quantity"].removesuffix(BITS)
    if not _is_likelihood(rows[0]):
        return quantity_words(name)
    per_character = name != line.place["quantity"]
    is_bound, is_exact = all(row.is_bound for row in rows), all(row.more.get("exact") for row in rows)
    if per_character:
        kind = "bits per character"
        return f"{name}, {kind}" if is_bound or is_exact else f"{name}, {kind} (not a bound)"
    return f"perplexity bound {name}" if is_bound else f"perplexity {name}" + ("" if is_exact else " (not a bound)")


def quantity_words(name: str) -> str:
    """A quantity of eval.json in words; its own name if there are none."""
    for pattern, words in FAMILIES.items():
        if re.fullmatch(pattern, name):
            return re.sub(pattern, words, name).replace("_", " ")
    return QUANTITIES.get(name, name)


def _sampler(row: Row, judges: Mapping[str, str], batches: str = "") -> str:
    """What a result refers to: sampler, paths, coupling, temperature and judge."""
    more = row.more
    parts = [str(more.get("sampler", "-"))]
    if more.get("temperature", 1.0) not in (1.0, None):
        parts.append(f"temperature {more['temperature']:g}")
    if row.paths:
        parts.append(row.paths)
    if "ot_n" in more:
        epsilon = f", eps {more['eps']:g}" if "eps" in more else ""
        parts.append(f"{more.get('coupling')}, batches of {more['ot_n']}{batches}{epsilon}")
    if "judge_hash" in more:
        parts.append(f"judge {judges.get(str(more['judge_hash']), 'unknown')}")
    return "; ".join(parts)


def _sampling_point(at: Mapping[str, object], judges: Mapping[str, str]) -> str:
    parts = [] if at["eta"] is None else [f"η = {at['eta']:g}"]
    if at["temperature"] not in (None, 1.0):
        parts.append(f"temperature {at['temperature']:g}")
    return ", ".join([*parts, f"judge {judges.get(str(at['judge_hash']), 'unknown')}"])


def _difference(line: ComparisonLine, run: str) -> str:
    found = next((one for one in line.differences if one.run == run), None)
    if found is None:
        return line.refused.get(run, "-")
    sign = "+" if found.value >= 0 else ""
    return f"{sign}{format_value(found.value, found.stderr)}{found.note}"


# -- all results of each run -------------------------------------------------------------------------------------------


def all_results(runs: Sequence[RunData]) -> Section | None:
    """Every result of `hopflow eval`, in collapsible tables; None if no run was evaluated."""
    if not any(run.rows for run in runs):
        return None
    judges, every = judge_names(runs), [row for run in runs for row in run.rows]
    blocks: list[Block] = [Paragraph("Every result of `hopflow eval`, with the names of eval.json.")]
    for run in filter(lambda run: run.rows, runs):
        tables = tuple(_results_table(run, name, judges) for name in dict.fromkeys(row.set for row in run.rows))
        blocks.append(Collapsible(f"All {len(run.rows)} results of {run.name}", tables))
    if hints := [hint for hint, done in HINTS.items() if not done(every)]:
        blocks.append(Paragraph(f"`hopflow eval RUN` can measure more: {'; '.join(hints)}."))
    return Section("evaluation", "All evaluation results", tuple(blocks))


def steps_of(rows: Sequence[Row]) -> set[object]:
    """All numbers of sampling steps of the samples."""
    return {row.more.get("steps") for row in rows if row.set == SAMPLES}


def _results_table(run: RunData, name: str, judges: Mapping[str, str]) -> TableBlock:
    rows = [row for row in run.rows if row.set == name]
    title = TITLES.get(name, f"Results on {name} text")
    remarks = "".join(f" {row.remark}." for row in rows if row.remark)
    return TableBlock(HEAD, tuple(_cells(row, judges) for row in rows), f"{title}. {_origin(rows[0])}{remarks}")


def _cells(row: Row, judges: Mapping[str, str]) -> tuple[str, ...]:
    trained, ot_n = row.more.get("trained_ot_n", row.more.get("ot_n")), row.more.get("ot_n")
    sampler = _sampler(row, judges, f" (trained with {trained})" if trained != ot_n else "")
    kind = (
        "exact" if row.more.get("exact") else "bound" if row.is_bound else "not a bound" if row.unit == "ppl" else "-"
    )
    unit = "perplexity" if row.unit == "ppl" else row.unit
    return row.quantity, sampler, format_value(row.value, standard_error(row.stderr, row.n)), unit, f"{row.n:,}", kind


def _origin(row: Row) -> str:
    more = row.more
    facts = [f"{more['of']:,} sequences of {more['length']} tokens"] if {"of", "length"} <= more.keys() else []
    facts += [row.dtype, f"weights: {more.get('weights', 'unknown')}"]
    facts += [f"checkpoint of step {more['checkpoint']:,}"] if isinstance(more.get("checkpoint"), int) else []
    facts += ["the training text"] if more.get("trained_on") else []
    return f"{', '.join(facts)}."
