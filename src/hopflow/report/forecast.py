"""Expected hops by position and time, from the coupling alone.

A perfect network at η = 0 moves position i at the rate k̇/(1-k)·P(x1 ≠ xt), and xt differs from x1 where the path has
not moved yet, with chance 1-k, and the pair differs at i. So the expected hops of position i between two times are
(k' - k)·P(x0 ≠ x1 at i): k decides when, the coupling decides where and how often. It holds in continuous time, for any
coupling whose source rows follow the source. Euler steps are O(1/N) off, since positions that are redrawn in one step
do not see each other; the first step is not. Theorem 3.1 [theorem1], theory.md §2
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..schedules import Schedule


@dataclass(frozen=True, eq=False)
class Forecast:
    """Share of pairs that differ at each position, batch by batch.

    The rows of a batch are coupled and depend on each other: a batch is the unit of every error.
    """

    differ: Float[Tensor, "batches L"]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]) -> "Forecast":
        """From coupled source and data rows."""
        return cls(torch.stack([(x0 != x1).double().mean(0) for x0, x1 in pairs]))

    @classmethod
    def certain(cls, length: int) -> "Forecast":
        """For a disjoint source, where every pair differs everywhere."""
        return cls(torch.ones(1, length, dtype=torch.float64))

    def total(self) -> Float[Tensor, " batches"]:
        """Hops per sequence: E d_H(x0, x1). Cor. 3.2 [coro1]"""
        return self.differ.sum(1)

    def by_step(self, schedule: Schedule, times: Float[Tensor, " N1"]) -> Float[Tensor, "batches N"]:
        """Hops per sequence between one of these times and the next."""
        rest = schedule.rest(times[:, None])  # (N+1, 1) or (N+1, L)
        gain = (rest[:-1] - rest[1:]).expand(-1, self.differ.shape[1])
        return self.differ @ gain.T
