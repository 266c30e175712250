"""TrainedRun: the network and the training text of a run, and a cache of what a report computed with them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from jaxtyping import Float, Int
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from .. import __version__, data
from ..couplings import Coupling
from ..data import Corpus
from ..flow import Flow
from ..network.network import label_count
from ..runs import checkpoint
from ..runs.devices import choose_device
from ..runs.pretrained import from_pretrained
from ..runs.run_folder import CHECKPOINTS
from ..runs.training_pairs import TrainingPairs
from ..system import atomic, regular_file
from .run_data import RunData

CACHE_FILE = "report-draws.json"
LARGEST_CACHE = 1 << 30
"""Bytes; a larger file is not read."""
Result = TypeVar("Result")


class Unavailable(ValueError):
    """Why a number of a run cannot be computed."""


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A flow with its network, from the newest checkpoint of a run."""

    run: RunData
    model: nn.Module
    flow: Flow
    tokenizer: Any
    length: int
    weights: str
    """Sha256 of the file with the weights."""

    @classmethod
    def load(cls, run: RunData) -> "TrainedRun":
        """Load the newest checkpoint; raise Unavailable if this is not possible."""
        if run.checkpoint is None:
            raise Unavailable("it has no checkpoint")
        try:
            found = from_pretrained(run.folder, device=choose_device("auto"), model=run.model)
        except (ValueError, OSError) as error:
            raise Unavailable(f"its checkpoint could not be loaded: {error_text(error)}") from None
        if found.flow is None:
            raise Unavailable("it is not a flow: its network is autoregressive")
        length = run.recipe.get("length") or run.identity.get("data.length")
        if found.tokenizer is None or not isinstance(length, int):
            raise Unavailable("it was saved without its tokenizer or its sequence length")
        return cls(run, found.model, found.flow, found.tokenizer, length, next(iter(found.sha256.values())))

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def ot_batch(self) -> int:
        """Rows of an OT batch of the training."""
        return int(self.run.recipe.get("ot_batch") or self.run.recipe.get("batch") or 64)

    @cached_property
    def corpus(self) -> Corpus:
        """The training text; it is never downloaded."""
        found = self._read_corpus() if self.run.corpus is None else self.run.corpus
        if found.identity["train_sha256"] != self.run.identity.get("data.train_sha256"):
            raise Unavailable("its text has changed since the training")
        return found

    def _read_corpus(self) -> Corpus:
        recipe = self.run.recipe
        text = recipe.get("data")
        if not isinstance(text, str) or text == "-":
            raise Unavailable("its recipe does not name a text file")
        try:
            return data.load(
                text,
                recipe.get("tokens", "char"),
                self.length,
                holdout=recipe.get("holdout", 0.02),
                pack=recipe.get("pack", True),
                offline=True,
            )
        except (ValueError, OSError) as error:
            raise Unavailable(f"its text could not be read: {error_text(error)}") from None

    @cached_property
    def embedding(self) -> Float[Tensor, "V D"] | None:
        """The embedding table for the coupling: its average over the training if it was saved."""
        if average := checkpoint.newest_group(self.run.folder / CHECKPOINTS, "ot_ema"):
            return average["value"]
        table = getattr(self.model, "table", None)
        return table.detach().cpu() if isinstance(table, Tensor) else None

    def coupling_inputs(self, coupling: Coupling) -> dict[str, Any]:
        """The embedding and the network for a coupling, or None for each that it does not read."""
        if "embedding" in coupling.reads and self.embedding is None:
            raise Unavailable("its coupling reads embeddings, which its network does not have")
        return {
            "embedding": self.embedding if "embedding" in coupling.reads else None,
            "network": self.model if "network" in coupling.reads else None,
        }

    def labels(self, seed: int, start: int, count: int) -> Int[Tensor, " n"] | None:
        """The labels of training rows, as `corpus.batch` returns the rows; None for a network without labels."""
        return self.corpus.labels(seed, start, count) if label_count(self.model) else None

    def pairs(self, rows: int) -> Iterator[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
        """Source and data rows coupled as in the training, one batch after the other, without end."""
        seed, inputs = int(self.run.recipe.get("seed") or 0), self.coupling_inputs(self.flow.coupling)
        pairs = TrainingPairs.of(self.flow, self.length)
        for index in count():
            x1, labels = self.corpus.batch(seed, index * rows, rows), self.labels(seed, index * rows, rows)
            yield pairs.batch(x1, seed, index, group=labels, **inputs)


def error_text(error: ValueError | OSError) -> str:
    """The error message on one line, as part of a sentence."""
    text = f"{error.strerror} ({os.fspath(error.filename)})" if isinstance(error, OSError) and error.filename else error
    return " ".join(str(text).split()).removesuffix(".")


def results_of(
    runs: Sequence[RunData], compute: Callable[[int, RunData], Result], failure: str
) -> tuple[list[Result], list[str]]:
    """The result of each run, and one sentence for every run whose result is not available."""
    results: list[Result] = []
    failures: list[str] = []
    for place, run in enumerate(runs):
        try:
            results.append(compute(place, run))
        except (ValueError, OSError) as error:
            failures.append(f"{run.name}: {failure}, since {error_text(error)}.")
    return results, failures


# -- cache -------------------------------------------------------------------------------------------------------------


def cached(folder: Path, name: str, key: Mapping[str, Any], kind: type[Result], make: Callable[[], Result]) -> Result:
    """The cached result of this name if it has this key (weights and settings); otherwise make it and cache it."""
    content, wanted, form = _read_cache(folder), {**key, "hopflow": __version__}, TypeAdapter(kind)
    entry = content.get(name)
    if isinstance(entry, dict) and entry.get("key") == wanted:
        try:
            return form.validate_python(entry.get("found"))
        except ValidationError:
            pass  # from another version, or damaged
    result = make()
    content[name] = {"key": wanted, "found": form.dump_python(result, mode="json")}
    _write_cache(folder, content)
    return result


def _read_cache(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(regular_file.read(folder / CACHE_FILE, LARGEST_CACHE))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_cache(folder: Path, content: dict[str, Any]) -> None:
    """Write the cache if the folder is writable; a report also works without it."""
    if os.access(folder, os.W_OK):
        atomic.write(folder / CACHE_FILE, json.dumps(content, separators=(",", ":"), allow_nan=False).encode())
