"""RunResults: the stored rows of one run, as `hopflow compare` reads them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..runs import hub
from ..runs.run_folder import is_run, read_recipe
from . import per_sequence, record
from .rows import Row

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
    "sampler_label",
)
"""Keys that identify a line of a comparison: rows of two runs that agree in all of them are on one line."""
BITS = "_bits_per_char"
"""Suffix of the quantities that are a likelihood in bits per character."""


@dataclass(frozen=True, eq=False)
class RunResults:
    """The rows of one run by their place in a comparison (the newest where there are several), and its recipe."""

    name: str
    rows: dict[tuple[Any, ...], Row]
    recipe: dict[str, Any] = field(default_factory=dict)
    tokenizer: tuple[str | None, str | None] = (None, None)
    """SHA-256 and name of the tokenizer; None where unknown."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """Values per sequence, by `per_sequence.name(row)`."""
    identity: dict[str, Any] = field(default_factory=dict)
    """All settings that decide what is learned, the seed included; empty where unknown."""
    stale: int = 0
    """Number of rows that belong to another recipe than the folder's; they are left out."""

    @classmethod
    def load(cls, folder: Path, *, offline: bool = False) -> "RunResults":
        """Read eval.json, eval-values.safetensors and recipe.json of a run folder, or of a network of the hub."""
        if (name := hub.prefixed(str(folder))) is not None:
            snapshot = hub.download(name, offline=offline)
            return replace(cls.load(snapshot.folder), name=str(snapshot))
        command = f"run: hopflow eval {folder}"
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: compare takes the folders of runs")
        if not (folder / record.FILE).is_file():
            raise ValueError(f"{folder} has no {record.FILE}: it was not evaluated yet\n{command}")
        try:
            rows = record.read(folder)
            for row in rows:
                _check(row, folder / record.FILE)
        except ValueError as error:
            raise ValueError(f"{str(error).partition(chr(10))[0]}\nmove it away and {command}") from None
        run = read_recipe(folder) if is_run(folder) else {}
        kept = [row for row in rows if row.recipe_hash in (None, run.get("recipe_hash", row.recipe_hash))]
        if not kept:
            why = "all its rows belong to another recipe than recipe.json" if rows else "it has no rows"
            raise ValueError(f"{folder / record.FILE} has no numbers of this run: {why}\n{command}")
        identity = run.get("identity", {})
        typed = {key: value for key, value in identity.items() if "." not in key}
        tokenizers = {row.more["tokenizer"] for row in kept if "tokenizer" in row.more}
        return cls(
            str(folder),
            _newest([*kept, *(bits for row in kept if (bits := _bits_per_character(row)) is not None)]),
            {**typed, "data": run["recipe"].get("data")} if run else {},
            (identity.get("data.tokenizer_sha256"), tokenizers.pop() if len(tokenizers) == 1 else None),
            per_sequence.read(folder),
            identity,
            len(rows) - len(kept),
        )


def place_keys(place: tuple[Any, ...]) -> dict[str, Any]:
    """A place by its keys; `sampler_label` only for samplers other than the default one."""
    found = dict(zip(PLACE, place, strict=True))
    return {key: value for key, value in found.items() if key != "sampler_label" or value is not None}


def tokenizers_differ(one: RunResults, other: RunResults) -> bool:
    """Whether two runs are known to use different tokenizers."""
    known = [pair for pair in zip(one.tokenizer, other.tokenizer, strict=True) if None not in pair]
    return bool(known) and known[0][0] != known[0][1]


def _check(row: Row, file: Path) -> None:
    """Refuse a row with a value of the wrong type or range: the file may contain anything."""
    more = row.more
    valid = (
        all(isinstance(text, str) for text in (row.set, row.quantity, row.unit, row.dtype))
        and all(isinstance(value, str | int | float | None) for value in _place(row))
        and all(isinstance(more.get(key), int | None) for key in ("steps", "checkpoint", "length", "seed", "paths"))
        and isinstance(more.get("tokenizer"), str | None)
        and isinstance(more.get("bits_per_char", 0.0), int | float)
        and isinstance(more.get("bits_per_char_stderr"), int | float | None)
        and isinstance(row.n, int)
        and not row.stderr < 0
        and (more.get("steps") is None or more["steps"] >= 1)
        and (row.value > 0 or not (row.unit == "ppl" or row.quantity.startswith("gen_ppl")))
    )
    if not valid:
        raise ValueError(f"{file} is damaged: its row {row.quantity!r} on {row.set!r} contains an invalid value")


def _place(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    return tuple(content.get(name) for name in PLACE)


def _newest(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """One row per place: from the newest checkpoint, then from the most sequences, then the last one."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = found.get(_place(row))
        if known is None or _age(row) >= _age(known):
            found[_place(row)] = row
    return found


def _age(row: Row) -> tuple[int, int]:
    step = row.more.get("checkpoint")
    return (-1 if step is None else step), row.n


def _bits_per_character(row: Row) -> Row | None:
    """The likelihood of a row in bits per character, which does not depend on the tokenizer."""
    more = dict(row.more)
    if "bits_per_char" not in more or "bits_per_char_stderr" not in more:
        return None
    bits, error = more.pop("bits_per_char"), more.pop("bits_per_char_stderr")
    error = math.nan if error is None or (row.n == 1 and error == 0) else error
    return replace(
        row, quantity=row.quantity + BITS, value=bits, stderr=error, unit="bits per character", more={**more}
    )
