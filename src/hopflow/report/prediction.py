"""Hops that the coupling predicts, for the OT batch that the run was trained with."""

from dataclasses import dataclass

from ..evaluation.rows import TRANSPORT, Row
from .hopping import hops
from .numbers import error_of, measured
from .story import Story


@dataclass(frozen=True)
class Prediction:
    """Expected hops per sequence of a perfect network, and the pairs they come from."""

    value: float
    stderr: float | None
    batches: int
    """OT batches; 0 where every pair differs everywhere."""
    rows: int
    """Rows of an OT batch."""
    length: int

    def __str__(self) -> str:
        if not self.batches:
            return f"{self.value:,g} (exact)"
        return f"{measured(self.value, self.stderr)} (n = {self.batches} OT batches of {self.rows:,})"


def prediction(story: Story) -> Prediction | None:
    """From the checkpoint and the training text, or from `hopflow eval` if it coupled batches of the same size."""
    try:
        drawn, expected, _ = hops(story)
        if expected is not None:
            return Prediction(*expected.jumps, expected.batches, expected.rows, drawn.length)
    except (ValueError, OSError):
        pass  # the section on hops says why
    for row in story.rows:
        if (row.set, row.quantity) == (TRANSPORT, "predicted_jumps") and own_batch(row):
            length = int(row.more.get("length") or 0)
            return Prediction(row.value, error_of(row.stderr, row.n), row.n, int(row.more.get("ot_n") or 0), length)
    return None


def own_batch(row: Row) -> bool:
    """Whether a row about pairs holds for the OT batch of the training; independent pairs are the same in any batch."""
    more = row.more
    return more.get("ot_n") == more.get("trained_ot_n") or str(more.get("coupling")).startswith("Independent")
