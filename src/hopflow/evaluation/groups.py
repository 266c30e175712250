"""RecipeGroup: runs of one recipe with different seeds, summarized by their mean and its error over runs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from ..bounds.estimate import for_json, plus_minus
from .difference import Difference
from .run_results import RunResults

FEW = 3
"""Runs of a single recipe from which on their mean is shown in place of each run."""


@dataclass(frozen=True, eq=False)
class RecipeGroup:
    """Runs whose recipes differ only in the seed; or a single run."""

    name: str
    runs: tuple[RunResults, ...]

    @property
    def by_seed(self) -> dict[int | None, RunResults]:
        return {run.identity.get("seed"): run for run in self.runs}

    def __str__(self) -> str:
        if len(self.runs) == 1:
            return f"{self.name} (1 run)"
        return f"{self.name} ({len(self.runs)} runs, seeds {', '.join(str(seed) for seed in self.by_seed)})"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "runs": [run.name for run in self.runs], "seeds": list(self.by_seed)}


@dataclass(frozen=True)
class GroupMean:
    """A mean over runs, and its standard error from their spread; NaN for a single run."""

    value: float
    stderr: float
    runs: int
    n: tuple[int, ...]
    """The different numbers of sequences among the runs."""

    def __str__(self) -> str:
        return plus_minus(self.value, self.stderr)


@dataclass(frozen=True)
class GroupLine:
    """One quantity of one sampler on one set, for all groups that have it."""

    place: dict[str, Any]
    numbers: dict[str, GroupMean]
    differences: tuple[Difference, ...]
    refused: str | None
    """Why there are no differences."""

    def as_json(self) -> dict[str, Any]:
        numbers = {group: for_json(asdict(mean)) for group, mean in self.numbers.items()}
        differences = [one.as_json() for one in self.differences]
        return {**self.place, "groups": numbers, "differences": differences, "refused": self.refused}


def recipe_groups(runs: Sequence[RunResults]) -> list[RecipeGroup]:
    """The runs by recipe, in the order of their first runs; runs with the same recipe and seed are not grouped."""
    by_recipe: dict[str, list[RunResults]] = {}
    for run in runs:
        rest = {key: value for key, value in run.identity.items() if key != "seed"}
        key = json.dumps(rest, sort_keys=True) if "seed" in run.identity else f"run {run.name}"
        by_recipe.setdefault(key, []).append(run)
    parts = []
    for members in by_recipe.values():
        seeds = {run.identity.get("seed") for run in members}
        parts += [members] if len(seeds) == len(members) else [[run] for run in members]
    names = [_common_name([run.name for run in part]) for part in parts]
    unique = len(set(names)) == len(names)
    return [RecipeGroup(name if unique else part[0].name, tuple(part)) for name, part in zip(names, parts, strict=True)]


def show_as_groups(groups: Sequence[RecipeGroup]) -> bool:
    """Whether a comparison shows means over seeds rather than every run."""
    largest = max(len(group.runs) for group in groups)
    return largest > 1 if len(groups) > 1 else largest >= FEW


def _common_name(names: Sequence[str]) -> str:
    """The common beginning of names of runs, such as runs/plain for runs/plain-0 and runs/plain-1."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).removesuffix("seed").rstrip("-_./ ") or names[0]
