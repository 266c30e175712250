"""The tightest valid bound of a run for the few-hops sampler (η = 0) in a number of steps.

bn and br bound the same sampler. Which one is tighter depends on the flow: from masks bn, and br is not even measured;
from other sources mostly br. So runs of different flows are compared by the tighter one of each.
"""

import math
from collections.abc import Sequence

import torch

from .rows import Row

SURE = 2.0
"""Standard errors by which a bound must be lower to be preferred: the lowest of several noisy bounds is not a bound."""


def best_bound(rows: Sequence[Row], set: str, steps: int) -> Row | None:
    """Of bn and br (with the most paths) at η = 0 the lower one; None where neither was measured on this set."""
    plain = [row for row in rows if row.is_bound and "sampler_label" not in row.more]
    here = [row for row in plain if (row.set, row.eta, row.more.get("steps")) == (set, 0.0, steps)]
    bounds = [row for row in here if row.quantity == "bn"]
    by_paths = sorted((row for row in here if row.quantity == "br"), key=lambda row: row.more["paths"])
    best: Row | None = None
    for row in (*by_paths[-1:], *bounds):
        if best is None or is_lower(row, best):
            best = row
    return best


def is_lower(row: Row, known: Row) -> bool:
    """Whether a bound is lower by more than its error, on the same sequences where the values of these are known."""
    if row.is_infinite or known.is_infinite:
        return known.is_infinite and not row.is_infinite
    n = min(row.n, known.n)
    if row.each and known.each and n > 1:
        apart = torch.tensor(row.each[:n], dtype=torch.float64) - torch.tensor(known.each[:n], dtype=torch.float64)
        return float(apart.mean()) < -SURE * float(apart.std()) / math.sqrt(n)
    return row.n == known.n and row.value - known.value < -SURE * math.hypot(row.stderr, known.stderr)
