"""RandomStreams: one stream of random numbers per sequence, so that results do not depend on the batch size."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..system.number_types import is_integer


class RandomStreams:
    """One stream of uniform numbers for each of several sequences, by (seed, index of the sequence).

    The streams are parts of one counter-based generator (Philox), 2^192 numbers apart. They do not overlap, are equal
    on every machine, and take no memory.
    """

    def __init__(self, seed: int, rows: Sequence[int]) -> None:
        if not (is_integer(seed) and 0 <= seed < 1 << 64):
            raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, got {seed!r}.")
        self._streams = [np.random.Philox(key=seed, counter=[0, 0, 0, row]) for row in rows]

    def __len__(self) -> int:
        return len(self._streams)

    def uniform(self, *shape: int, rows: Sequence[int] | None = None) -> Float[Tensor, "..."]:
        """The next numbers in [0, 1) of all sequences, or of those at the places `rows`: (rows, *shape) in float64."""
        chosen = range(len(self)) if rows is None else rows
        raw = np.empty((len(chosen), int(np.prod(shape, dtype=np.int64))), dtype=np.uint64)
        for into, row in zip(raw, chosen, strict=True):
            into[:] = self._streams[row].random_raw(into.size)
        return torch.from_numpy((raw >> np.uint64(11)) * 2.0**-53).view(len(chosen), *shape)
