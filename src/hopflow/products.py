"""Products: squared distances of embedded sequences, of all pairs, by matrix products."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from .gpu import has_kernels, knows_bf16
from .split import Split

CHUNK = 1 << 25
"""Numbers that a chunk of embeddings may hold on a GPU, which wants few and large products: 128 MiB of float32."""
CACHED = 1 << 20
"""The same on a CPU: what its caches hold (n = 512, L = 128, D = 256: 0.26 s in place of 0.41 s)."""
SAMPLED = 1024
"""Embeddings of a table that say about where its middle is."""


def squared_distances(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], e: Float[Tensor, "V D"]) -> Split:
    """‖e(x0_j) - e(x1_i)‖² of concatenated embeddings: -2⟨e(x0_j), e(x1_i)⟩ and the squared norms."""
    norms = torch.linalg.vector_norm(e, dim=1, dtype=_wide(e)).square_()
    # looked up, not indexed: that ran at a fifth of a GPU's memory speed
    return _summed(x0, x1, e, lambda x: (embedding(x, e).flatten(1), norms[x].sum(1)))


def centred_distances(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], e: Float[Tensor, "V D"]) -> Split:
    """The same, with short vectors: long ones that lie close together differ in their last digits only."""
    if e.dtype.itemsize < 4:  # rounded already; to move it would round it again
        return squared_distances(x0, x1, e)
    middle = e[:: max(1, len(e) // SAMPLED)].mean(0)  # any point near it will do, and the whole table takes a pass
    if not rounds(e):
        return squared_distances(x0, x1, narrowed(e - middle))
    if not has_kernels(e):
        return squared_distances(x0, x1, torch.sub(e, middle, out=torch.empty_like(e, dtype=torch.bfloat16)))
    from . import triton_table

    # rounded as they are looked up, which saves a pass over the table and one for its norms
    rows = e.contiguous()  # once, and not for every chunk
    return _summed(x0, x1, e, lambda x: triton_table.looked_up(rows, x, middle, torch.bfloat16))


def rounds(e: Float[Tensor, "V D"]) -> bool:
    """Whether products of this table are of bfloat16 numbers: 3.3 TFLOP at n = 4096, L = 128, D = 768 want them."""
    return e.dtype == torch.float32 and knows_bf16(e.device)


def _summed(
    x0: Int[Tensor, "n L"],
    x1: Int[Tensor, "m L"],
    e: Float[Tensor, "V D"],
    looked_up: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Split:
    """Position by position, as many at once as fit; `looked_up` gives embeddings end to end, and their squared norm."""
    cross = torch.zeros(len(x1), len(x0), dtype=_wide(e), device=e.device)
    of_rows, of_columns = (torch.zeros(len(x), dtype=_wide(e), device=e.device) for x in (x1, x0))
    for at in chunks(x0 if len(x0) > len(x1) else x1, e.shape[1]):
        (ours, our_norms), (theirs, their_norms) = (looked_up(x[:, at]) for x in (x1, x0))
        _add_product(cross, ours, theirs, factor=-2.0)
        of_rows += our_norms
        of_columns += their_norms
    return Split(cross, of_rows, of_columns)


def _wide(e: Float[Tensor, "V D"]) -> torch.dtype:
    return torch.promote_types(e.dtype, torch.float32)


def _add_product(total: Float[Tensor, "m n"], a: Float[Tensor, "m K"], b: Float[Tensor, "n K"], factor: float) -> None:
    """Add factor·⟨a_i, b_j⟩, summed in float32 at least."""
    if a.dtype.itemsize >= 4:
        total.addmm_(a, b.T, alpha=factor)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b.T, out_dtype=total.dtype, alpha=factor, out=total)
    else:
        total.addmm_(a.float(), b.float().T, alpha=factor)


def narrowed(e: Float[Tensor, "V D"]) -> Float[Tensor, "V K"]:
    """The same distances and products up to rounding, in as many dimensions as there are tokens, where these are few.

    With E = RᵀQᵀ the columns of Q are orthonormal, so the rows of Rᵀ lie to each other as those of E do.
    """
    if 2 * e.shape[0] > e.shape[1] or e.dtype.itemsize < 4 or e.device.type != "cpu":  # a GPU is fast as it is
        return e
    return torch.linalg.qr(e.T, mode="r").R.T.contiguous()


def chunks(x: Int[Tensor, "n L"], width: int) -> Iterator[slice]:
    """Positions in parts, such that (n, part, width) numbers fit a chunk."""
    step = max(1, (CACHED if x.device.type == "cpu" else CHUNK) // max(1, len(x) * width))
    return (slice(start, start + step) for start in range(0, x.shape[1], step))
