"""Triton kernels of `products` and `training.ema`: one pass over a large table. Imported only where there is a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096
"""Of a table that a program reads at once."""


def moved(table: Tensor, middle: Tensor, dtype: torch.dtype) -> Tensor:
    """table - middle (D,) in another type, in one pass; torch's own runs at a third of the memory's speed."""
    rows, width = table.shape
    out = torch.empty(rows, width, dtype=dtype, device=table.device)
    size = triton.next_power_of_2(width)
    some = max(1, NUMBERS // size)
    with torch.cuda.device_of(table):
        _moved[(triton.cdiv(rows, some),)](table.contiguous(), middle, out, rows, width, R=some, D=size)
    return out


def lerp_(average: Tensor, table: Tensor, weight: Tensor) -> None:
    """average.lerp_(table, weight) with a weight on the device, for which torch runs at half of the memory's speed."""
    count = average.numel()
    with torch.cuda.device_of(average):
        _lerp[(triton.cdiv(count, NUMBERS),)](average, table, weight, count, N=NUMBERS)


@triton.jit  # type: ignore[untyped-decorator]
def _moved(table, middle, out, rows, width, R: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    i, j = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, D)
    at, inside = i[:, None] * width + j[None, :], (i < rows)[:, None] & (j < width)[None, :]
    by = tl.load(middle + j, mask=j < width, other=0.0)
    x = tl.load(table + at, mask=inside, other=0.0) - by[None, :]
    tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _lerp(average, table, weight, count, N: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside, w = i < count, tl.load(weight)
    a, x = tl.load(average + i, mask=inside), tl.load(table + i, mask=inside)
    tl.store(average + i, tl.where(w < 0.5, a + w * (x - a), x - (x - a) * (1 - w)), mask=inside)  # 1 gives x itself
