"""Story: one run, read from the files of its folder."""

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..data import Corpus
from ..data.morse import from_morse
from ..evaluation import record
from ..evaluation.compare import BITS, Side
from ..evaluation.rows import Row
from ..pretrained import newest, step_of
from ..training import checkpoint, metrics
from ..training.folder import is_run, read_recipe

SAMPLES = "samples.jsonl"
DETAILED = 12
"""Runs of a report with charts, replays, samples and comparisons; of further ones only a row of numbers."""


@dataclass(frozen=True, eq=False)
class Story:
    """One run. What its folder lacks is empty here, and listed in `missing`."""

    folder: Path
    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    """Settings of the training."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Everything that determines the result of the training, with its text and flow."""
    recipe_hash: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    """Versions that trained it."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    side: Side | None = None
    """Rows of `hopflow eval`, the newest for each sampler and set."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: int | None = None
    """Steps of the newest checkpoint."""
    model: nn.Module | None = None
    """A custom network, which no file can rebuild; its weights are in the checkpoint."""
    missing: tuple[str, ...] = ()
    corpus: Corpus | None = None
    """The text of a run whose recipe does not name it."""

    @classmethod
    def load(cls, folder: Path | str, model: nn.Module | None = None, corpus: Corpus | None = None) -> "Story":
        path = Path(folder)
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such run", str(path))
        run = read_recipe(path) if is_run(path) else {}
        logged = metrics.read(path / "metrics.jsonl")
        name = path.resolve().name
        (side, unread), samples, (step, facts) = _measured(path, name), _samples(path / SAMPLES), _checkpoint(path)
        if not (run or logged or side):
            raise ValueError(unread or f"{path} is not a run: it has no recipe.json, metrics.jsonl or {record.FILE}")
        known = {
            "recipe.json (settings)": run,
            "metrics.jsonl (training log)": logged,
            f"{record.FILE} ({unread or 'bounds and samples'}; run `hopflow eval {path}`)": side,
            f"{SAMPLES} (sequences drawn in training)": samples,
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
            side,
            samples,
            step,
            model,
            tuple(what for what, found in known.items() if not found),
            corpus,
        )

    def renamed(self, name: str) -> "Story":
        """The same run with another name."""
        return replace(self, name=name, side=self.side and replace(self.side, name=name))

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the evaluation, without the copies per character."""
        found = [] if self.side is None else self.side.rows.values()
        return [row for row in found if not row.quantity.endswith(BITS)]

    @cached_property
    def last(self) -> dict[str, Any]:
        """The newest value of every metric."""
        return {key: value for row in self.metrics for key, value in row.items()}

    def readings(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The texts decoded, if the run writes Morse code; nothing otherwise."""
        coded = "morse" in (self.identity.get("data.tokenizer"), self.recipe.get("tokens"))
        return tuple(map(from_morse, texts)) if coded else ()

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
        """Steps of the training so far."""
        if self.checkpoint is not None:
            return self.checkpoint
        return int(self.metrics[-1]["step"]) + 1 if self.metrics else None

    @property
    def tokens(self) -> int | None:
        """Tokens of the training so far, if the recipe has batch and length."""
        per_step = [self.recipe.get("batch"), self.recipe.get("length", self.identity.get("data.length"))]
        if self.steps is None or not all(isinstance(count, int) for count in per_step):
            return None
        return self.steps * int(per_step[0] or 0) * int(per_step[1] or 0)

    def as_json(self) -> dict[str, Any]:
        """Name, settings and rows; the other numbers are in the sections."""
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


def named(folders: Sequence[Path]) -> list[str]:
    """A unique name for every folder: its last parts, as few as possible."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError("a run is named twice: name each run once")


def _measured(folder: Path, name: str) -> tuple[Side | None, str]:
    """The rows of the evaluation, or why there are none: damaged, or from another recipe."""
    try:
        return (replace(Side.load(folder), name=name) if record.read(folder) else None), ""
    except ValueError as error:
        return None, str(error).partition("\n")[0]


def _samples(file: Path) -> list[dict[str, Any]]:
    """Lines with a text; incomplete lines are left out."""
    found = []
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(content, dict) and isinstance(content.get("text"), str):
                found.append(content)
    return found


def _checkpoint(folder: Path) -> tuple[int | None, dict[str, Any]]:
    """Steps and facts of the newest checkpoint, which is not loaded or verified here."""
    saved = newest(folder)
    step = None if saved == folder else step_of(saved)
    try:
        return step, {} if step is None else checkpoint.facts(saved)
    except ValueError:  # damaged, from a later version, or removed by now
        return step, {}
