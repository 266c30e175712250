"""RunData: one run, read from the files of its folder."""

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from torch import nn

from ..data import Corpus
from ..data.morse import from_morse
from ..evaluation import record
from ..evaluation.compare import Comparison
from ..evaluation.rows import Row
from ..evaluation.run_results import BITS, RunResults
from ..runs import checkpoint, metrics
from ..runs.pretrained import newest, step_of
from ..runs.run_folder import is_run, read_recipe
from ..system import regular_file
from .numbers import format_value, is_finite, standard_error

SAMPLES_FILE = "samples.jsonl"
LARGEST_SAMPLES = 1 << 28
"""Bytes of that file; a larger one is not read."""
DETAILED_RUNS = 12
"""Runs of a report with charts, animations, samples and comparisons; further runs only have a row in the summary."""
LOGGED_COLUMNS = {"b0": "b0_ppl", "bn": "bn_ppl", "nll": "nll", "jumps": "jumps"}
"""Quantities that training evaluates, and the columns of metrics.jsonl with their values."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run. Fields whose file is missing in the folder are empty, and `missing` lists them."""

    folder: Path
    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    """Settings of the training."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Everything that determines the result of the training, including its text and its flow."""
    recipe_hash: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    """Versions of hopflow and torch that trained it."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Rows of metrics.jsonl, the training log."""
    results: RunResults | None = None
    """Results of `hopflow eval`, the newest for each sampler and text."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: int | None = None
    """Training steps of the newest checkpoint."""
    model: nn.Module | None = None
    """A custom network, which cannot be built from files; its weights are read from the checkpoint."""
    missing: tuple[str, ...] = ()
    corpus: Corpus | None = None
    """The training text, if the recipe does not name it."""

    @classmethod
    def load(cls, folder: Path | str, model: nn.Module | None = None, corpus: Corpus | None = None) -> "RunData":
        """Read the folder of a run; pass `model` for a custom network and `corpus` for a text without a file."""
        path = Path(folder)
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such run", str(path))
        run = read_recipe(path) if is_run(path) else {}
        logged = metrics.read(path / "metrics.jsonl")
        name = path.resolve().name
        (results, problem), samples, (step, facts) = (
            _evaluation(path, name),
            _samples(path / SAMPLES_FILE),
            _newest(path),
        )
        if not (run or logged or results):
            raise ValueError(problem or f"{path} is not a run: it has no recipe.json, metrics.jsonl or {record.FILE}")
        known = {
            "recipe.json (settings)": run,
            "metrics.jsonl (training log)": logged,
            f"{record.FILE} ({problem or 'bounds and samples'}; run `hopflow eval {path}`)": results,
            f"{SAMPLES_FILE} (samples drawn during training)": samples,
            "checkpoint (network weights)": step is not None,
        }
        return cls(
            path,
            name,
            run.get("recipe", {}),
            run.get("identity", {}),
            run.get("recipe_hash"),
            {"hopflow": run.get("hopflow"), "torch": facts.get("torch")},
            logged,
            results,
            samples,
            step,
            model,
            tuple(what for what, found in known.items() if not found),
            corpus,
        )

    def renamed(self, name: str) -> "RunData":
        """The same run with another name."""
        return replace(self, name=name, results=self.results and replace(self.results, name=name))

    @cached_property
    def rows(self) -> list[Row]:
        """Results of `hopflow eval`, without the copies per character."""
        found = [] if self.results is None else self.results.rows.values()
        return [row for row in found if not row.quantity.endswith(BITS)]

    @cached_property
    def last(self) -> dict[str, Any]:
        """The newest value of every metric."""
        return {key: value for row in self.metrics for key, value in row.items()}

    def decoded(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The texts decoded if the run uses Morse code; empty otherwise."""
        is_morse = "morse" in (self.identity.get("data.tokenizer"), self.recipe.get("tokens"))
        return tuple(map(from_morse, texts)) if is_morse else ()

    def having(self, key: str) -> list[dict[str, Any]]:
        """The rows of metrics that have this key."""
        return self._by_key.get(key, [])

    @cached_property
    def _by_key(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.metrics:
            for key in row:
                found.setdefault(key, []).append(row)
        return found

    @property
    def steps(self) -> int | None:
        """Training steps so far."""
        if self.checkpoint is not None:
            return self.checkpoint
        return int(self.metrics[-1]["step"]) + 1 if self.metrics else None

    @property
    def tokens(self) -> int | None:
        """Training tokens so far; None if the recipe has no batch or length."""
        per_step = [self.recipe.get("batch"), self.recipe.get("length", self.identity.get("data.length"))]
        if self.steps is None or not all(isinstance(count, int) for count in per_step):
            return None
        return self.steps * int(per_step[0] or 0) * int(per_step[1] or 0)

    def as_json(self) -> dict[str, Any]:
        """Name, settings and evaluation; the other numbers are in the sections."""
        return {
            "run": self.name,
            "folder": str(self.folder),
            "recipe_hash": self.recipe_hash,
            "steps": self.steps,
            "tokens": self.tokens,
            "versions": self.versions,
            "rows": [row.as_json() for row in self.rows],
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class LoggedEvaluation:
    """A value that training measured on held-out text after this many steps; stderr is None if unknown."""

    step: int
    value: float
    stderr: float | None
    n: int | None

    def __str__(self) -> str:
        return format_value(self.value, self.stderr, self.n)


def logged_evaluations(run: RunData, quantity: str) -> list[LoggedEvaluation]:
    """All evaluations during training with a finite value, in the order of steps."""
    found = []
    for row in run.having(LOGGED_COLUMNS[quantity]):
        value, error, n = row[LOGGED_COLUMNS[quantity]], row.get(f"{quantity}_se"), row.get(f"{quantity}_n")
        count = int(n) if is_finite(n) else None
        error = float(error) if is_finite(error) and error >= 0 else None
        if is_finite(value) and (error is not None or count == 1):
            found.append(LoggedEvaluation(int(row["step"]) + 1, float(value), standard_error(error, count), count))
    return found


def compare(runs: Sequence[RunData]) -> Comparison | None:
    """The comparison of all evaluated runs; None if there are fewer than two."""
    results = tuple(run.results for run in runs if run.results is not None)
    return Comparison(results) if len(results) > 1 else None


def unique_names(folders: Sequence[Path]) -> list[str]:
    """A unique name for every folder: as few of the last parts of its path as possible."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError("a run is named twice: name each run once")


def judge_name(row: Row) -> str:
    """The judge of an evaluation, as it was passed to `hopflow eval judge=…`."""
    judge = row.more.get("judge")
    return str(judge.get("name", "unknown")) if isinstance(judge, dict) else "unknown"


def judge_names(runs: Sequence[RunData]) -> dict[str, str]:
    """The short name of every judge by its hash; judges with equal names also show the hash."""
    rows = [row for run in runs for row in run.rows if "judge_hash" in row.more]
    names = {str(row.more["judge_hash"]): PurePath(judge_name(row)).name or judge_name(row) for row in rows}
    shared = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {key: f"{name} ({key[:6]})" if name in shared else name for key, name in names.items()}


def _evaluation(folder: Path, name: str) -> tuple[RunResults | None, str]:
    """The results of `hopflow eval`, or why there are none: damaged, or from another recipe."""
    try:
        return (replace(RunResults.load(folder), name=name) if record.read(folder) else None), ""
    except ValueError as error:
        return None, str(error).partition("\n")[0]


def _samples(file: Path) -> list[dict[str, Any]]:
    """Lines of the file with a text; incomplete lines are skipped."""
    try:
        lines = regular_file.read(file, LARGEST_SAMPLES).decode(errors="replace").splitlines()
    except (OSError, ValueError):  # missing, a special file, or too large
        return []
    found = []
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("text"), str):
            found.append(content)
    return found


def _newest(folder: Path) -> tuple[int | None, dict[str, Any]]:
    """Training steps and facts of the newest checkpoint; its weights are not loaded here."""
    saved = newest(folder)
    step = None if saved == folder else step_of(saved)
    try:
        return step, {} if step is None else checkpoint.facts(saved)
    except ValueError:  # damaged, from a later version, or just removed
        return step, {}
