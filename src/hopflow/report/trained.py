"""The network of the newest checkpoint of a run, and its training text, where they are available."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from .. import data
from ..couplings import Coupling
from ..data import Corpus
from ..flow import Flow
from ..pretrained import from_pretrained
from ..training import checkpoint
from ..training.devices import choose_device
from ..training.folder import CHECKPOINTS
from ..training.problems import Draw, Problem
from .story import Story

Told = TypeVar("Told")


class Unknown(ValueError):
    """Why a number of a run is not known."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A flow with its network, from the newest checkpoint of a run."""

    story: Story
    model: nn.Module
    flow: Flow
    tokenizer: Any
    length: int
    weights: str
    """Sha256 of the file they were read from."""

    @classmethod
    def load(cls, story: Story) -> "Trained":
        if story.checkpoint is None:
            raise Unknown("it has no checkpoint")
        try:
            found = from_pretrained(story.folder, device=choose_device("auto"), model=story.model)
        except (ValueError, OSError) as error:
            raise Unknown(f"its checkpoint could not be loaded: {because(error)}") from None
        if found.flow is None:
            raise Unknown("it is not a flow: its network writes from left to right")
        length = story.recipe.get("length") or story.identity.get("data.length")
        if found.tokenizer is None or not isinstance(length, int):
            raise Unknown("it was saved without its tokenizer or its sequence length")
        return cls(story, found.model, found.flow, found.tokenizer, length, next(iter(found.sha256.values())))

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def ot_batch(self) -> int:
        """Rows of an OT batch of the training."""
        return int(self.story.recipe.get("ot_batch") or self.story.recipe.get("batch") or 64)

    @cached_property
    def corpus(self) -> Corpus:
        """The training text; nothing is downloaded for it."""
        found = self._read() if self.story.corpus is None else self.story.corpus
        if found.identity["train_sha256"] != self.story.identity.get("data.train_sha256"):
            raise Unknown("its text has changed since the training")
        return found

    def _read(self) -> Corpus:
        keys = self.story.recipe
        text = keys.get("data")
        if not isinstance(text, str) or text == "-":
            raise Unknown("its recipe does not name a text file")
        try:
            return data.load(
                text,
                keys.get("tokens", "char"),
                self.length,
                holdout=keys.get("holdout", 0.02),
                pack=keys.get("pack", True),
                offline=True,
            )
        except (ValueError, OSError) as error:
            raise Unknown(f"its text could not be read: {because(error)}") from None

    @cached_property
    def table(self) -> Float[Tensor, "V D"] | None:
        """The embeddings that its coupling reads: their average over the training, if it was saved."""
        if average := checkpoint.newest_group(self.story.folder / CHECKPOINTS, "ot_ema"):
            return average["value"]
        own = getattr(self.model, "table", None)
        return own.detach().cpu() if isinstance(own, Tensor) else None

    def reads(self, coupling: Coupling) -> dict[str, Any]:
        """Arguments that a coupling reads."""
        if "embedding" in coupling.reads and self.table is None:
            raise Unknown("its coupling reads embeddings, which its network does not have")
        return {
            "embedding": self.table if "embedding" in coupling.reads else None,
            "network": self.model if "network" in coupling.reads else None,
        }

    def pairs(self, rows: int) -> Iterator[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
        """Source and data rows coupled as in the training, batch after batch without end."""
        seed, asked, index = int(self.story.recipe.get("seed") or 0), self.reads(self.flow.coupling), 0
        while True:
            x1, draw = self.corpus.batch(seed, index * rows, rows), Draw(seed, index, rows, rows)
            yield Problem(draw, x1, None, asked["embedding"], asked["network"]).solve(self.flow).x0, x1
            index += 1


def because(error: ValueError | OSError) -> str:
    """The error message on one line, as part of a sentence."""
    said = f"{error.strerror} ({os.fspath(error.filename)})" if isinstance(error, OSError) and error.filename else error
    return " ".join(str(said).split())


def told_of(
    stories: Sequence[Story], tell: Callable[[int, Story], Told], otherwise: str
) -> tuple[list[Told], list[str]]:
    """The result of each run, and a sentence on every run that has none."""
    told: list[Told] = []
    silent: list[str] = []
    for k, story in enumerate(stories):
        try:
            told.append(tell(k, story))
        except (ValueError, OSError) as error:
            silent.append(f"{story.name}: {otherwise}, since {because(error)}.")
    return told, silent
