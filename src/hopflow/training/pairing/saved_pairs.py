"""Saved pairs of OT batches, "INDEX.x0" and "INDEX.numbers" in a checkpoint, checked before a run uses them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ...runs.ot_batch import Solution
from ...sources import Source

LAST = 1 << 48
"""The largest index of an OT batch: its rows are still counted in 64 bits."""
NUMBERS = 6


def saved_index(key: str) -> int:
    """The index of the OT batch that a key of the state belongs to."""
    number, _, entry = key.partition(".")
    if not (number.isascii() and number.isdigit() and int(number) <= LAST and entry in ("x0", "numbers")):
        raise ValueError(f"the saved pairs contain the unknown entry {key[:40]!r}.")
    return int(number)


def saved_solutions(state: Mapping[str, Tensor], source: Source) -> dict[int, Solution]:
    """The saved solutions by the index of their OT batch, in order; raises ValueError if one is invalid."""
    found = {}
    for index in sorted({saved_index(key) for key in state}):
        x0, numbers = (state.get(f"{index}.{entry}") for entry in ("x0", "numbers"))
        if x0 is None or numbers is None:
            raise ValueError(f"the saved pairs of OT batch {index} lack their {'rows' if x0 is None else 'numbers'}.")
        _check_numbers(index, numbers)
        _check_rows(index, x0, source)
        found[index] = Solution.restored(x0.long(), numbers.tolist())
    return found


def _check_numbers(index: int, numbers: Tensor) -> None:
    if numbers.dtype != torch.float64 or tuple(numbers.shape) != (NUMBERS,) or not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"the saved numbers of OT batch {index} are not {NUMBERS} finite float64 values.")


def _check_rows(index: int, x0: Tensor, source: Source) -> None:
    if x0.dtype != torch.int32 or x0.ndim != 2:
        raise ValueError(
            f"the saved pairs of OT batch {index} must be rows of int32, got {x0.dtype} of shape {tuple(x0.shape)}."
        )
    inside = (x0 >= 0) & (x0 < source.vocab.size)
    wrong = ~inside | (source.probs(x0.long().clamp(0, source.vocab.size - 1)) == 0)
    if bool(wrong.any()):
        raise ValueError(
            f"the saved pairs of OT batch {index} contain the token {int(x0[wrong][0])}, which "
            f"{type(source).__name__} never draws."
        )
