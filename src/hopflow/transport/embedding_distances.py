"""Squared embedding distances of all pairs of sequences, by matrix products."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from ..kernels import switch
from ..kernels.support import has_kernels
from ..network.precision import supports_bf16
from .cost_matrix import CostMatrix, position_chunks

SAMPLED = 1024
"""Embeddings of a table from which its center is estimated."""


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
