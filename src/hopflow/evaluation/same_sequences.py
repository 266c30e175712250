"""Numbers of several runs on the sequences that all of them were evaluated on.

An evaluation takes the sequences of a text in an order that its seed decides, and stops somewhere. So the shorter of
two evaluations with one seed has the first sequences of the longer one.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from . import per_sequence
from .rows import SAMPLES, TRANSPORT, Row
from .run_results import RunResults

SAME = ("data_sha256", "seed", "length")
"""Keys in which two rows agree if they are of the same sequences in the same order."""


def is_of_text(row: Row) -> bool:
    """Whether a number is a mean over sequences of a text; otherwise it is of samples that each run draws itself."""
    return row.set not in (SAMPLES, TRANSPORT)


def paired_difference(one: RunResults, a: Row, other: RunResults, b: Row) -> tuple[float, float] | None:
    """b - a on the sequences that both have, and its error; None where the values per sequence are not known."""
    n = min(a.n, b.n)
    if n < 2 or any(a.more.get(key) is None or a.more[key] != b.more.get(key) for key in SAME):
        return None
    values = [_values(run, row) for run, row in ((one, a), (other, b))]
    if values[0] is None or values[1] is None:
        return None
    before, after = (_mean_and_terms(row, each[:n]) for row, each in ((a, values[0]), (b, values[1])))
    return after[0] - before[0], float((after[1] - before[1]).std()) / math.sqrt(n)


def values_on_shared_sequences(runs: Sequence[RunResults], place: tuple[Any, ...]) -> dict[str, float] | None:
    """The number of each run on the first min(n) sequences; None where the values per sequence are not known."""
    rows = {run.name: run.rows[place] for run in runs}
    n = min(row.n for row in rows.values())
    if all(row.n == n or not is_of_text(row) for row in rows.values()):
        return {name: row.value for name, row in rows.items()}
    found = {}
    for run in runs:
        each = _values(run, rows[run.name])
        if each is None or rows[run.name].more.get("seed") != runs[0].rows[place].more.get("seed"):
            return None
        found[run.name] = _mean_and_terms(rows[run.name], each[:n])[0]
    return found


def _values(run: RunResults, row: Row) -> Tensor | None:
    """The values per sequence that the row averages, in the order of the set; None where they are not known."""
    each = run.values.get(per_sequence.name(row))
    if each is None or each.shape != (row.n,):
        return None
    if not math.isclose(_mean_and_terms(row, each)[0], row.value, rel_tol=1e-6):  # of another evaluation
        return None
    return each


def _mean_and_terms(row: Row, each: Tensor) -> tuple[float, Tensor]:
    """The row's number for these sequences, and the contribution of each; for a perplexity by the delta method."""
    each = each.double()
    if row.unit != "ppl":
        return float(each.mean()), each
    length = row.more["length"]
    ppl = math.exp(float(each.mean()) / length)
    return ppl, each * (ppl / length)
