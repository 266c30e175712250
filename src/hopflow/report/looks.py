"""Evaluations on held-out text that training ran along the way."""

from dataclasses import dataclass

from .numbers import error_of, finite, measured
from .story import Story

COLUMNS = {"b0": "b0_ppl", "bn": "bn_ppl", "nll": "nll", "jumps": "jumps"}
"""Quantities, and the columns of metrics.jsonl with their values."""
WORDS = {
    "b0": "b0, perplexity bound",
    "bn": "bn, perplexity bound",
    "nll": "negative log-likelihood, nats per token",
    "jumps": "hops per sample",
}


@dataclass(frozen=True)
class Look:
    """A value and its standard error after this many steps; None for an unknown error."""

    step: int
    value: float
    stderr: float | None
    n: int | None

    def __str__(self) -> str:
        return measured(self.value, self.stderr, self.n)


def looks(story: Story, quantity: str) -> list[Look]:
    """All evaluations with a finite value, in the order of steps."""
    found = []
    for row in story.having(COLUMNS[quantity]):
        value, error, n = row[COLUMNS[quantity]], row.get(f"{quantity}_se"), row.get(f"{quantity}_n")
        count = int(n) if finite(n) else None
        error = float(error) if finite(error) and error >= 0 else None
        if finite(value) and (error is not None or count == 1):
            found.append(Look(int(row["step"]) + 1, float(value), error_of(error, count), count))
    return found
