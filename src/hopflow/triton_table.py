"""A Triton kernel of `costs`: a table about its middle, rounded. Imported only where there is a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096
"""Of a table that a program reads at once."""


def moved(table: Tensor, middle: Tensor, dtype: torch.dtype) -> Tensor:
    """table - middle (D,) in another type, in one pass; torch's operation of two types takes three times as long."""
    rows, width = table.shape
    out = torch.empty(rows, width, dtype=dtype, device=table.device)
    size = triton.next_power_of_2(width)
    some = max(1, NUMBERS // size)
    with torch.cuda.device_of(table):
        _moved[(triton.cdiv(rows, some),)](table.contiguous(), middle, out, rows, width, R=some, D=size)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _moved(table, middle, out, rows, width, R: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    i, j = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, D)
    at, inside = i[:, None] * width + j[None, :], (i < rows)[:, None] & (j < width)[None, :]
    by = tl.load(middle + j, mask=j < width, other=0.0)
    x = tl.load(table + at, mask=inside, other=0.0) - by[None, :]
    tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)
