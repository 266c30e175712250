"""CostMatrix: the costs of all pairs of rows, with row and column constants kept apart.

`squared_distances` and `centred_distances` compute it from embeddings, by matrix products over chunks of positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from ..kernels import switch
from ..kernels.support import has_kernels
from ..network.precision import supports_bf16

CHUNK = 1 << 25
"""Largest chunk of embeddings on a GPU, for which few large products are fast: 128 MiB of float32."""
CPU_CHUNK = 1 << 20
"""The same on a CPU, so that a chunk fits its caches (n = 512, L = 128, D = 256: 0.26 s instead of 0.41 s)."""
SAMPLED = 1024
"""Embeddings of a table from which its center is estimated."""


@dataclass(frozen=True, eq=False)
class CostMatrix:
    """A cost matrix as the sum of a matrix `pairwise`, constants of its rows and constants of its columns.

    The constants do not change an optimal pairing, and without them less precision is lost: solve on `pairwise`.
    """

    pairwise: Float[Tensor, "m n"]
    rows: Float[Tensor, " m"] | None = None
    columns: Float[Tensor, " n"] | None = None

    def full(self) -> Float[Tensor, "m n"]:
        """The complete matrix."""
        total = self.pairwise
        total = total if self.rows is None else total + self.rows[:, None]
        return total if self.columns is None else total + self.columns[None, :]

    def mean(self) -> float:
        """The mean of the complete matrix: the mean cost of independent pairs of these rows."""
        parts = (self.pairwise.mean(1), self.rows, self.columns)
        return sum(float(part.cpu().double().mean()) for part in parts if part is not None)

    def paid(self, order: Int[Tensor, " m"]) -> float:
        """The mean cost if data row i is paired with source row order[i]."""
        paid = self.pairwise.gather(1, order[:, None])[:, 0].cpu().double()
        paid = paid if self.rows is None else paid + self.rows.cpu()
        paid = paid if self.columns is None else paid + self.columns[order].cpu()
        return float(paid.mean())

    def of(self, rows: Int[Tensor, " k"]) -> "CostMatrix":
        """The square submatrix of these rows and the columns with the same indices."""
        parts = (None if part is None else part[rows] for part in (self.rows, self.columns))
        return CostMatrix(self.pairwise[rows][:, rows], *parts)

    def max(self) -> float:
        """The largest entry of the complete matrix, computed without a second matrix."""
        columns = 0.0 if self.columns is None else self.columns
        largest = torch.cat([(part + columns).amax(1) for part in self.pairwise.split(256)])
        return float((largest if self.rows is None else largest + self.rows).max())


def position_chunks(x: Int[Tensor, "n L"], width: int) -> Iterator[slice]:
    """Slices of positions, such that (n, slice, width) numbers fit into a chunk."""
    step = max(1, (CPU_CHUNK if x.device.type == "cpu" else CHUNK) // max(1, len(x) * width))
    return (slice(start, start + step) for start in range(0, x.shape[1], step))


def squared_distances(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], e: Float[Tensor, "V D"]) -> CostMatrix:
    """‖e(x0_j) - e(x1_i)‖² of concatenated embeddings, as -2⟨e(x0_j), e(x1_i)⟩ and the squared norms."""
    norms = torch.linalg.vector_norm(e, dim=1, dtype=_sum_type(e)).square_()
    # F.embedding, because indexing ran at a fifth of a GPU's memory bandwidth
    return _summed(x0, x1, e, lambda x: (embedding(x, e).flatten(1), norms[x].sum(1)))


def centred_distances(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], e: Float[Tensor, "V D"]) -> CostMatrix:
    """The same for embeddings relative to the center of the table, where products lose fewer digits."""
    if e.dtype.itemsize < 4:  # shifting a rounded table would round it again
        return squared_distances(x0, x1, e)
    middle = e[:: max(1, len(e) // SAMPLED)].mean(0)  # any point near the center will do
    if not rounds(e):
        return squared_distances(x0, x1, narrowed(e - middle))
    if not (switch.current.embedding and has_kernels(e)):
        return squared_distances(x0, x1, torch.sub(e, middle, out=torch.empty_like(e, dtype=torch.bfloat16)))
    from ..kernels import embedding_triton

    # embeddings are rounded when they are looked up, which saves two passes over the table
    rows = e.contiguous()  # once, not for every chunk
    return _summed(x0, x1, e, lambda x: embedding_triton.lookup(rows, x, middle, torch.bfloat16))


def rounds(e: Float[Tensor, "V D"]) -> bool:
    """Whether products of this table are computed in bfloat16 (3.3 TFLOP at n = 4096, L = 128, D = 768)."""
    return e.dtype == torch.float32 and supports_bf16(e.device)


def _summed(
    x0: Int[Tensor, "n L"],
    x1: Int[Tensor, "m L"],
    e: Float[Tensor, "V D"],
    looked_up: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> CostMatrix:
    """The sum over chunks of positions; `looked_up` returns concatenated embeddings and their squared norms."""
    cross = torch.zeros(len(x1), len(x0), dtype=_sum_type(e), device=e.device)
    of_rows, of_columns = (torch.zeros(len(x), dtype=_sum_type(e), device=e.device) for x in (x1, x0))
    for at in position_chunks(x0 if len(x0) > len(x1) else x1, e.shape[1]):
        (ours, our_norms), (theirs, their_norms) = (looked_up(x[:, at]) for x in (x1, x0))
        _add_product(cross, ours, theirs, factor=-2.0)
        of_rows += our_norms
        of_columns += their_norms
    return CostMatrix(cross, of_rows, of_columns)


def _sum_type(e: Float[Tensor, "V D"]) -> torch.dtype:
    """The float type of sums: at least float32."""
    return torch.promote_types(e.dtype, torch.float32)


def _add_product(total: Float[Tensor, "m n"], a: Float[Tensor, "m K"], b: Float[Tensor, "n K"], factor: float) -> None:
    """Add factor·⟨a_i, b_j⟩ to `total`, summed in at least float32."""
    if a.dtype.itemsize >= 4:
        total.addmm_(a, b.T, alpha=factor)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b.T, out_dtype=total.dtype, alpha=factor, out=total)
    else:
        total.addmm_(a.float(), b.float().T, alpha=factor)


def narrowed(e: Float[Tensor, "V D"]) -> Float[Tensor, "V K"]:
    """A table with the same distances and products up to rounding, but at most V columns; for small V on a CPU.

    With E = RᵀQᵀ the columns of Q are orthonormal, so that the rows of Rᵀ have the distances of the rows of E.
    """
    if 2 * e.shape[0] > e.shape[1] or e.dtype.itemsize < 4 or e.device.type != "cpu":  # on a GPU it would not be faster
        return e
    return torch.linalg.qr(e.T, mode="r").R.T.contiguous()


Split = CostMatrix
"""The old name of `CostMatrix`, until the next release."""
