"""The page of a comparison, as markdown or as text for a terminal."""

import json
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS
from typing import Any

from ..bounds.estimate import plus_minus
from .compare import BEST, Comparison, ComparisonLine, RankAgreement
from .groups import GroupLine
from .metrics import headings, is_shown
from .rows import ITSELF, SAMPLES, TRANSPORT, Row
from .run_results import BITS
from .table import HIDDEN, constant, grid, rendered, wrapped
from .transport_table import HOPS

HEAD = "quantity, sampler"
"""Heading of the first column."""
COSTS = {
    "dynamic_cost_": "cost of samples",
    "kantorovich_cost_": "predicted cost",
    "excess_cost_": "excess cost",
    "independent_cost_": "cost of independent pairs",
    "gain_": "saved by pairing",
}
"""Prefixes of the quantities of transport, and how tables name them."""


@dataclass(frozen=True)
class Entry:
    """A number of several runs or recipes, as text."""

    quantity: str
    sampler: str
    numbers: dict[str, tuple[str, str]]
    """The number and its n, by run or recipe."""
    differences: dict[str, str]
    values: set[tuple[float, float]]
    """The distinct values and errors."""

    @property
    def is_constant(self) -> bool:
        """Whether all have the same value, without error."""
        return len(self.values) == 1 and all(error == 0 for _, error in self.values)

    @property
    def note(self) -> str:
        """The constant value in words."""
        return f"{self.quantity}, {self.sampler}: {next(iter(self.values))[0]:.4g} for all"


def page(found: Comparison, width: int | None = None) -> str:
    """A table per set, the steps to match, recipe keys that differ, and notes; markdown, or text of this width.

    Runs of one recipe with several seeds are shown as their mean.
    """
    names = [group.name for group in found.groups] or list(found.runs)
    labels = dict(zip(names, LETTERS if width and len(names) <= len(LETTERS) else names, strict=False))
    parts = [f"# {names[0]} and {', '.join(names[1:])}" if names[1:] else f"# {names[0]}"] if width is None else []
    if found.groups:
        parts.append("\n".join(_legend(labels[one.name], str(one), width) for one in found.groups))
    elif width is not None:
        parts.append("\n".join(_legend(labels[name], name, width) for name in names))
    lines = [line for line in found.lines if shown(line, found)]
    best = [] if found.groups else found.best_bounds
    for name in dict.fromkeys(line.place["set"] for line in lines):
        here = [line for line in (*best, *lines) if line.place["set"] == name]
        table = [_numbers(here, found)] if width is None and not found.groups else _entries(here, found, labels, width)
        parts += [wrapped(f"## {name}", width), *table] if table else []
    if found.matches and not found.groups:
        matches = [wrapped(f"- {point_of(match.at)}: {match}", width) for match in found.matches]
        parts += ["## Steps to match", "\n".join(matches)]
    if found.rank_agreements:
        parts += ["## Correlation of bounds and samples over the runs", _ranks(found.rank_agreements, width)]
    parts += ["## Recipes", *_recipes(found, labels, width)]
    parts += [wrapped(f"{line[0].upper()}{line[1:]}.", width) for line in _remarks(found)]
    return "\n\n".join(parts) + "\n"


def _legend(label: str, name: str, width: int | None) -> str:
    return wrapped(f"- {name}" if name.startswith(label) else f"{label}  {name}", width)


def _entries(lines: list[ComparisonLine], found: Comparison, labels: dict[str, str], width: int | None) -> list[str]:
    """The table of numbers that several runs or recipes have, and the notes under it."""
    if found.groups:
        means = {tuple(line.place.values()): line for line in found.group_lines}
        entries = [_of_groups(line, means[tuple(line.place.values())], found) for line in lines]
    else:
        entries = [_of_runs(line, found) for line in lines]
    several = [one for one in entries if len(one.numbers) >= min(2, len(labels))]
    table = [row for one in several if not one.is_constant for row in _rows(one, labels)]
    notes = [one.note for one in several if one.is_constant]
    if left := len(entries) - len(several):
        notes.append(f"{left} numbers that only one run has are left out")
    if table:
        table, same = constant(table, ("n",))
        notes += [f"n = {same['n']}"] if "n" in same else []
    drawn = [rendered(list(table[0]), [list(row.values()) for row in table], width)] if table else []
    return [*drawn, *([wrapped(f"{'; '.join(notes)}.", width)] if notes else [])]


def _rows(entry: Entry, labels: dict[str, str]) -> list[dict[str, str]]:
    """One line for two runs; one line per run for more."""
    label = f"{entry.quantity}, {entry.sampler}"
    numbers = {name: entry.numbers.get(name, ("-", "-")) for name in labels}
    n = {name: count for name, (_, count) in numbers.items()}
    first, *others = labels
    if len(labels) <= 2:
        apart = {f"{labels[name]} minus {labels[first]}": entry.differences.get(name, "-") for name in others}
        values = {labels[name]: number for name, (number, _) in numbers.items()}
        return [{HEAD: label, **values, **apart, "n": " and ".join(dict.fromkeys(n.values()))}]
    return [
        {
            HEAD: "" if place else label,
            "run": labels[name],
            "value": number,
            f"minus {labels[first]}": entry.differences.get(name, "-") if place else "",
            "n": n[name],
        }
        for place, (name, (number, _)) in enumerate(numbers.items())
        if name in entry.numbers
    ]


def _of_runs(line: ComparisonLine, found: Comparison) -> Entry:
    numbers = {run: (_value(line, row), f"{row.n:,}") for run, row in line.rows.items()}
    values = {(row.value, row.stderr) for row in line.rows.values()}
    differences = {run: _difference(line, run) for run in found.runs[1:]}
    return Entry(quantity_of(line), _short(line, found), numbers, differences, values)


def _of_groups(line: ComparisonLine, means: GroupLine, found: Comparison) -> Entry:
    numbers = {}
    for name, mean in means.numbers.items():
        sizes = dict.fromkeys((mean.n[0], mean.n[-1]))
        numbers[name] = str(mean), " to ".join(f"{n:,}" for n in sizes)
    differences = {one.run: str(one) for one in means.differences}
    values = {(mean.value, mean.stderr) for mean in means.numbers.values()}
    return Entry(quantity_of(line), _short(line, found), numbers, differences, values)


def _numbers(lines: list[ComparisonLine], found: Comparison) -> str:
    first, *others = found.runs
    differences = [f"{run} minus {first}" for run in others]
    rows = []
    for line in lines:
        numbers = [
            f"{_value(line, line.rows[run])} (n={line.rows[run].n})" if run in line.rows else "-" for run in found.runs
        ]
        rows.append((quantity_of(line), sampler_of(line), *numbers, *(_difference(line, run) for run in others)))
    return grid(("quantity", "sampler", *found.runs, *differences), rows)


def _recipes(found: Comparison, labels: dict[str, str], width: int | None) -> list[str]:
    """Recipe keys that differ between runs, or between groups of runs."""
    places = [found.runs.index(group.runs[0].name) for group in found.groups] or range(len(found.runs))
    rows = [(key, *(_word(each[place]) for place in places)) for key, each in found.configuration.items()]
    if found.groups:
        rows = [row for row in rows if row[0] != "seed" and len(set(row[1:])) > 1]
    if rows:
        return [rendered(("key", *labels.values()), rows, width)]
    known = all(run.recipe for run in found.results)
    same = "They differ only in the seed." if found.groups else "They do not differ."
    return [same if known else "Unknown: some of these folders have no recipe.json."]


def _remarks(found: Comparison) -> list[str]:
    if not found.groups:
        return found.remarks
    notes = ["± is the standard error over runs, which differ in the seed of the training"]
    own = [line for line in found.group_lines if not line.place["quantity"].endswith(BITS)]
    if reasons := dict.fromkeys(line.refused for line in own if line.refused):
        notes.append(f"numbers of different texts or sequences are left out ({', '.join(map(str, reasons))})")
    return notes


def _ranks(found: list[RankAgreement], width: int | None) -> str:
    rows = [
        (
            f"{quantity_of(one.likelihood)}, {sampler_of(one.likelihood)}",
            f"{quantity_of(one.samples)}, {sampler_of(one.samples)}",
            *(f"{by.value:.3f} ± {by.stderr:.2g}" for by in one.by),
            str(one.by[0].n),
        )
        for one in found
    ]
    return rendered(("likelihood", "samples", "Pearson", "Spearman", "Kendall", "runs"), rows, width, 2)


def shown(line: ComparisonLine, found: Comparison) -> bool:
    """Whether tables show this line; it is left out where another line has the same number."""
    quantity = line.place["quantity"]
    if quantity in HIDDEN or not is_shown(quantity):
        return False
    if all("equal_to_eta" in row.more for row in line.rows.values()):
        return False  # another η has the same bound
    if line.place["set"] == TRANSPORT and quantity == "jumps":  # the hops of the samples
        at = {**line.place, "set": SAMPLES, "temperature": 1.0}
        return not any(other.place == at for other in found.lines)
    if quantity in HOPS:  # a number of hops under another name
        return not any(other.place == {**line.place, "quantity": HOPS[quantity]} for other in found.lines)
    if quantity.endswith(BITS):  # only where perplexities cannot be compared
        likelihood = {**line.place, "quantity": quantity.removesuffix(BITS)}
        return any(other.refused for other in found.lines if other.place == likelihood)
    return any(row.more.get("sampler") != ITSELF for row in line.rows.values())


def quantity_of(line: ComparisonLine) -> str:
    """The quantity as tables show it, such as "b0" or "coupled (not a bound)"."""
    bounds = {row.is_bound for row in line.rows.values()}
    unit = next(iter(line.rows.values())).unit
    name = _name(line.place["quantity"].removesuffix(BITS))
    if line.place["quantity"].endswith(BITS):
        name += ", bits/char"
    return name if unit not in ("ppl", "bits per character") or bounds == {True} else f"{name} (not a bound)"


def _name(quantity: str) -> str:
    """The name that the tables of `eval` have for a quantity."""
    for prefix, cost in COSTS.items():
        if quantity.startswith(prefix):
            return f"{cost} ({quantity.removeprefix(prefix).replace('_', ' ')})"
    return headings().get(quantity, quantity).replace("_jumps", " hops")


def _short(line: ComparisonLine, found: Comparison) -> str:
    """The sampler; without the judge where there is only one."""
    judges = {one.place["judge_hash"] for one in found.lines} - {None}
    parts = sampler_of(line).replace("continuous time", "continuous").split("; ")
    return "; ".join(part for part in parts if not (part.startswith("judge ") and len(judges) == 1))


def sampler_of(line: ComparisonLine) -> str:
    """The sampler that a number refers to, with temperature, paths, coupling and judge where they matter."""
    row = next(iter(line.rows.values()))
    more = row.more
    notes = [str(more.get("sampler", "-"))]
    if more.get("temperature", 1.0) != 1.0:
        notes.append(f"temperature {more['temperature']:g}")
    if row.paths and line.place["quantity"] != BEST:
        notes.append(row.paths)
    if "ot_n" in more:
        eps = f", eps {more['eps']:g}" if "eps" in more else ""
        notes.append(f"{more.get('coupling')} of {more['ot_n']}{eps}")
    if "judge_hash" in more:
        notes.append(f"judge {more['judge_hash'][:6]}")
    return "; ".join(notes)


def _value(line: ComparisonLine, row: Row) -> str:
    """The number with its error; the best bound with the name of the bound."""
    return plus_minus(row.value, row.stderr) + f" ({row.quantity})" * (line.place["quantity"] == BEST)


def _difference(line: ComparisonLine, run: str) -> str:
    for one in line.differences:
        if one.run == run:
            return str(one)
    return line.refused.get(run, "-")


def point_of(at: dict[str, Any]) -> str:
    """The samples of a `StepsToMatch`: η, temperature and judge."""
    notes = [] if at["eta"] is None else [f"η = {at['eta']:g}"]
    if at["temperature"] not in (None, 1.0):
        notes.append(f"temperature {at['temperature']:g}")
    return ", ".join([*notes, f"judge {str(at['judge_hash'])[:6]}"])


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
