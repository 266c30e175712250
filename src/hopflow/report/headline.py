"""The result of a report in one sentence, from measured numbers and their standard errors only.

Two numbers are equal within errors if they differ by less than 2 standard errors. Numbers with an unknown error are
neither called equal nor different. Where br was measured, runs are judged by the tightest bound of the sampler with
η = 0 (br or bn), because the other bounds of this sampler can be far too high.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ..bounds.estimate import mean_and_error
from ..evaluation.best_bound import best_bound
from ..evaluation.compare import Comparison, ComparisonLine
from ..evaluation.rows import SAMPLES, Row
from ..evaluation.run_results import BITS
from .hop_counts import counted_totals, predicted_total
from .numbers import SIGNIFICANT, ValueWithError, format_value, is_known, standard_error
from .run_data import RunData, compare, logged_evaluations

MAX_BOUNDS = 2
"""Bounds that are named one by one if they differ; more are counted."""
MAX_GROUPS = 3
"""Groups that are compared with the first one."""
LOGGED = {
    "b0": ("perplexity", "bound b0; η = 0, continuous time"),
    "bn": ("perplexity", "bound bn; η = 0, {steps} steps"),
    "nll": ("nats", "exact"),
}
"""Likelihoods that training logs: unit, and kind with its sampler."""
SEED_KEYS = ("seed", "model.weights")
"""Parts of a run's identity that change with its seed."""


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seeds."""

    runs: tuple[RunData, ...]

    @cached_property
    def name(self) -> str:
        first, *others = (run.name for run in self.runs)
        return f"{first} ({len(others) + 1} seeds)" if others else first

    def mean(self, values: Mapping[RunData, ValueWithError]) -> ValueWithError:
        """The mean over the runs, with its standard error over runs; for a single run its own value."""
        found = [values[run] for run in self.runs]
        if len(found) == 1:
            return found[0]
        return ValueWithError(*mean_and_error(torch.tensor([one.value for one in found], dtype=torch.float64)))


def headline(runs: Sequence[RunData]) -> str:
    """The result in one sentence; empty if nothing was measured."""
    groups = seed_groups(runs)
    if len(runs) == 1:
        return _sentence([_best_likelihood(runs[0]), _hops_per_sequence(runs)])
    if len(groups) == 1:
        parts = [_mean_likelihood(groups[0]), _hops_per_sequence(runs)]
        return _sentence(parts, f"{len(runs)} runs with different seeds: ")
    first, *others = groups
    parts = [
        _sentence([_compare_hops(first, one), _compare_bounds(first, one)], f"{one.name}: ")
        for one in others[:MAX_GROUPS]
    ]
    if len(others) > MAX_GROUPS:
        parts.append(f"{len(others) - MAX_GROUPS} more runs are compared below.")
    return " ".join(filter(None, parts))


def seed_groups(runs: Sequence[RunData]) -> list[SeedGroup]:
    """Runs grouped by all settings except the seed; a run without a recipe is its own group."""
    found: dict[object, list[RunData]] = {}
    for run in runs:
        settings = {key: str(value) for key, value in run.identity.items() if key not in SEED_KEYS}
        found.setdefault(tuple(sorted(settings.items())) or id(run), []).append(run)
    return [SeedGroup(tuple(group)) for group in found.values()]


# -- one run, or runs that differ in the seed --------------------------------------------------------------------------


def _best_likelihood(run: RunData) -> str:
    """The tightest bound with η = 0 if br was measured, or the lowest bound; else the last one that training logged."""
    rows = [row for row in run.rows if _is_likelihood(row)]
    if rows:
        same_text = [row for row in rows if row.set == rows[0].set]
        tightest = _tightest(same_text)
        row = tightest or min(same_text, key=lambda row: row.value)
        kind = "exact" if row.more.get("exact") else f"bound {row.quantity}"
        kind = f"bound {_name(row)}, the tightest for this sampler" if tightest else kind
        unit, value = _per_character(row)
        return f"{value} {unit} on {row.set} text ({kind}; {row.more.get('sampler', '-')}; n = {row.n:,})"
    for quantity, (unit, kind) in LOGGED.items():
        if found := logged_evaluations(run, quantity):
            last, steps = found[-1], run.recipe.get("eval_steps", "a few")
            n = "" if last.n is None else f"; n = {last.n:,}"
            details = f"{kind.format(steps=steps)}{n}; training step {last.step:,}"
            return f"{format_value(last.value, last.stderr)} {unit} per token on held-out text ({details})"
    return ""


def _tightest(rows: Sequence[Row]) -> Row | None:
    """The tightest bound with η = 0 in the most steps for which br was measured; None without br."""
    steps = [row.more["steps"] for row in rows if row.quantity == "br" and row.eta == 0]
    return best_bound(rows, rows[0].set, max(steps)) if steps else None


def _name(row: Row) -> str:
    """The name of a bound, such as "br with 8 paths"."""
    paths = row.more.get("paths")
    return row.quantity if paths is None else f"{row.quantity} with {paths} path{'s' * (paths != 1)}"


def _per_character(row: Row) -> tuple[str, ValueWithError]:
    """Bits per character if they are known; otherwise the perplexity per token."""
    bits, error = row.more.get("bits_per_char"), row.more.get("bits_per_char_stderr")
    if isinstance(bits, int | float):
        return "bits per character", ValueWithError(float(bits), standard_error(error, row.n))
    return "perplexity per token", _value(row)


def _mean_likelihood(group: SeedGroup) -> str:
    """The tightest bounds if br was measured, otherwise the first likelihood that all runs share; mean over runs."""
    found = compare(group.runs)
    if found is None or len(found.results) < len(group.runs):
        return ""
    for line in (*_tightest_lines(found), *found.lines):
        rows = list(line.rows.values())
        if len(rows) == len(group.runs) and all(map(_is_likelihood, rows)) and not line.refused and _one_n(line):
            values = {run: ValueWithError(row.value, row.stderr) for run, row in zip(group.runs, rows, strict=True)}
            names = " or ".join(dict.fromkeys(map(_name, rows)))
            details = f"{names}; {rows[0].more.get('sampler', '-')}; n = {len(rows)} runs"
            return f"perplexity {group.mean(values)} per token on {rows[0].set} text ({details})"
    return ""


def _hops_per_sequence(runs: Sequence[RunData]) -> str:
    counted, sampler = counted_totals(runs)
    if not counted:
        return ""
    group = SeedGroup(tuple(runs))
    text = f"{group.mean(counted)} hops per sequence ({sampler})"
    predicted = {run: found for run in runs if (found := predicted_total(run))}
    if len(predicted) < len(runs):
        return text
    mean = group.mean({run: found.number for run, found in predicted.items()})
    exact = all(not found.batches for found in predicted.values())
    return f"{text}, {f'{mean.value:,g}' if exact else mean} predicted"


# -- groups compared with the first ------------------------------------------------------------------------------------


def _compare_hops(first: SeedGroup, other: SeedGroup) -> str:
    """Fewer or more hops than the first group, and the same as predicted from the couplings."""
    runs = (*first.runs, *other.runs)
    counted, _ = counted_totals(runs)
    if not counted or first.mean(counted).value <= 0:
        return ""
    saved = other.mean(counted).percent_below(first.mean(counted))
    if not saved.value and not saved.stderr:
        return f"as many hops as {first.name}"
    text = f"{_fewer(saved)} than {first.name}"
    if is_known(saved.stderr) and not saved.is_significant:
        text = f"as many hops as {first.name} within errors ({_fewer(saved)})"
    predicted = {run: found for run in runs if (found := predicted_total(run))}
    if len(predicted) < len(runs) or len({found.length for found in predicted.values()}) > 1:
        return text
    numbers = {run: found.number for run, found in predicted.items()}
    expected = other.mean(numbers).percent_below(first.mean(numbers))
    same_sign = saved.is_significant and saved.value * expected.value > 0
    return f"{text}, {_percent(expected) if same_sign else _fewer(expected)} predicted"


def _fewer(saved: ValueWithError) -> str:
    if not saved.value and not saved.stderr:
        return "as many hops"
    return f"{_percent(saved)} {'fewer' if saved.value >= 0 else 'more'} hops"


def _percent(number: ValueWithError) -> str:
    return f"{format_value(abs(number.value), number.stderr)} %"


def _compare_bounds(first: SeedGroup, other: SeedGroup) -> str:
    """Which bounds are lower or higher, and by how much."""
    found = compare((*first.runs, *other.runs))
    if found is None or len(found.results) < len(first.runs) + len(other.runs):
        return _compare_logged_bounds(first, other)
    single = len(first.runs) == len(other.runs) == 1  # then the difference is over the sequences that both have
    for line in _tightest_lines(found):
        if not line.refused and (single or _one_n(line)):
            return _describe_tightest(line, first, other)
    lines = [line for line in found.lines if len(line.rows) == len(found.results)]
    for is_comparable in (_is_likelihood, _is_per_character):
        likelihoods = [line for line in lines if all(map(is_comparable, line.rows.values()))]
        if allowed := [line for line in likelihoods if not line.refused and (single or _one_n(line))]:
            return _describe_differences([(_label(line), _difference(line, first, other)) for line in allowed])
    refused = [reason for line in lines for reason in line.refused.values()]
    return f"bounds are not comparable: {refused[0]}" if refused else ""


def _tightest_lines(found: Comparison) -> list[ComparisonLine]:
    """The tightest bounds with η = 0 that all runs have, where at least one is br; the most steps first."""
    lines = [line for line in found.tightest_bounds if len(line.rows) == len(found.results)]
    lines = [line for line in lines if any(row.quantity == "br" for row in line.rows.values())]
    here = [line for line in lines if line.place["set"] == lines[0].place["set"]]
    return sorted(here, key=lambda line: -line.place["steps"])


def _describe_tightest(line: ComparisonLine, first: SeedGroup, other: SeedGroup) -> str:
    """Whether the tightest bound is lower or higher, and which bounds are compared."""
    ours, theirs = (
        " or ".join(dict.fromkeys(_name(line.rows[run.name]) for run in group.runs)) for group in (other, first)
    )
    which = ours if ours == theirs else f"{ours}; {first.name}: {theirs}"
    label = f"tightest bound for {line.rows[other.runs[0].name].more.get('sampler', '-')} ({which})"
    number = _difference(line, first, other)
    if not is_known(number.stderr):
        return f"{label} not compared, since its error is unknown"
    return f"{label} {_lower(number) if number.is_significant else 'equal within errors'}"


def _difference(line: ComparisonLine, first: SeedGroup, other: SeedGroup) -> ValueWithError:
    """For two single runs the difference of the comparison, which may be paired; for groups that of their means."""
    if len(first.runs) == len(other.runs) == 1:
        one = line.differences[0]
        ns = {line.rows[run].n for run in line.rows}
        return ValueWithError(one.value, None if 1 in ns and not one.stderr else one.stderr)
    values = {run: _value(line.rows[run.name]) for run in (*first.runs, *other.runs)}
    return other.mean(values).minus(first.mean(values))


def _value(row: Row) -> ValueWithError:
    return ValueWithError(row.value, standard_error(row.stderr, row.n))


def _one_n(line: ComparisonLine) -> bool:
    """Whether all runs were evaluated on equally many sequences, so that their means are over the same ones."""
    return len({row.n for row in line.rows.values()}) == 1


def _compare_logged_bounds(first: SeedGroup, other: SeedGroup) -> str:
    """By the last evaluation during training, if all runs have the same number of steps."""
    differences = []
    for quantity in LOGGED:
        found = {run: logged_evaluations(run, quantity) for group in (first, other) for run in group.runs}
        if all(found.values()) and len({each[-1].step for each in found.values()}) == 1:
            values = {run: ValueWithError(each[-1].value, each[-1].stderr) for run, each in found.items()}
            differences.append((quantity, other.mean(values).minus(first.mean(values))))
    return _describe_differences(differences) if differences else ""


def _describe_differences(differences: Sequence[tuple[str, ValueWithError]]) -> str:
    word = "bound" if len(differences) == 1 else "bounds"
    unknown = [name for name, number in differences if not is_known(number.stderr)]
    if len(unknown) == len(differences):
        whose = "its error is" if len(differences) == 1 else "their errors are"
        return f"{word} not compared, since {whose} unknown"
    significant = [(name, number) for name, number in differences if number.is_significant]
    if not significant:
        return f"{word} equal within errors"
    if len(significant) <= MAX_BOUNDS:
        parts = [f"{name} {_lower(number)}" for name, number in significant]
        rest = len(differences) - len(significant) - len(unknown)
        return ", ".join([*parts, *(["other bounds equal within errors"] if rest else [])])
    low = sum(number.value < 0 for _, number in significant)
    (count, side), *others = ((n, side) for n, side in ((low, "lower"), (len(significant) - low, "higher")) if n)
    more = "".join(f" and {n} {side}" for n, side in others)
    return f"{count} of {len(differences)} bounds {side}{more} by more than {SIGNIFICANT} standard errors"


def _lower(number: ValueWithError) -> str:
    return f"{'lower' if number.value < 0 else 'higher'} by {format_value(abs(number.value), number.stderr)}"


def _label(line: ComparisonLine) -> str:
    row = next(iter(line.rows.values()))
    unit = ", bits per character" if _is_per_character(row) else ""
    return f"{row.quantity.removesuffix(BITS)} ({row.more.get('sampler', '-')}{unit})"


def _is_likelihood(row: Row) -> bool:
    """Whether it is a bound on the perplexity per token, or its exact value."""
    return row.unit == "ppl" and row.set != SAMPLES and _is_valid(row)


def _is_per_character(row: Row) -> bool:
    """Whether it is a likelihood per character, by which runs with different tokenizers can be compared."""
    return row.quantity.endswith(BITS) and _is_valid(row)


def _is_valid(row: Row) -> bool:
    return (row.is_bound or bool(row.more.get("exact"))) and "ot_n" not in row.more


def _sentence(parts: Sequence[str], start: str = "") -> str:
    text = "; ".join(filter(None, parts))
    if not text:
        return ""
    text = f"{start}{text}"
    return f"{text[0].upper() if not start else text[0]}{text[1:]}."
