"""Pages of comparisons, as markdown that also reads well on a terminal."""

import json
from typing import Any

from ..estimate import plus_minus
from .compare import BITS, Comparison, Line, Ranked
from .rows import Row
from .table import grid

LEFT_OUT = (
    "entropy_nats",
    "gen_nats",
    "distinct_1",
    "distinct_3",
    "distinct_4",
    "repeated_1",
    "repeated_2",
    "repeated_3",
)
"""What the file has and the page has not: the same in other words; and of how recently tokens occurred nothing."""


def page(found: Comparison) -> str:
    """A table per set, the steps to match, what differs in the recipes, and what has to be said."""
    parts = [f"# {found.runs[0]} beside {', '.join(found.runs[1:])}"]
    lines = [line for line in found.lines if shown(line, found)]
    for name in dict.fromkeys(line.place["set"] for line in lines):
        parts += [f"## {name}", _numbers([line for line in lines if line.place["set"] == name], found)]
    if found.matches:
        parts += ["## Steps to match", "\n".join(f"- {point_of(match.at)}: {match}" for match in found.matches)]
    if found.ranked:
        parts += ["## Do bounds and samples rank the runs alike?", _ranks(found.ranked)]
    parts.append("## Recipes")
    if found.configuration:
        rows = [(key, *map(_word, each)) for key, each in found.configuration.items()]
        parts.append(grid(("key", *found.runs), rows))
    else:
        known = all(side.recipe for side in found.sides)
        parts.append("They do not differ." if known else "Not known: not all of these folders have a recipe.json.")
    parts += [f"{line[0].upper()}{line[1:]}." for line in found.remarks]
    return "\n\n".join(parts) + "\n"


def _numbers(lines: list[Line], found: Comparison) -> str:
    first, *others = found.runs
    differences = [f"{run} less {first}" for run in others]
    rows = []
    for line in lines:
        numbers = [_number(line.rows.get(run)) for run in found.runs]
        rows.append((quantity_of(line), sampler_of(line), *numbers, *(_difference(line, run) for run in others)))
    return grid(("quantity", "speaks of", *found.runs, *differences), rows)


def _ranks(found: list[Ranked]) -> str:
    rows = [
        (
            f"{quantity_of(one.likelihood)}, {sampler_of(one.likelihood)}",
            f"{quantity_of(one.samples)}, {sampler_of(one.samples)}",
            *(f"{by.value:.3f} ± {by.stderr:.2g}" for by in one.by),
            str(one.by[0].n),
        )
        for one in found
    ]
    return grid(("likelihood", "samples", "Pearson", "Spearman", "Kendall", "runs"), rows)


def shown(line: Line, found: Comparison) -> bool:
    quantity = line.place["quantity"]
    if quantity in LEFT_OUT or quantity.startswith("recent_"):
        return False
    if quantity.endswith(BITS):  # where perplexities will not do
        likelihood = {**line.place, "quantity": quantity.removesuffix(BITS)}
        return any(other.refused for other in found.lines if other.place == likelihood)
    return any(row.more.get("sampler") != "the text itself" for row in line.rows.values())


def quantity_of(line: Line) -> str:
    bounds = {row.is_bound for row in line.rows.values()}
    unit = next(iter(line.rows.values())).unit
    name = line.place["quantity"].removesuffix(BITS)
    if name != line.place["quantity"]:
        name += ", bits/char"
    return name if unit not in ("ppl", "bits per character") or bounds == {True} else f"{name} (no bound)"


def sampler_of(line: Line) -> str:
    more = next(iter(line.rows.values())).more
    said = [str(more.get("sampler", "-"))]
    if more.get("temperature", 1.0) != 1.0:
        said.append(f"temperature {more['temperature']:g}")
    if "ot_n" in more:
        eps = f", eps {more['eps']:g}" if "eps" in more else ""
        said.append(f"{more.get('coupling')} of {more['ot_n']}{eps}")
    if "judge_hash" in more:
        said.append(f"judge {more['judge_hash'][:6]}")
    return "; ".join(said)


def _number(row: Row | None) -> str:
    return "-" if row is None else f"{plus_minus(row.value, row.stderr)} (n={row.n})"


def _difference(line: Line, run: str) -> str:
    for one in line.differences:
        if one.run == run:
            return str(one)
    return line.refused.get(run, "-")


def point_of(at: dict[str, Any]) -> str:
    said = [] if at["eta"] is None else [f"η = {at['eta']:g}"]
    if at["temperature"] not in (None, 1.0):
        said.append(f"temperature {at['temperature']:g}")
    return ", ".join([*said, f"judge {str(at['judge_hash'])[:6]}"])


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
