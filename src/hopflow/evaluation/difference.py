"""Difference: one number minus another, with its error; or the reason why they may not be subtracted."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..bounds.estimate import for_json, mean_and_error, plus_minus
from .rows import SAMPLES, Row
from .run_results import BITS, RunResults, tokenizers_differ
from .same_sequences import is_of_text, paired_difference


@dataclass(frozen=True)
class Difference:
    """The number of `run` minus that of `against`; `how` says how the error was computed: paired, or in quadrature."""

    run: str
    against: str
    value: float
    stderr: float
    how: str
    first: int | None = None
    """Number of shared sequences, where the runs were evaluated on different n."""

    @property
    def errors(self) -> float | None:
        """The difference in standard errors; None where the error is 0 or unknown."""
        return self.value / self.stderr if self.stderr > 0 else None

    @property
    def note(self) -> str:
        """In brackets: the number of standard errors, how they were computed, and for which sequences."""
        parts = [] if self.errors is None else [f"{self.errors:+.1f} s.e."]
        parts += [self.how] if self.how != "quadrature" else []
        parts += [] if self.first is None else [f"first {self.first}"]
        return f" ({', '.join(parts)})" if self.errors is not None or self.first is not None else ""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = for_json({**asdict(self), "errors": self.errors})
        return found

    def __str__(self) -> str:
        return f"{'+' if self.value >= 0 else ''}{plus_minus(self.value, self.stderr)}{self.note}"


def difference(one: RunResults, a: Row, other: RunResults, b: Row) -> Difference | str:
    """b of the other run minus a of the first, on the same sequences of a text; or why they are not subtracted."""
    if reason := reason_not_to_subtract(one, a, other, b):
        return reason
    if found := paired_difference(one, a, other, b):
        return Difference(other.name, one.name, *found, "paired", None if a.n == b.n else min(a.n, b.n))
    if a.n != b.n and is_of_text(a) and not tokenizers_differ(one, other):
        return f"n = {a.n} and {b.n}"
    return Difference(other.name, one.name, b.value - a.value, math.hypot(a.stderr, b.stderr), "quadrature")


def difference_of_means(first: dict[int | None, float], other: dict[int | None, float]) -> tuple[float, float, str]:
    """A mean over seeds minus another, its error, and how that is computed: paired where two or more seeds are shared.

    Arguments are values by seed.
    """
    shared = [seed for seed in first if seed in other and seed is not None]
    if len(shared) > 1:
        by_seed = [other[seed] - first[seed] for seed in shared]
        return *mean_and_error(torch.tensor(by_seed, dtype=torch.float64)), "paired by seed"
    (a, a_error), (b, b_error) = (
        mean_and_error(torch.tensor(list(values.values()), dtype=torch.float64)) for values in (first, other)
    )
    return b - a, math.hypot(a_error, b_error), "quadrature"


def reason_not_to_subtract(one: RunResults, a: Row, other: RunResults, b: Row) -> str | None:
    """Why the numbers of two runs must not be subtracted, such as different tokenizers; None where they may be."""
    per_character = a.quantity.endswith(BITS)
    judged = a.quantity.startswith("gen_ppl") or a.quantity == "gen_bits_per_byte"
    if a.is_infinite or b.is_infinite:
        return "infinite"
    if a.unit != b.unit:
        return f"{a.unit} and {b.unit}"
    if tokenizers_differ(one, other) and not per_character and not (judged and a.more.get("retokenised")):
        return "different tokenizers"
    # a text has one hash, its tokens have one for every tokenizer
    keys = ("source_sha256", "split", "detokenised") if per_character else ("data_sha256",)
    if a.set != SAMPLES and any(a.more.get(name) != b.more.get(name) for name in keys):
        return "not the same text"
    lengths = (a.more.get("length"), b.more.get("length"))
    if lengths[0] != lengths[1] and not tokenizers_differ(one, other):
        return f"sequences of {lengths[0]} and {lengths[1]} tokens"
    return None
