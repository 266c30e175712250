"""Story: what is known of one run, from the files of its folder."""

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..data import Corpus
from ..evaluation import record
from ..evaluation.compare import BITS, Side
from ..evaluation.rows import Row
from ..pretrained import newest
from ..training import checkpoint, metrics
from ..training.folder import is_run, read_recipe

SAMPLES = "samples.jsonl"


@dataclass(frozen=True, eq=False)
class Story:
    """A run as a report tells it. What is not there is empty, and named in `missing`."""

    folder: Path
    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    """The keys it was trained by."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What decided what was learned, its text and flow included."""
    recipe_hash: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    """Of what trained it."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    side: Side | None = None
    """What `hopflow eval` measured, the newest for each sampler and set."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: int | None = None
    """Steps that the newest checkpoint has taken."""
    model: nn.Module | None = None
    """A network of the user's own, which no file can say how to build; its weights are in the checkpoint."""
    missing: tuple[str, ...] = ()
    corpus: Corpus | None = None
    """The text of a run whose recipe does not name one."""

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
            "recipe.json (what the run is)": run,
            "metrics.jsonl (how training went)": logged,
            f"{record.FILE} ({unread or 'bounds and samples with their errors'}: `hopflow eval {path}`)": side,
            f"{SAMPLES} (sequences that training drew)": samples,
            "checkpoint (a network, from which sequences could be drawn)": step is not None,
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
        """By another name, which tells it from other runs."""
        return replace(self, name=name, side=self.side and replace(self.side, name=name))

    @cached_property
    def rows(self) -> list[Row]:
        """Of the evaluation; what it says per character says nothing new."""
        found = [] if self.side is None else self.side.rows.values()
        return [row for row in found if not row.quantity.endswith(BITS)]

    @cached_property
    def last(self) -> dict[str, Any]:
        """The newest value of every metric."""
        return {key: value for row in self.metrics for key, value in row.items()}

    def having(self, key: str) -> list[dict[str, Any]]:
        """The rows of metrics with such a key."""
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
        """Taken so far."""
        if self.checkpoint is not None:
            return self.checkpoint
        return int(self.metrics[-1]["step"]) + 1 if self.metrics else None

    @property
    def tokens(self) -> int | None:
        """Seen so far, as far as the recipe tells."""
        per_step = [self.recipe.get("batch"), self.recipe.get("length", self.identity.get("data.length"))]
        if self.steps is None or not all(isinstance(count, int) for count in per_step):
            return None
        return self.steps * int(per_step[0] or 0) * int(per_step[1] or 0)

    def as_json(self) -> dict[str, Any]:
        """Who this is; the numbers are in the sections."""
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
    """A name for every folder: its last part, and as many parts before it as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError("a run is named twice; each is told once")


def _measured(folder: Path, name: str) -> tuple[Side | None, str]:
    """What was evaluated, or why that says nothing: it is damaged, or of a run that has changed since."""
    try:
        return (replace(Side.load(folder), name=name) if record.read(folder) else None), ""
    except ValueError as error:
        return None, str(error).partition("\n")[0]


def _samples(file: Path) -> list[dict[str, Any]]:
    """Lines with a text; a line that is cut off is left out."""
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
    """The newest checkpoint's steps, and what it says of itself; it is not verified here, since it is not loaded."""
    saved = newest(folder)
    step = saved.name.removeprefix("step-")
    if saved == folder or not step.isdigit():
        return None, {}
    try:
        return int(step), checkpoint.facts(saved)
    except ValueError:  # damaged, or of a later version: it is only asked for facts
        return int(step), {}
