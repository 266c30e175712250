"""Picks: how each data row gets one source row from a transport plan."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Picked:
    """The source row of each data row, and mean KL(law of the pick ‖ uniform), in nats.  theory.md §4"""

    order: Int[Tensor, " n"]
    information: float


class Pick(ABC):
    """A way to draw from a plan with rows T_j that sum to 1, so that data row j gets source row i with chance T_ji."""

    @abstractmethod
    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> Picked:
        """One source row per data row."""


@dataclass(frozen=True)
class Rows(Pick):
    """Each data row draws from its own row of the plan: source rows may repeat or be left out. Alg. 1 [alg3]"""

    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> Picked:
        t = plan.cpu().double()
        below = t.cumsum(1)
        u = _uniform(len(t), generator)[:, None] * below[:, -1:]
        order = torch.searchsorted(below, u, right=True)[:, 0].clamp(max=t.shape[1] - 1)
        return Picked(order.to(plan.device), information(t))


@dataclass(frozen=True)
class Permutation(Pick):
    """A random permutation whose mean is the plan: every source row is used once, and nothing is biased.

    The plan is rounded to multiples of 2^-bits with rows and columns that sum to 1. An odd multiple in a row is never
    alone, nor in a column; so the odd entries fall into closed walks that turn from row to column and back. A coin per
    walk adds a unit to every other entry and takes it from the rest, which keeps all sums and, on average, each entry.
    Now all are multiples of twice the unit; after `bits` rounds they are 0 or 1.

    The mean is the rounded plan to the last digit. That differs from the plan by at most 2n·2^-bits a row (in L1, twice
    the total variation), plus the plan's own marginal error. `bits=None` takes 14 more than n needs: 1.2e-4.
    It costs time where the plan is spread out: at eps = 0.1 about 0.01 s for n = 64, 0.2 s for 512, 5 s for 2048.
    """

    bits: int | None = None

    def __post_init__(self) -> None:
        if self.bits is not None and not 1 <= self.bits <= 50:
            raise ValueError(f"a plan is rounded to 1 to 50 bits; got {self.bits}")

    def draw(self, plan: Float[Tensor, "n n"], generator: torch.Generator | None = None) -> Picked:
        bits = self.bits or 14 + math.ceil(math.log2(len(plan)))
        units = rounded(plan.cpu().double(), bits)
        chance = torch.from_numpy(units / 2.0**bits)
        rows, columns = np.nonzero(units)
        left = units[rows, columns]
        columns = columns.astype(
            np.min_scalar_type(len(units))
        )  # numpy sorts short integers by radix, three times faster
        for bit in range(bits):
            odd = np.flatnonzero(left >> bit & 1)
            if len(odd):
                left[odd] += _walks(columns[odd], generator) << bit
                stays = left > 0
                columns, left = columns[stays], left[stays]
        return Picked(torch.from_numpy(columns.astype(np.int64)).to(plan.device), information(chance))


def information(plan: Float[Tensor, "n m"]) -> float:
    """Mean KL(T_j ‖ uniform) over the rows of a plan, in nats."""
    kl = torch.special.xlogy(plan, plan).sum(1) + math.log(plan.shape[1])
    return max(float(kl.mean()), 0.0)


def rounded(plan: Float[Tensor, "n n"], bits: int) -> Any:
    """A plan in whole units of 2^-bits, with rows and columns that sum to 1 exactly."""
    t = plan / plan.sum(1, keepdim=True)
    t = t / t.sum(0, keepdim=True).clamp(min=1)  # no column has too much; what rows now lack is filled in below
    units = (t * 2.0**bits).floor().to(torch.int64).numpy()
    lack_rows, lack_columns = (2**bits - units.sum(axis) for axis in (1, 0))
    # hand the units that are missing out in order: the cuts of both running sums bound the shares of (row, column)
    ends_rows, ends_columns = lack_rows.cumsum(), lack_columns.cumsum()
    cuts = np.unique(np.concatenate([ends_rows, ends_columns]))
    cuts = cuts[cuts > 0]
    shares = np.diff(cuts, prepend=0)
    np.add.at(units, (np.searchsorted(ends_rows, cuts), np.searchsorted(ends_columns, cuts)), shares)
    return units


def _walks(columns: Any, generator: torch.Generator | None) -> Any:
    """±1 for entries of which every row and every column has an even number: alternating along closed walks.

    Entries come sorted by row, given by their columns, so that number e and e^1 are neighbours in a row; likewise by
    column. Two steps on, over the row's neighbour to the column's neighbour of that, is an entry with the same sign.
    """
    count = len(columns)
    mate = np.arange(count, dtype=np.int32) ^ np.int32(1)  # plans of 46,000 rows fit
    by_column = np.argsort(columns, kind="stable")
    beside = np.empty_like(mate)
    beside[by_column] = by_column[mate]
    ends = np.arange(count + 1, dtype=np.int32)
    links = csr_array((np.ones(count, dtype=np.int8), beside[mate], ends), shape=(count, count))
    walks, label = connected_components(links, directed=False)
    other = label[mate]  # the walk with the opposite sign
    coin = np.where(_uniform(walks, generator).numpy() < 0.5, 1, -1)[np.minimum(label, other)]
    return np.where(label < other, coin, -coin)


def _uniform(count: int, generator: torch.Generator | None) -> Tensor:
    device = torch.device("cpu") if generator is None else generator.device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.rand(count, generator=generator, dtype=dtype, device=device).cpu().double()


EXAMPLES: tuple[Pick, ...] = (Rows(), Permutation())
