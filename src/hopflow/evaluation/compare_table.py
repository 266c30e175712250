"""Pages of comparisons, as markdown or as text that fits a terminal."""

import json
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS
from typing import Any

from ..estimate import plus_minus
from .compare import BITS, Comparison, Line, Ranked
from .frontier import SAMPLES
from .groups import GroupLine
from .rows import TRANSPORT, Row
from .table import constant, grid, rendered, wrapped
from .transport_table import HOPS

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

HEAD = "quantity, sampler"


@dataclass(frozen=True)
class Entry:
    """A number of several runs or recipes, as text."""

    quantity: str
    sampler: str
    numbers: dict[str, tuple[str, str]]
    """By run or recipe, the number and its n."""
    differences: dict[str, str]
    values: set[tuple[float, float]]
    """The different ones among these numbers."""

    @property
    def certain(self) -> bool:
        """Whether it is the same for all, without an error."""
        return len(self.values) == 1 and all(error == 0 for _, error in self.values)

    @property
    def said(self) -> str:
        return f"{self.quantity}, {self.sampler}: {next(iter(self.values))[0]:.4g} for all"


def page(found: Comparison, width: int | None = None) -> str:
    """A table per set, the steps to match, what differs in the recipes, and notes; markdown, or text of this width.

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
    for name in dict.fromkeys(line.place["set"] for line in lines):
        here = [line for line in lines if line.place["set"] == name]
        table = [_numbers(here, found)] if width is None and not found.groups else _entries(here, found, labels, width)
        parts += [wrapped(f"## {name}", width), *table] if table else []
    if found.matches and not found.groups:
        said = [wrapped(f"- {point_of(match.at)}: {match}", width) for match in found.matches]
        parts += ["## Steps to match", "\n".join(said)]
    if found.ranked:
        parts += ["## Do bounds and samples rank the runs alike?", _ranks(found.ranked, width)]
    parts += ["## Recipes", *_recipes(found, labels, width)]
    parts += [wrapped(f"{line[0].upper()}{line[1:]}.", width) for line in _remarks(found)]
    return "\n\n".join(parts) + "\n"


def _legend(label: str, name: str, width: int | None) -> str:
    return wrapped(f"- {name}" if name.startswith(label) else f"{label}  {name}", width)


def _entries(lines: list[Line], found: Comparison, labels: dict[str, str], width: int | None) -> list[str]:
    """What runs or recipes have in common, and what is said under it."""
    if found.groups:
        means = {tuple(line.place.values()): line for line in found.group_lines}
        entries = [_of_groups(line, means[tuple(line.place.values())], found) for line in lines]
    else:
        entries = [_of_runs(line, found) for line in lines]
    several = [one for one in entries if len(one.numbers) >= min(2, len(labels))]
    table = [row for one in several if not one.certain for row in _rows(one, labels)]
    notes = [one.said for one in several if one.certain]
    if left := len(entries) - len(several):
        notes.append(f"{left} numbers that only one has are left out")
    if table:
        table, same = constant(table, ("n",))
        notes += [f"n = {same['n']}"] if "n" in same else []
    drawn = [rendered(list(table[0]), [list(row.values()) for row in table], width)] if table else []
    return [*drawn, *([wrapped(f"{'; '.join(notes)}.", width)] if notes else [])]


def _rows(entry: Entry, labels: dict[str, str]) -> list[dict[str, str]]:
    """One line for two runs; for others one line for each."""
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


def _of_runs(line: Line, found: Comparison) -> Entry:
    numbers = {run: (plus_minus(row.value, row.stderr), f"{row.n:,}") for run, row in line.rows.items()}
    values = {(row.value, row.stderr) for row in line.rows.values()}
    differences = {run: _difference(line, run) for run in found.runs[1:]}
    return Entry(quantity_of(line), _short(line, found), numbers, differences, values)


def _of_groups(line: Line, means: GroupLine, found: Comparison) -> Entry:
    numbers = {}
    for name, mean in means.numbers.items():
        sizes = dict.fromkeys((mean.n[0], mean.n[-1]))
        numbers[name] = str(mean), " to ".join(f"{n:,}" for n in sizes)
    differences = {one.run: str(one) for one in means.differences}
    values = {(mean.value, mean.stderr) for mean in means.numbers.values()}
    return Entry(quantity_of(line), _short(line, found), numbers, differences, values)


def _numbers(lines: list[Line], found: Comparison) -> str:
    first, *others = found.runs
    differences = [f"{run} minus {first}" for run in others]
    rows = []
    for line in lines:
        numbers = [_number(line.rows.get(run)) for run in found.runs]
        rows.append((quantity_of(line), sampler_of(line), *numbers, *(_difference(line, run) for run in others)))
    return grid(("quantity", "sampler", *found.runs, *differences), rows)


def _recipes(found: Comparison, labels: dict[str, str], width: int | None) -> list[str]:
    """Keys that differ between runs, or between recipes over seeds."""
    places = [found.runs.index(group.sides[0].name) for group in found.groups] or range(len(found.runs))
    rows = [(key, *(_word(each[place]) for place in places)) for key, each in found.configuration.items()]
    if found.groups:
        rows = [row for row in rows if row[0] != "seed" and len(set(row[1:])) > 1]
    if rows:
        return [rendered(("key", *labels.values()), rows, width)]
    known = all(side.recipe for side in found.sides)
    same = "They differ in the seed only." if found.groups else "They do not differ."
    return [same if known else "Not known: not all of these folders have a recipe.json."]


def _remarks(found: Comparison) -> list[str]:
    if not found.groups:
        return found.remarks
    said = ["± is the standard error over runs: how much the seed of the training matters"]
    own = [line for line in found.group_lines if not line.place["quantity"].endswith(BITS)]
    if reasons := dict.fromkeys(line.refused for line in own if line.refused):
        said.append(f"numbers of different texts or sequences are left out ({', '.join(map(str, reasons))})")
    return said


def _ranks(found: list[Ranked], width: int | None) -> str:
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


def shown(line: Line, found: Comparison) -> bool:
    quantity = line.place["quantity"]
    if quantity in LEFT_OUT or quantity.startswith("recent_"):
        return False
    if all("equal_to_eta" in row.more for row in line.rows.values()):
        return False  # the same by theory as another line
    if line.place["set"] == TRANSPORT and quantity == "jumps":  # the same as those of the samples
        at = {**line.place, "set": SAMPLES, "temperature": 1.0}
        return not any(other.place == at for other in found.lines)
    if quantity in HOPS:  # the same as the hops
        return not any(other.place == {**line.place, "quantity": HOPS[quantity]} for other in found.lines)
    if quantity.endswith(BITS):  # where perplexities will not do
        likelihood = {**line.place, "quantity": quantity.removesuffix(BITS)}
        return any(other.refused for other in found.lines if other.place == likelihood)
    return any(row.more.get("sampler") != "the text itself" for row in line.rows.values())


def quantity_of(line: Line) -> str:
    bounds = {row.is_bound for row in line.rows.values()}
    unit = next(iter(line.rows.values())).unit
    name = line.place["quantity"].removesuffix(BITS).replace("jumps", "hops")
    if line.place["quantity"].endswith(BITS):
        name += ", bits/char"
    return name if unit not in ("ppl", "bits per character") or bounds == {True} else f"{name} (no bound)"


def _short(line: Line, found: Comparison) -> str:
    """The sampler without the judge, where there is but one."""
    judges = {one.place["judge_hash"] for one in found.lines} - {None}
    parts = sampler_of(line).replace("continuous time", "continuous").split("; ")
    return "; ".join(part for part in parts if not (part.startswith("judge ") and len(judges) == 1))


def sampler_of(line: Line) -> str:
    row = next(iter(line.rows.values()))
    more = row.more
    said = [str(more.get("sampler", "-"))]
    if more.get("temperature", 1.0) != 1.0:
        said.append(f"temperature {more['temperature']:g}")
    if row.paths:
        said.append(row.paths)
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
