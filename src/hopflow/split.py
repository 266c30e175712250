"""Split: a cost matrix in parts, as solvers want it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """A cost matrix as what depends on pairs, plus constants of its rows and of its columns.

    The constants change no optimal pairing, and left out they cost no digits: solve on `pairwise`.
    """

    pairwise: Float[Tensor, "m n"]
    rows: Float[Tensor, " m"] | None = None
    columns: Float[Tensor, " n"] | None = None

    def full(self) -> Float[Tensor, "m n"]:
        total = self.pairwise
        total = total if self.rows is None else total + self.rows[:, None]
        return total if self.columns is None else total + self.columns[None, :]

    def mean(self) -> float:
        """The mean of the full matrix: what independent pairs of these rows pay."""
        parts = (self.pairwise.mean(1), self.rows, self.columns)
        return sum(float(part.cpu().double().mean()) for part in parts if part is not None)

    def paid(self, order: Int[Tensor, " m"]) -> float:
        """The mean cost of each data row with the source row that it is given."""
        paid = self.pairwise.gather(1, order[:, None])[:, 0].cpu().double()
        paid = paid if self.rows is None else paid + self.rows.cpu()
        paid = paid if self.columns is None else paid + self.columns[order].cpu()
        return float(paid.mean())

    def of(self, rows: Int[Tensor, " k"]) -> "Split":
        """The part of a square matrix between some data rows and the source rows at the same places."""
        parts = (None if part is None else part[rows] for part in (self.rows, self.columns))
        return Split(self.pairwise[rows][:, rows], *parts)

    def max(self) -> float:
        """The largest entry of the full matrix, without holding another one."""
        columns = 0.0 if self.columns is None else self.columns
        largest = torch.cat([(part + columns).amax(1) for part in self.pairwise.split(256)])
        return float((largest if self.rows is None else largest + self.rows).max())
