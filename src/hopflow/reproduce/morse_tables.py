"""Tables 1 [toy-OT] and 5 [toy-OT2] of the paper, from the result files of `hopflow reproduce morse`."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..bounds.estimate import for_json
from ..system import atomic
from .text.statistics import mean

SIZES = ("laptop", "mini", "small")
"""Sizes of the networks, in the order of the table; `small` is the paper's."""


@dataclass(frozen=True)
class MorseRun:
    """One recipe with one seed: what it was trained with, and its numbers with their errors."""

    recipe: str
    size: str
    seed: int
    steps: int
    samples: int
    sampler_steps: int
    values: dict[str, float | None]
    """By name; NAME_se is the error of NAME within the run."""
    machine: dict[str, Any]
    seconds: float

    @property
    def name(self) -> str:
        return file_name(self.recipe, self.size, self.seed)

    def write(self, folder: Path) -> Path:
        """Write the file by one rename."""
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(folder / self.name, (json.dumps(for_json(asdict(self)), indent=1) + "\n").encode())
        return folder / self.name


_ADAPTER = TypeAdapter(MorseRun)


def file_name(recipe: str, size: str, seed: int) -> str:
    """The name of the result file of a run."""
    return f"{size}-{recipe}-seed{seed}.json"


def read(path: Path) -> MorseRun:
    """A run from its file; a ValueError names the first thing that is wrong with it."""
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path.name} is not a run of reproduce morse: {place}: {first['msg']}") from None


def read_all(folder: Path) -> Iterator[MorseRun]:
    """Every run of a folder, in the order of file names."""
    for path in sorted(folder.glob("*-seed*.json")):
        yield read(path)


@dataclass(frozen=True)
class PrintedRow:
    """A row of the paper: its name, the recipe, hops and perplexity."""

    name: str
    recipe: str
    hops: float | None = None
    perplexity: float | None = None


TABLES: Mapping[str, tuple[PrintedRow, ...]] = {
    "Table 1 [toy-OT]: Morse code": (
        PrintedRow("Normal", "morse", 85.47, 2.35),
        PrintedRow("With OT, ε = 0.1", "morse_sinkhorn_0p1", 82.86, 2.14),
        PrintedRow("With OT, ε = 0.01", "morse_sinkhorn_0p01", 74.87, 2.12),
        PrintedRow("With exact OT", "morse_exact"),
    ),
    "Table 5 [toy-OT2]: characters": (
        PrintedRow("Normal", "shakespeare", 113.23, 5.31),
        PrintedRow("With OT", "shakespeare_exact", 107.41, 4.89),
    ),
}
COLUMNS = {"jumps": "hops", "predicted_jumps": "predicted hops", "b0_ppl": "b0", "b1_ppl": "b1", "bk_ppl": "bk"}


def tables(folder: Path) -> str:
    """Both tables as markdown; a row for each size that has runs, and the paper's values in parentheses."""
    runs = list(read_all(folder))
    parts = [
        "The paper: 12 × 768, 100,000 steps of 64 sequences, one run, 3,000 samples of 1,024 steps. Its perplexities "
        "with OT are computed on pairs that OT chose, and are not bounds; b0 is the bound that it states. Errors "
        "are over seeds, or within the run where there is one seed. – is not measured yet."
    ]
    for title, rows in TABLES.items():
        shown = []
        for row in rows:
            for size in [size for size in SIZES if any((r.recipe, r.size) == (row.recipe, size) for r in runs)] or [
                "–"
            ]:
                own = [run for run in runs if (run.recipe, run.size) == (row.recipe, size)]
                shown.append(f"| {row.name} | {size} | {_steps(own)} | {len(own)} | {' | '.join(_numbers(own, row))} |")
        head = f"| model | network | steps | seeds | {' | '.join(COLUMNS.values())} |"
        parts.append("\n".join([f"#### {title}", "", head, "|---" * (4 + len(COLUMNS)) + "|", *shown]))
    return "\n\n".join(parts)


def _steps(runs: Sequence[MorseRun]) -> str:
    return " or ".join(f"{steps:,}" for steps in sorted({run.steps for run in runs})) or "–"


def _numbers(runs: Sequence[MorseRun], row: PrintedRow) -> Iterator[str]:
    printed = {"jumps": row.hops, "b0_ppl": row.perplexity}
    for key in COLUMNS:
        values = [value for run in runs if (value := run.values.get(key)) is not None]
        error = _error(runs, key, values)
        own = f"{math.fsum(values) / len(values):.2f} ± {'?' if error is None else f'{error:.2f}'}" if values else "–"
        paper = printed.get(key)
        yield own if paper is None else f"{own} ({paper:g})"


def _error(runs: Sequence[MorseRun], key: str, values: Sequence[float]) -> float | None:
    """The standard error over seeds; that within the run if there is one."""
    if len(values) > 1:
        return mean(values)[1]
    return runs[0].values.get(f"{key.removesuffix('_ppl')}_se") if runs else None
