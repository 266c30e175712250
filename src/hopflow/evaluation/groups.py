"""Groups: runs of one recipe over seeds, as a mean with its error over runs, and differences between recipes."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from ..estimate import for_json, mean_and_error, plus_minus

if TYPE_CHECKING:
    from .compare import Difference, Side

FEW = 3
"""Runs of a single recipe from which on their mean is shown in place of each of them."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs whose recipes differ in the seed only; or a single run."""

    name: str
    sides: tuple["Side", ...]

    @property
    def by_seed(self) -> dict[int | None, "Side"]:
        return {side.identity.get("seed"): side for side in self.sides}

    def __str__(self) -> str:
        if len(self.sides) == 1:
            return f"{self.name} (1 run)"
        return f"{self.name} ({len(self.sides)} runs, seeds {', '.join(str(seed) for seed in self.by_seed)})"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "runs": [side.name for side in self.sides], "seeds": list(self.by_seed)}


@dataclass(frozen=True)
class Mean:
    """A mean over runs, and its standard error from their spread: unknown for a single run."""

    value: float
    stderr: float
    runs: int
    n: tuple[int, ...]
    """Sequences behind the number of each run."""

    def __str__(self) -> str:
        return plus_minus(self.value, self.stderr)


@dataclass(frozen=True)
class GroupLine:
    """One quantity of one sampler on one set, of all groups that have it."""

    place: dict[str, Any]
    numbers: dict[str, Mean]
    differences: tuple["Difference", ...]
    refused: str | None
    """Why there are no differences."""

    def as_json(self) -> dict[str, Any]:
        numbers = {group: for_json(asdict(mean)) for group, mean in self.numbers.items()}
        differences = [one.as_json() for one in self.differences]
        return {**self.place, "groups": numbers, "differences": differences, "refused": self.refused}


def groups_of(sides: Sequence["Side"]) -> list[Group]:
    """Runs by recipe, in the order of their first ones; runs of one recipe with one seed stay apart."""
    found: dict[str, list[Side]] = {}
    for side in sides:
        rest = {key: value for key, value in side.identity.items() if key != "seed"}
        key = json.dumps(rest, sort_keys=True) if "seed" in side.identity else f"run {side.name}"
        found.setdefault(key, []).append(side)
    parts = []
    for members in found.values():
        seeds = {side.identity.get("seed") for side in members}
        parts += [members] if len(seeds) == len(members) else [[side] for side in members]
    names = [_name([side.name for side in part]) for part in parts]
    unique = len(set(names)) == len(names)
    return [Group(name if unique else part[0].name, tuple(part)) for name, part in zip(names, parts, strict=True)]


def worth(groups: Sequence[Group]) -> bool:
    """Whether runs are shown by recipe rather than one by one."""
    largest = max(len(group.sides) for group in groups)
    return largest > 1 if len(groups) > 1 else largest >= FEW


def difference(first: dict[int | None, float], other: dict[int | None, float]) -> tuple[float, float, str]:
    """A mean over runs less another, its error, and how that was had: seed by seed where two or more are in both."""
    shared = [seed for seed in first if seed in other and seed is not None]
    if len(shared) > 1:
        apart = [other[seed] - first[seed] for seed in shared]
        return *mean_and_error(torch.tensor(apart, dtype=torch.float64)), "paired by seed"
    (a, a_error), (b, b_error) = (
        mean_and_error(torch.tensor(list(each.values()), dtype=torch.float64)) for each in (first, other)
    )
    return b - a, math.hypot(a_error, b_error), "quadrature"


def _name(names: Sequence[str]) -> str:
    """What names of runs begin with, such as runs/plain for runs/plain-0 and runs/plain-1."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).removesuffix("seed").rstrip("-_./ ") or names[0]
