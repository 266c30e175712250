"""TransportEvaluation: hops and transport costs of samples, and what the pairs of the coupling predict for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..runs.rectified_pairs import RectifiedPairs
from ..runs.rng import stream_seed
from ..runs.run_folder import is_run
from ..sampling.generate import SamplingOptions
from ..sampling.samplers import Euler, Sampler
from ..system.progress import ProgressCallback
from .evaluated_model import EvaluatedModel
from .rows import TRANSPORT, Row
from .sample_rows import sampler_facts
from .sets import TextSet
from .transport import transport_costs

BATCHES = 32
"""OT batches of a prediction; more would take longer and add little."""


@dataclass(frozen=True)
class TransportEvaluation:
    """n samples at η = 0, and pairs of a text.

    A set with fewer rows than two OT batches of the training is coupled in smaller batches; `ot_n` of the rows says
    in which.
    """

    n: int = 64
    sampler: Sampler = Euler()
    seed: int = 0
    precision: str = "auto"

    def rows(self, evaluated: EvaluatedModel, texts: TextSet, say: ProgressCallback) -> Iterator[Row]:
        """Hops and costs; none where no pairs can be computed."""
        if evaluated.flow is None or not _can_pair(evaluated, texts, say):
            return
        trained = evaluated.recipe.get("ot_batch") or evaluated.recipe.get("batch") or 64
        ot_n = min(int(trained), len(texts.x1) // 2)
        mixed = texts.shuffled(stream_seed(self.seed, "eval order"))
        x1, group = mixed.x1[: BATCHES * ot_n], None if mixed.labels is None else mixed.labels[: BATCHES * ot_n]
        say(f"transport: {self.sampler.label}, pairs of {ot_n} rows")
        run = evaluated.name if is_run(Path(evaluated.name)) else None
        how: SamplingOptions = {"sampler": self.sampler, "seed": self.seed, "precision": self.precision}
        how["labels"] = mixed.sample_labels(self.n)
        found = transport_costs(
            evaluated.model, evaluated.flow, x1, n=self.n, ot_batch=ot_n, run=run, group=group, **how
        )
        about: dict[str, Any] = {**sampler_facts(self.sampler, 0.0), "length": x1.shape[1]}
        about |= {"dtype": found.jumps.dtype}
        about |= {"seed": self.seed, "embeddings": found.table, "text": texts.name, **texts.facts}
        pairs: dict[str, Any] = {"coupling": found.coupling, "ot_n": ot_n, "trained_ot_n": trained}
        for number in (found.jumps.per_sequence, *(one.dynamic for one in found.by_cost)):
            yield evaluated.row(TRANSPORT, number, **about)  # these do not depend on the pairs
        predicted = [number for number in (found.jumps.predicted, found.jumps.excess) if number is not None]
        paired = [(one.kantorovich, one.independent, one.gain, one.excess) for one in found.by_cost]
        for number in (*predicted, *chain.from_iterable(paired)):
            yield evaluated.row(TRANSPORT, number, **about, **pairs)


def _can_pair(evaluated: EvaluatedModel, texts: TextSet, say: ProgressCallback) -> bool:
    """Whether there are at least four rows, and the embeddings or the pair store that the coupling reads."""
    assert evaluated.flow is not None
    if evaluated.flow.coupling.pair_store is not None:
        try:
            RectifiedPairs.open(evaluated.flow, texts.x1.shape[1])
        except ValueError as error:  # the store may have been deleted after the training
            say(f"transport is left out: {error}")
            return False
    lacks = "embedding" in evaluated.flow.coupling.reads and not hasattr(evaluated.model, "table")
    return len(texts.x1) >= 4 and not lacks
