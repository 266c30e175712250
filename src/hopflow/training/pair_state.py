"""The saved pairs of OT batches, "INDEX.x0" and "INDEX.numbers": checked before a run goes on with them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..sources import Source
from .problems import Solution

LAST = 1 << 48
"""The largest index of an OT batch: its rows are still counted in 64 bits."""
NUMBERS = 6


def saved_index(key: str) -> int:
    """The OT batch that a key of the state belongs to."""
    number, _, entry = key.partition(".")
    if not (number.isascii() and number.isdigit() and int(number) <= LAST and entry in ("x0", "numbers")):
        raise ValueError(f"the saved pairs have an entry {key[:40]!r}, which is not of an OT batch")
    return int(number)


def saved_solutions(state: Mapping[str, Tensor], source: Source) -> dict[int, Solution]:
    """The solutions by the indices of their OT batches, in order; what makes no sense is refused."""
    found = {}
    for index in sorted({saved_index(key) for key in state}):
        x0, numbers = (state.get(f"{index}.{entry}") for entry in ("x0", "numbers"))
        if x0 is None or numbers is None:
            raise ValueError(f"the saved pairs of OT batch {index} lack their {'rows' if x0 is None else 'numbers'}")
        _check_numbers(index, numbers)
        _check_rows(index, x0, source)
        found[index] = Solution.of(x0.long(), numbers.tolist())
    return found


def _check_numbers(index: int, numbers: Tensor) -> None:
    if numbers.dtype != torch.float64 or tuple(numbers.shape) != (NUMBERS,) or not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"the saved pairs of OT batch {index}: their numbers are not {NUMBERS} finite float64")


def _check_rows(index: int, x0: Tensor, source: Source) -> None:
    if x0.dtype != torch.int32 or x0.ndim != 2:
        raise ValueError(
            f"the saved pairs of OT batch {index} are {x0.dtype} of shape {tuple(x0.shape)}, not rows of int32"
        )
    possible = source.token_probs() > 0
    inside = (x0 >= 0) & (x0 < len(possible))
    wrong = ~inside | ~possible[x0.long().clamp(0, len(possible) - 1)]
    if bool(wrong.any()):
        raise ValueError(
            f"the saved pairs of OT batch {index} hold the token {int(x0[wrong][0])}, which "
            f"{type(source).__name__} never draws"
        )
