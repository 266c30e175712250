"""Looks: what a run found when it looked at held-out text while it was training."""

from dataclasses import dataclass

from .numbers import finite, measured
from .story import Story

COLUMNS = {"b0": "b0_ppl", "bn": "bn_ppl", "nll": "nll", "jumps": "jumps"}
"""Quantities, and the columns of metrics.jsonl with their values."""
WORDS = {
    "b0": "b0, bound on perplexity",
    "bn": "bn, bound on perplexity",
    "nll": "held-out text, nats per token",
    "jumps": "jumps per sample",
}


@dataclass(frozen=True)
class Look:
    """A value with its error, after so many steps."""

    step: int
    value: float
    stderr: float
    n: int | None

    def __str__(self) -> str:
        return measured(self.value, self.stderr, self.n)


def looks(story: Story, quantity: str) -> list[Look]:
    """Those that found a number, in the order of steps."""
    found = []
    for row in story.having(COLUMNS[quantity]):
        value, error, n = row[COLUMNS[quantity]], row.get(f"{quantity}_se"), row.get(f"{quantity}_n")
        if finite(value) and finite(error) and error >= 0:
            found.append(Look(int(row["step"]) + 1, float(value), float(error), int(n) if finite(n) else None))
    return found
