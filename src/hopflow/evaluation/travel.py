"""Travel: what samples pay on their way, held against what pairs of the training's coupling predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..data.pulse import Progress
from ..sampling import How
from ..training.folder import is_run
from ..training.streams import stream_seed
from .rows import TRANSPORT, Row
from .sets import TextSet
from .subject import Subject
from .transport import transport_costs

BATCHES = 32
"""OT batches of a prediction: more tell little more, and take their time."""


@dataclass(frozen=True)
class Travel:
    """n samples of the few-hops sampler, η = 0, in so many steps; and pairs of a text.

    A set with fewer rows than two of the training's OT batches is coupled in smaller ones; the rows say which.
    """

    n: int = 64
    steps: int = 32
    seed: int = 0
    precision: str = "auto"

    def rows(self, subject: Subject, texts: TextSet, say: Progress) -> Iterator[Row]:
        """Jumps and costs; none where there are no pairs to be had."""
        if subject.flow is None or not _pairs(subject, texts):
            return
        trained = subject.recipe.get("ot_batch") or subject.recipe.get("batch") or 64
        ot_n = min(int(trained), len(texts.x1) // 2)
        x1 = texts.shuffled(stream_seed(self.seed, "eval order")).x1[: BATCHES * ot_n]
        say(f"transport: {self.steps} steps, pairs of {ot_n} rows")
        run = subject.name if is_run(Path(subject.name)) else None
        how: How = {"steps": self.steps, "seed": self.seed, "precision": self.precision}
        found = transport_costs(subject.model, subject.flow, x1, n=self.n, ot_batch=ot_n, run=run, **how)
        about: dict[str, Any] = {"sampler": f"η = 0, {self.steps} steps", "steps": self.steps, "length": x1.shape[1]}
        about |= {"dtype": found.jumps.dtype}
        about |= {"seed": self.seed, "embeddings": found.table, "text": texts.name, **texts.facts}
        pairs: dict[str, Any] = {"coupling": found.coupling, "ot_n": ot_n, "trained_ot_n": trained}
        for number in (found.jumps.per_sequence, *(one.dynamic for one in found.by_cost)):
            yield subject.row(TRANSPORT, number, eta=0.0, **about)  # whatever pairs there may be
        predicted = [number for number in (found.jumps.predicted, found.jumps.excess) if number is not None]
        paired = [(one.kantorovich, one.independent, one.gain, one.excess) for one in found.by_cost]
        for number in (*predicted, *chain.from_iterable(paired)):
            yield subject.row(TRANSPORT, number, eta=0.0, **about, **pairs)


def _pairs(subject: Subject, texts: TextSet) -> bool:
    """Whether there are any: of four rows or more, and with the embeddings that the coupling reads."""
    assert subject.flow is not None
    lacks = "embedding" in subject.flow.coupling.reads and not hasattr(subject.model, "table")
    return len(texts.x1) >= 4 and not lacks
