"""Comparison: the numbers of several evaluated runs next to each other, with differences from the first run.

Numbers are on one line if they agree in set, quantity, sampler, coupling and judge. Errors of differences add in
quadrature, unless the values per sequence of both runs are stored: then the difference is that of the sequences that
both have. Numbers that must not be subtracted, such as perplexities per token of different tokenizers, are shown
without a difference, and with the reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from ..bounds.estimate import mean_and_error
from .best_bound import best_bound
from .correlation import Correlation, correlations
from .difference import Difference, difference, difference_of_means, reason_not_to_subtract
from .groups import GroupLine, GroupMean, RecipeGroup, recipe_groups, show_as_groups
from .matching import CURVE, StepsToMatch, quality_curves, steps_to_match
from .rows import SAMPLES, Row
from .run_results import BITS, RunResults, place_keys, tokenizers_differ
from .same_sequences import is_of_text, values_on_shared_sequences

FEWEST = 5
"""Runs from which on a correlation has an error."""
BEST = "best bound"
"""The quantity of a line with the tightest bound of each run."""


@dataclass(frozen=True)
class ComparisonLine:
    """One quantity of one sampler on one set, for all runs that have it."""

    place: dict[str, Any]
    rows: dict[str, Row]
    differences: tuple[Difference, ...]
    refused: dict[str, str]
    """By run, why there is no difference."""

    def as_json(self) -> dict[str, Any]:
        shown = [one.as_json() for one in self.differences]
        numbers = {run: row.as_json() for run, row in self.rows.items()}
        return {**self.place, "rows": numbers, "differences": shown, "refused": self.refused}


@dataclass(frozen=True)
class RankAgreement:
    """How well a likelihood and a generative perplexity of the same runs correlate."""

    likelihood: ComparisonLine
    samples: ComparisonLine
    by: tuple[Correlation, Correlation, Correlation]

    def as_json(self) -> dict[str, Any]:
        places = {"likelihood": self.likelihood.place, "samples": self.samples.place}
        return {**places, "correlations": [asdict(one) for one in self.by]}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several runs and their numbers; differences are taken from the first run."""

    results: tuple[RunResults, ...]

    @classmethod
    def of(cls, folders: Sequence[str | Path], *, offline: bool = False) -> "Comparison":
        """Read the numbers of folders and of networks of the hub (`hub:user/name`)."""
        if len(folders) < 2:
            raise ValueError("compare needs two or more runs: hopflow compare RUN RUN …")
        paths = [Path(folder) for folder in folders]
        if len({path.resolve() for path in paths}) < len(paths):
            raise ValueError("a run is named twice: name each run once")
        return cls(tuple(RunResults.load(path, offline=offline) for path in paths))

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs."""
        return tuple(run.name for run in self.results)

    @cached_property
    def _places(self) -> list[tuple[Any, ...]]:
        return list(dict.fromkeys(place for run in self.results for place in run.rows))

    @cached_property
    def lines(self) -> list[ComparisonLine]:
        """Every number that any run has, in the order they were measured."""
        return [
            self._line(place_keys(place), {run.name: run.rows[place] for run in self.results if place in run.rows})
            for place in self._places
        ]

    @cached_property
    def tightest_bounds(self) -> list[ComparisonLine]:
        """For each set and number of steps the tightest bound of each run for the sampler with η = 0.

        bn from masks and br from other sources bound the same sampler, so they may be compared.
        """
        found = []
        rows = {run.name: list(run.rows.values()) for run in self.results}
        every = [row for each in rows.values() for row in each]
        bounded = [(row.set, row.more["steps"]) for row in every if row.quantity in ("bn", "br") and row.eta == 0]
        for name, steps in dict.fromkeys(bounded):
            best = {run: row for run, each in rows.items() if (row := best_bound(each, name, steps)) is not None}
            found.append(self._line({"set": name, "quantity": BEST, "eta": 0.0, "steps": steps}, best))
        return found

    @property
    def best_bounds(self) -> list[ComparisonLine]:
        """The tightest bounds where the runs differ in which one it is; other lines show them already."""
        return [line for line in self.tightest_bounds if len({row.quantity for row in line.rows.values()}) > 1]

    @cached_property
    def groups(self) -> list[RecipeGroup]:
        """Runs by recipe over seeds; empty where each run is shown alone."""
        found = recipe_groups(self.results)
        return found if show_as_groups(found) else []

    @cached_property
    def group_lines(self) -> list[GroupLine]:
        """Every number as a mean over the runs of each recipe, with differences from the first recipe."""
        return [self._group_line(place) for place in self._places] if self.groups else []

    @cached_property
    def matches(self) -> list[StepsToMatch]:
        """For every two runs with samples by the same judge at the same η and temperature: the steps one needs."""
        found = []
        known = [(run, quality_curves(list(run.rows.values()))) for run in self.results]
        for (other, goals), (run, own) in permutations(known, 2):
            for key in own:
                at = dict(zip(CURVE, key, strict=True))
                several = len(own[key]) > 1 or len(goals.get(key, ())) > 1  # of one number of steps there is no curve
                if key in goals and several and (at["retokenised"] or not tokenizers_differ(run, other)):
                    found.append(steps_to_match(run.name, own[key], other.name, goals[key], at))
        return found

    @cached_property
    def rank_agreements(self) -> list[RankAgreement]:
        """Correlations of likelihoods with generative perplexities, where five or more runs have both.

        App. C.7 [C6]. Of the samples of one sampler and judge those with the most steps count.
        """
        samples: dict[tuple[Any, ...], ComparisonLine] = {}
        for line in self.lines:
            if line.place["set"] == SAMPLES and line.place["quantity"] == "gen_ppl":
                names = ("eta", "temperature", "judge_hash", "retokenised", "sampler_label")
                key = tuple(line.place.get(name) for name in names)
                known = samples.get(key)
                if known is None or (line.place["steps"] or 0) > (known.place["steps"] or 0):
                    samples[key] = line
        found = []
        for line in self.lines:
            sizes = {row.n for row in line.rows.values()}
            if any(row.unit == "ppl" for row in line.rows.values()) and not line.refused and len(sizes) == 1:
                for other in samples.values():
                    both = [(line.rows[run].value, other.rows[run].value) for run in line.rows if run in other.rows]
                    if any(row.is_infinite for row in line.rows.values()):
                        continue
                    if len(both) >= FEWEST and all(len(set(column)) > 1 for column in zip(*both, strict=True)):
                        found.append(RankAgreement(line, other, correlations(*zip(*both, strict=True))))
        return found

    @cached_property
    def configuration(self) -> dict[str, list[Any]]:
        """Recipe keys that differ, with one value per run in the order of the runs; None where a run has none."""
        keys = dict.fromkeys(key for run in self.results for key in run.recipe)
        found = {key: [run.recipe.get(key) for run in self.results] for key in keys}
        return {key: each for key, each in found.items() if any(one != each[0] for one in each)}

    @cached_property
    def remarks(self) -> list[str]:
        """What a reader must know to interpret these numbers."""
        first, notes = self.results[0], []
        differences = [one for line in self.lines for one in line.differences]
        if not differences:
            notes.append("these runs have no number in common: evaluate them with the same settings")
        if any(one.how == "quadrature" for one in differences):
            notes.append(
                "errors of differences add in quadrature, which overestimates them where runs share sequences or draws"
            )
        if any(one.first is not None for one in differences):
            notes.append(
                "where n differs, the difference is that of the sequences that both runs have, which come first in both"
            )
        own = [line for line in self.lines if not line.place["quantity"].endswith(BITS)]
        if any(reason.startswith("n = ") for line in own for reason in line.refused.values()):
            notes.append(
                "numbers from different n are not subtracted unless the values per sequence are stored: evaluate both "
                "runs with the same rows="
            )
        if others := [run.name for run in self.results if tokenizers_differ(first, run)]:
            notes.append(
                f"{', '.join(others)} and {first.name} have different tokenizers: numbers per token depend on how much "
                f"text a token is, so compare likelihoods in bits per character of the same text"
            )
        if any(row.is_bound for line in self.lines if line.differences for row in line.rows.values()):
            notes.append(
                "a difference of two bounds is not a difference of likelihoods: one may be tighter than the other"
            )
        for line in self.lines:
            dtypes = {row.dtype for row in line.rows.values()}
            if line.differences and len(dtypes) > 1:
                notes.append(f"dtypes differ ({', '.join(sorted(dtypes))})")
                break
        rows = [(run, row) for line in own for run, row in line.rows.items() if row.remark]
        notes += [f"{run}: {row.remark}" for run, row in rows]
        for run in self.results:
            if run.stale:
                notes.append(
                    f"{run.stale} rows of {run.name} belong to another recipe than its folder has now and are left "
                    f"out: hopflow eval {run.name} measures them again"
                )
        return notes

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.runs),
            "lines": [line.as_json() for line in self.lines],
            "best_bounds": [line.as_json() for line in self.best_bounds],
            "groups": [group.as_json() for group in self.groups],
            "group_lines": [line.as_json() for line in self.group_lines],
            "steps_to_match": [found.as_json() for found in self.matches],
            "correlations": [found.as_json() for found in self.rank_agreements],
            "configuration": self.configuration,
            "remarks": self.remarks,
        }

    def _line(self, place: dict[str, Any], rows: dict[str, Row]) -> ComparisonLine:
        """The rows of the runs that have this number, with differences from the first run."""
        first, *others = self.results
        differences, refused = [], {}
        for run in others if first.name in rows else ():
            if run.name in rows:
                found = difference(first, rows[first.name], run, rows[run.name])
                if isinstance(found, Difference):
                    differences.append(found)
                else:
                    refused[run.name] = found
        return ComparisonLine(place, rows, tuple(differences), refused)

    def _group_line(self, place: tuple[Any, ...]) -> GroupLine:
        """Means over the runs that have this number, on the sequences that all of them have."""
        first, *others = (run for run in self.results if place in run.rows)
        row, known = first.rows[place], (first, *others)
        found = (reason_not_to_subtract(first, row, run, run.rows[place]) for run in others)
        reasons = [reason for reason in found if reason]
        values = None if reasons else values_on_shared_sequences(known, place)
        fewest = min(run.rows[place].n for run in known) if is_of_text(row) else None
        if values is None:
            sizes = sorted({run.rows[place].n for run in known})
            reasons.append(f"n = {sizes[0]} to {sizes[-1]}")
        numbers, by_seed = {}, {}
        for group in self.groups:
            own = {seed: run for seed, run in group.by_seed.items() if place in run.rows}
            if own and values is not None:
                by_seed[group.name] = {seed: values[run.name] for seed, run in own.items()}
                mean = mean_and_error(torch.tensor(list(by_seed[group.name].values()), dtype=torch.float64))
                numbers[group.name] = GroupMean(*mean, len(own), _sizes(own.values(), place, fewest))
        name, differences = self.groups[0].name, []
        for other in by_seed if name in by_seed else ():
            if other != name:
                differences.append(Difference(other, name, *difference_of_means(by_seed[name], by_seed[other])))
        return GroupLine(place_keys(place), numbers, tuple(differences), reasons[0] if reasons else None)


def _sizes(runs: Iterable[RunResults], place: tuple[Any, ...], fewest: int | None) -> tuple[int, ...]:
    """The different numbers of sequences of these runs; only `fewest` where all are cut to it."""
    return (fewest,) if fewest is not None else tuple(sorted({run.rows[place].n for run in runs}))
