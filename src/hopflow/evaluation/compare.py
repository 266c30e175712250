"""Compare: what was measured of several runs, side by side, and what may be said of the differences.

Rows line up where they say the same of the same text: set, quantity, sampler, coupling, judge. Differences are taken
from the first run. Errors add in quadrature, unless the numbers of both runs are known sequence by sequence: then the
difference is that of the sequences that both have, the first min(n). What may not be compared, such as perplexities per
token of different tokenizers, is shown without a difference, and why.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..estimate import for_json, mean_and_error, plus_minus
from ..training.folder import is_run, read_recipe
from . import record, values
from .correlation import Correlation, correlations
from .frontier import SAMPLES
from .groups import Group, GroupLine, Mean, difference, groups_of, worth
from .matching import CURVE, Match, curves, match
from .rows import Row
from .same_sequences import alike, of_text, paired

PLACE = (
    "set",
    "quantity",
    "eta",
    "steps",
    "paths",
    "temperature",
    "coupling",
    "cost",
    "ot_n",
    "eps",
    "judge_hash",
    "retokenised",
)
"""Where a number stands in the tables: two runs' rows with the same of these are shown on one line."""
FEWEST = 5
"""Runs from which on a correlation has an error."""
BITS = "_bits_per_char"
"""Ends the quantities that a likelihood has per character."""


@dataclass(frozen=True, eq=False)
class Side:
    """A run as it is compared: its rows, the newest where there are several for one place, and its recipe."""

    name: str
    rows: dict[tuple[Any, ...], Row]
    recipe: dict[str, Any] = field(default_factory=dict)
    tokenizer: tuple[str | None, str | None] = (None, None)
    """Its sha256, and its name; as far as they are known."""
    values: dict[str, Tensor] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    """Everything that decided what was learned, the seed among it; empty where it is not known."""
    stale: int = 0
    """Rows that speak of another recipe than the folder's; they are left out."""

    @classmethod
    def load(cls, folder: Path) -> "Side":
        again = f"run: hopflow eval {folder}"
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: compare takes the folders of runs")
        if not (folder / record.FILE).is_file():
            raise ValueError(f"{folder} has no {record.FILE}, so nothing is known of it yet\n{again}")
        try:
            rows = record.read(folder)
            for row in rows:
                _check(row, folder / record.FILE)
        except ValueError as error:
            raise ValueError(f"{str(error).partition(chr(10))[0]}\nmove it away and {again}") from None
        run = read_recipe(folder) if is_run(folder) else {}
        kept = [row for row in rows if row.recipe_hash in (None, run.get("recipe_hash", row.recipe_hash))]
        if not kept:
            why = "all its rows speak of another recipe than recipe.json" if rows else "it has no rows"
            raise ValueError(f"{folder / record.FILE} says nothing of this run: {why}\n{again}")
        identity = run.get("identity", {})
        own = {key: value for key, value in identity.items() if "." not in key}
        named = {row.more["tokenizer"] for row in kept if "tokenizer" in row.more}
        return cls(
            str(folder),
            _newest([*kept, *(per for row in kept if (per := _per_character(row)) is not None)]),
            {**own, "data": run["recipe"].get("data")} if run else {},
            (identity.get("data.tokenizer_sha256"), named.pop() if len(named) == 1 else None),
            values.read(folder),
            identity,
            len(rows) - len(kept),
        )


@dataclass(frozen=True)
class Difference:
    """A run's number less the first run's, and how its error was had: paired, or in quadrature."""

    run: str
    against: str
    value: float
    stderr: float
    how: str
    first: int | None = None
    """Where the runs were evaluated on n that differ: the difference is of so many sequences, which both have."""

    @property
    def errors(self) -> float | None:
        """How many standard errors it is away from 0; None where the error is 0 or unknown."""
        return self.value / self.stderr if self.stderr > 0 else None

    @property
    def note(self) -> str:
        """In brackets: how many standard errors, and of what."""
        said = [] if self.errors is None else [f"{self.errors:+.1f} s.e."]
        said += [self.how] if self.how != "quadrature" else []
        said += [] if self.first is None else [f"first {self.first}"]
        return f" ({', '.join(said)})" if self.errors is not None or self.first is not None else ""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = for_json({**asdict(self), "errors": self.errors})
        return found

    def __str__(self) -> str:
        return f"{'+' if self.value >= 0 else ''}{plus_minus(self.value, self.stderr)}{self.note}"


@dataclass(frozen=True)
class Line:
    """One quantity of one sampler on one set, of all runs that have it."""

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
class Ranked:
    """A likelihood and a generative perplexity of the same runs, and how they go together."""

    likelihood: Line
    samples: Line
    by: tuple[Correlation, Correlation, Correlation]

    def as_json(self) -> dict[str, Any]:
        places = {"likelihood": self.likelihood.place, "samples": self.samples.place}
        return {**places, "correlations": [asdict(one) for one in self.by]}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs side by side; the first is the one that differences are taken from."""

    sides: tuple[Side, ...]

    @classmethod
    def of(cls, folders: Sequence[str | Path]) -> "Comparison":
        if len(folders) < 2:
            raise ValueError("there is nothing to compare with: name two or more runs, hopflow compare RUN RUN …")
        paths = [Path(folder) for folder in folders]
        if len({path.resolve() for path in paths}) < len(paths):
            raise ValueError("a run is named twice; each is compared with the others")
        return cls(tuple(Side.load(path) for path in paths))

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(side.name for side in self.sides)

    @cached_property
    def lines(self) -> list[Line]:
        """Every number that any run has, in the order they were measured."""
        return [self._line(place) for place in dict.fromkeys(place for side in self.sides for place in side.rows)]

    @cached_property
    def groups(self) -> list[Group]:
        """Runs by recipe over seeds; none where each is shown alone."""
        found = groups_of(self.sides)
        return found if worth(found) else []

    @cached_property
    def group_lines(self) -> list[GroupLine]:
        """Every number as a mean over the runs of each recipe, with differences from the first recipe."""
        places = dict.fromkeys(place for side in self.sides for place in side.rows)
        return [self._group_line(place) for place in places] if self.groups else []

    @cached_property
    def matches(self) -> list[Match]:
        """For every two runs with samples by the same judge at the same η and temperature: the steps one needs."""
        found = []
        known = [(side, curves(list(side.rows.values()))) for side in self.sides]
        for (other, goals), (side, own) in permutations(known, 2):
            for key in own:
                at = dict(zip(CURVE, key, strict=True))
                several = len(own[key]) > 1 or len(goals.get(key, ())) > 1  # of one number of steps there is no curve
                if key in goals and several and (at["retokenised"] or not _alien(side, other)):
                    found.append(match(side.name, own[key], other.name, goals[key], at))
        return found

    @cached_property
    def ranked(self) -> list["Ranked"]:
        """How alike likelihoods and generative perplexities rank the runs, where five or more have both.

        App. C.7 [C6]. Of the samples of one sampler and judge those with the most steps count.
        """
        samples: dict[tuple[Any, ...], Line] = {}
        for line in self.lines:
            if line.place["set"] == SAMPLES and line.place["quantity"] == "gen_ppl":
                key = tuple(line.place[name] for name in ("eta", "temperature", "judge_hash", "retokenised"))
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
                        found.append(Ranked(line, other, correlations(*zip(*both, strict=True))))
        return found

    @cached_property
    def configuration(self) -> dict[str, list[Any]]:
        """Keys of the recipes that differ, with their values in the order of the runs; None where a run has none."""
        keys = dict.fromkeys(key for side in self.sides for key in side.recipe)
        found = {key: [side.recipe.get(key) for side in self.sides] for key in keys}
        return {key: each for key, each in found.items() if any(one != each[0] for one in each)}

    @cached_property
    def remarks(self) -> list[str]:
        """What has to be known with these numbers."""
        first, said = self.sides[0], []
        if not any(line.differences for line in self.lines):
            said.append("no number was measured of two of these runs alike: evaluate them with the same settings")
        if any(one.how == "quadrature" for line in self.lines for one in line.differences):
            said.append(
                "errors of differences add in quadrature, which is likely too wide where runs share sequences or draws"
            )
        if any(one.first is not None for line in self.lines for one in line.differences):
            said.append(
                "where n differs, the difference is that of the sequences that both runs have, which come first in both"
            )
        own = [line for line in self.lines if not line.place["quantity"].endswith(BITS)]
        if any(reason.startswith("n = ") for line in own for reason in line.refused.values()):
            said.append(
                "numbers from different n are not subtracted where the values of each sequence are not kept: evaluate "
                "both runs with the same rows="
            )
        if aliens := [side.name for side in self.sides if _alien(first, side)]:
            said.append(
                f"{', '.join(aliens)} and {first.name} have different tokenizers: what is counted per token depends on "
                f"how much text a token is, so that likelihoods are compared in bits per character of the same text"
            )
        if any(row.is_bound for line in self.lines if line.differences for row in line.rows.values()):
            said.append("of bounds the difference is one of bounds, which may be tight to different degrees")
        for line in self.lines:
            dtypes = {row.dtype for row in line.rows.values()}
            if line.differences and len(dtypes) > 1:
                said.append(f"dtypes differ ({', '.join(sorted(dtypes))})")
                break
        rows = [(run, row) for line in own for run, row in line.rows.items() if row.remark]
        said += [f"{run}: {row.remark}" for run, row in rows]
        for side in self.sides:
            if side.stale:
                said.append(
                    f"{side.stale} rows of {side.name} speak of another recipe than its folder holds now and are left "
                    f"out: hopflow eval {side.name} measures anew"
                )
        return said

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.runs),
            "lines": [line.as_json() for line in self.lines],
            "groups": [group.as_json() for group in self.groups],
            "group_lines": [line.as_json() for line in self.group_lines],
            "steps_to_match": [found.as_json() for found in self.matches],
            "correlations": [found.as_json() for found in self.ranked],
            "configuration": self.configuration,
            "remarks": self.remarks,
        }

    def _line(self, place: tuple[Any, ...]) -> Line:
        has = [side for side in self.sides if place in side.rows]
        rows = {side.name: side.rows[place] for side in has}
        differences, refused = [], {}
        for side in has:
            if side is self.sides[0] or self.sides[0] not in has:
                continue
            found = _difference(self.sides[0], side, place)
            if isinstance(found, Difference):
                differences.append(found)
            else:
                refused[side.name] = found
        return Line(dict(zip(PLACE, place, strict=True)), rows, tuple(differences), refused)

    def _group_line(self, place: tuple[Any, ...]) -> GroupLine:
        """Over the runs that have this number, on the sequences that all of them have."""
        has = [side for side in self.sides if place in side.rows]
        reasons = [reason for side in has[1:] if (reason := _obstacle(has[0], side, place))]
        values = None if reasons else alike(has, place)
        fewest = min(side.rows[place].n for side in has) if of_text(has[0].rows[place]) else None
        if values is None:
            sizes = sorted({side.rows[place].n for side in has})
            reasons.append(f"n = {sizes[0]} to {sizes[-1]}")
        numbers, by_seed = {}, {}
        for group in self.groups:
            own = {seed: side for seed, side in group.by_seed.items() if place in side.rows}
            if own and values is not None:
                by_seed[group.name] = {seed: values[side.name] for seed, side in own.items()}
                mean = mean_and_error(torch.tensor(list(by_seed[group.name].values()), dtype=torch.float64))
                numbers[group.name] = Mean(*mean, len(own), _sizes(own.values(), place, fewest))
        first, differences = self.groups[0].name, []
        for name in by_seed if first in by_seed else ():
            if name != first:
                differences.append(Difference(name, first, *difference(by_seed[first], by_seed[name])))
        refused = reasons[0] if reasons else None
        return GroupLine(dict(zip(PLACE, place, strict=True)), numbers, tuple(differences), refused)


def _check(row: Row, file: Path) -> None:
    """A file can hold anything: what is calculated with must be of its kind."""
    more = row.more
    sound = (
        all(isinstance(text, str) for text in (row.set, row.quantity, row.unit, row.dtype))
        and all(isinstance(value, str | int | float | None) for value in _place(row))
        and all(isinstance(more.get(key), int | None) for key in ("steps", "checkpoint", "length", "seed"))
        and isinstance(more.get("bits_per_char", 0.0), int | float)
        and isinstance(more.get("bits_per_char_stderr"), int | float | None)
        and isinstance(row.n, int)
        and not row.stderr < 0
        and (more.get("steps") is None or more["steps"] >= 1)
        and (row.value > 0 or not (row.unit == "ppl" or row.quantity.startswith("gen_ppl")))
    )
    if not sound:
        raise ValueError(f"{file} is damaged: its row of {row.quantity!r} on {row.set!r} holds what cannot be")


def _place(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    return tuple(content.get(name) for name in PLACE)


def _newest(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Of several rows for one place that of the newest checkpoint, then that from most, then the last."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = found.get(_place(row))
        if known is None or _age(row) >= _age(known):
            found[_place(row)] = row
    return found


def _age(row: Row) -> tuple[int, int]:
    step = row.more.get("checkpoint")
    return (-1 if step is None else step), row.n


def _per_character(row: Row) -> Row | None:
    """A likelihood in bits per character, which does not depend on the tokenizer."""
    more = dict(row.more)
    if "bits_per_char" not in more or "bits_per_char_stderr" not in more:
        return None
    bits, error = more.pop("bits_per_char"), more.pop("bits_per_char_stderr")
    error = math.nan if error is None or (row.n == 1 and error == 0) else error
    return replace(
        row, quantity=row.quantity + BITS, value=bits, stderr=error, unit="bits per character", more={**more}
    )


def _alien(one: Side, other: Side) -> bool:
    """Whether two runs speak in tokens that mean different things."""
    known = [pair for pair in zip(one.tokenizer, other.tokenizer, strict=True) if None not in pair]
    return bool(known) and known[0][0] != known[0][1]


def _sizes(sides: Iterable[Side], place: tuple[Any, ...], fewest: int | None) -> tuple[int, ...]:
    """Sequences behind each run's number, where these are not the same for all."""
    return (fewest,) if fewest is not None else tuple(sorted({side.rows[place].n for side in sides}))


def _obstacle(one: Side, other: Side, place: tuple[Any, ...]) -> str | None:
    """Why two numbers may not be subtracted."""
    a, b = one.rows[place], other.rows[place]
    per_character = a.quantity.endswith(BITS)
    judged = a.quantity.startswith("gen_ppl") or a.quantity == "gen_bits_per_byte"
    if a.is_infinite or b.is_infinite:
        return "infinite"
    if a.unit != b.unit:
        return f"{a.unit} and {b.unit}"
    if _alien(one, other) and not per_character and not (judged and a.more.get("retokenised")):
        return "different tokenizers"
    # a text has one hash, its tokens one for every tokenizer
    texts = ("source_sha256", "split", "detokenised") if per_character else ("data_sha256",)
    if a.set != SAMPLES and any(a.more.get(name) != b.more.get(name) for name in texts):
        return "not the same text"
    lengths = (a.more.get("length"), b.more.get("length"))
    if lengths[0] != lengths[1] and not _alien(one, other):
        return f"sequences of {lengths[0]} and {lengths[1]} tokens"
    return None


def _difference(one: Side, other: Side, place: tuple[Any, ...]) -> Difference | str:
    """The other's number less the first one's, of the same sequences of a text; or why there is none."""
    a, b = one.rows[place], other.rows[place]
    if reason := _obstacle(one, other, place):
        return reason
    if found := paired(one, a, other, b):
        return Difference(other.name, one.name, *found, "paired", None if a.n == b.n else min(a.n, b.n))
    if a.n != b.n and of_text(a) and not _alien(one, other):
        return f"n = {a.n} and {b.n}"
    return Difference(other.name, one.name, b.value - a.value, math.hypot(a.stderr, b.stderr), "quadrature")
