"""Triton kernels of embedding tables, for transport costs and moving averages. Imported only on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096
"""Numbers of a table that a program reads at once."""


def lookup(table: Tensor, tokens: Tensor, middle: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of table - middle (D,) in `dtype`, concatenated per sequence, and their squared norms, in one pass.

    (n, L) -> (n, L·D), (n,). A token outside the table becomes NaN.
    """
    (rows, width), (n, length) = table.shape, tokens.shape
    out = torch.empty(n, length * width, dtype=dtype, device=table.device)
    squares = torch.empty(n, length, dtype=torch.float32, device=table.device)
    size = triton.next_power_of_2(width)
    per_program = max(1, NUMBERS // size)
    arguments = table.contiguous(), tokens.contiguous(), middle, out, squares
    with torch.cuda.device_of(table):
        _lookup[(triton.cdiv(n * length, per_program),)](*arguments, n * length, rows, width, R=per_program, D=size)
    return out, squares.sum(1)


def lerp(average: Tensor, table: Tensor, weight: Tensor, out: Tensor) -> None:
    """average.lerp(table, weight) with a weight on the device; torch reaches half of the memory speed for it."""
    count = average.numel()
    with torch.cuda.device_of(average):
        _lerp[(triton.cdiv(count, NUMBERS),)](average, table, weight, out, count, N=NUMBERS)


@triton.jit  # type: ignore[untyped-decorator]
def _lookup(  # type: ignore[no-untyped-def]
    table, tokens, middle, out, squares, count, rows, width, R: tl.constexpr, D: tl.constexpr
):
    i, j = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, D)
    there, inside = i < count, j < width
    token = tl.load(tokens + i, mask=there, other=0).to(tl.int64)
    known, written = there & (token >= 0) & (token < rows), there[:, None] & inside[None, :]
    centre = tl.load(middle + j, mask=inside, other=0.0)
    x = tl.load(table + token[:, None] * width + j[None, :], mask=known[:, None] & inside[None, :], other=0.0)
    x = tl.where(known[:, None], x - centre[None, :], float("nan")).to(out.dtype.element_ty)
    tl.store(out + i[:, None] * width + j[None, :], x, mask=written)
    x = x.to(tl.float32)
    tl.store(squares + i, tl.sum(x * x, 1), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _lerp(average, table, weight, out, count, N: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside, w = i < count, tl.load(weight)
    a, x = tl.load(average + i, mask=inside), tl.load(table + i, mask=inside)
    tl.store(out + i, tl.where(w < 0.5, a + w * (x - a), x - (x - a) * (1 - w)), mask=inside)  # weight 1 is exactly x
