"""Same sequences: numbers of several runs on the sequences that all of them were evaluated on.

An evaluation takes the sequences of a text in an order that its seed decides, and stops somewhere: of two evaluations
the one of fewer sequences has the first ones of the other.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import values
from .frontier import SAMPLES
from .rows import TRANSPORT, Row

if TYPE_CHECKING:
    from .compare import Side

SAME = ("data_sha256", "seed", "length")
"""What two rows must have in common to be of the same sequences in the same order."""


def of_text(row: Row) -> bool:
    """Whether a number is one of a text's sequences; otherwise it is one of a run's own draws, which share nothing."""
    return row.set not in (SAMPLES, TRANSPORT)


def paired(one: "Side", a: Row, other: "Side", b: Row) -> tuple[float, float] | None:
    """The difference on the sequences that both have, and its error; None where their values are not known."""
    n = min(a.n, b.n)
    if n < 2 or any(a.more.get(key) is None or a.more[key] != b.more.get(key) for key in SAME):
        return None
    parts = [_values(side, row) for side, row in ((one, a), (other, b))]
    if parts[0] is None or parts[1] is None:
        return None
    before, after = (_level(row, part[:n]) for row, part in ((a, parts[0]), (b, parts[1])))
    return after[0] - before[0], float((after[1] - before[1]).std()) / math.sqrt(n)


def alike(sides: Sequence["Side"], place: tuple[Any, ...]) -> dict[str, float] | None:
    """Each run's number on the same sequences, the first min(n); None where these values are not known."""
    rows = {side.name: side.rows[place] for side in sides}
    n = min(row.n for row in rows.values())
    if all(row.n == n or not of_text(row) for row in rows.values()):
        return {name: row.value for name, row in rows.items()}
    found = {}
    for side in sides:
        each = _values(side, rows[side.name])
        if each is None or rows[side.name].more.get("seed") != sides[0].rows[place].more.get("seed"):
            return None
        found[side.name] = _level(rows[side.name], each[:n])[0]
    return found


def _values(side: "Side", row: Row) -> Tensor | None:
    """What the row's value is the mean of, sequence by sequence, in the order of the set; None if it is not known."""
    each = side.values.get(values.name(row))
    if each is None or each.shape != (row.n,):
        return None
    if not math.isclose(_level(row, each)[0], row.value, rel_tol=1e-6):  # of another evaluation
        return None
    return each


def _level(row: Row, each: Tensor) -> tuple[float, Tensor]:
    """The number that some sequences give, and what each contributes to it; for a perplexity by the delta method."""
    each = each.double()
    if row.unit != "ppl":
        return float(each.mean()), each
    length = row.more["length"]
    ppl = math.exp(float(each.mean()) / length)
    return ppl, each * (ppl / length)
