"""Drawing pairs from a transport plan: one source row for each data row."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..network.precision import widest_float


@dataclass(frozen=True, eq=False)
class PickedRows:
    """The source row of each data row, and the mean KL(its distribution ‖ uniform) in nats.  theory.md §4"""

    order: Int[Tensor, " n"]
    information: float


class Pick(ABC):
    """Draws pairs from a plan T whose rows sum to 1: data row j is paired with source row i with probability T_ji."""

    @abstractmethod
    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> PickedRows:
        """One source row for each data row."""


@dataclass(frozen=True)
class Rows(Pick):
    """Each data row draws independently from its row of the plan; source rows may repeat or be unused. Alg. 1 [alg3]"""

    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> PickedRows:
        t = plan.cpu().double()
        below = t.cumsum(1)
        u = _uniform(len(t), generator)[:, None] * below[:, -1:]
        order = torch.searchsorted(below, u, right=True)[:, 0].clamp(max=t.shape[1] - 1)
        return PickedRows(order.to(plan.device), information(t))


@dataclass(frozen=True)
class Permutation(Pick):
    """A random permutation whose mean is the plan: every source row is used exactly once.

    The plan is rounded to multiples of 2^-bits with rows and columns that sum to 1. The number of odd multiples in a
    row or column is even, so that the odd entries form closed walks that alternate between rows and columns. A coin
    flip per walk adds a unit to every other entry and subtracts it from the rest, which keeps all sums and the mean of
    each entry. Then all entries are multiples of twice the unit; after `bits` rounds they are 0 or 1.

    The mean is exactly the rounded plan. It differs from the plan by at most 2n·2^-bits per row (in L1, twice the total
    variation), plus the marginal error of the plan. `bits=None` takes 14 more bits than n needs: 1.2e-4. The time grows
    with the number of nonzero entries: at eps = 0.1 about 0.01 s for n = 64, 0.2 s for 512, 5 s for 2048.
    """

    bits: int | None = None

    def __post_init__(self) -> None:
        if self.bits is not None and not 1 <= self.bits <= 50:
            raise ValueError(f"bits must be an integer from 1 to 50, got {self.bits}.")

    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> PickedRows:
        bits = self.bits or 14 + math.ceil(math.log2(len(plan)))
        units = rounded(plan.cpu().double(), bits)
        chance = torch.from_numpy(units / 2.0**bits)
        rows, columns = np.nonzero(units)
        left = units[rows, columns]
        # numpy sorts short integers by radix, three times faster
        columns = columns.astype(np.min_scalar_type(len(units)))
        for bit in range(bits):
            odd = np.flatnonzero(left >> bit & 1)
            if len(odd):
                left[odd] += _walks(columns[odd], generator) << bit
                stays = left > 0
                columns, left = columns[stays], left[stays]
        return PickedRows(torch.from_numpy(columns.astype(np.int64)).to(plan.device), information(chance))


def information(plan: Float[Tensor, "n m"]) -> float:
    """Mean KL(T_j ‖ uniform) over the rows of a plan, in nats."""
    kl = torch.special.xlogy(plan, plan).sum(1) + math.log(plan.shape[1])
    return max(float(kl.mean()), 0.0)


def rounded(plan: Float[Tensor, "n n"], bits: int) -> Any:
    """The plan in integer units of 2^-bits, with rows and columns that sum to 1 exactly."""
    t = plan / plan.sum(1, keepdim=True)
    t = t / t.sum(0, keepdim=True).clamp(min=1)  # columns sum to at most 1; what is missing is added below
    units = (t * 2.0**bits).floor().to(torch.int64).numpy()
    lack_rows, lack_columns = (2**bits - units.sum(axis) for axis in (1, 0))
    # distribute the missing units in order: the steps of both cumulative sums are the shares of (row, column)
    ends_rows, ends_columns = lack_rows.cumsum(), lack_columns.cumsum()
    cuts = np.unique(np.concatenate([ends_rows, ends_columns]))
    cuts = cuts[cuts > 0]
    shares = np.diff(cuts, prepend=0)
    np.add.at(units, (np.searchsorted(ends_rows, cuts), np.searchsorted(ends_columns, cuts)), shares)
    return units


def _walks(columns: Any, generator: torch.Generator | None) -> Any:
    """±1 for entries with an even number in every row and column, alternating along closed walks.

    `columns` are the columns of the entries sorted by row, so that entries e and e^1 are neighbors in a row; likewise
    by column. The column neighbor of the row neighbor of an entry has the same sign.
    """
    from scipy.sparse import csr_array  # slow to import, and only this draw needs it
    from scipy.sparse.csgraph import connected_components

    count = len(columns)
    mate = np.arange(count, dtype=np.int32) ^ np.int32(1)  # plans of 46,000 rows fit
    by_column = np.argsort(columns, kind="stable")
    column_mate = np.empty_like(mate)
    column_mate[by_column] = by_column[mate]
    ends = np.arange(count + 1, dtype=np.int32)
    links = csr_array((np.ones(count, dtype=np.int8), column_mate[mate], ends), shape=(count, count))
    walks, label = connected_components(links, directed=False)
    other = label[mate]  # the walk with the opposite sign
    coin = np.where(_uniform(walks, generator).numpy() < 0.5, 1, -1)[np.minimum(label, other)]
    return np.where(label < other, coin, -coin)


def _uniform(count: int, generator: torch.Generator | None) -> Tensor:
    device = torch.device("cpu") if generator is None else generator.device
    return torch.rand(count, generator=generator, dtype=widest_float(device), device=device).cpu().double()


EXAMPLES: tuple[Pick, ...] = (Rows(), Permutation())
