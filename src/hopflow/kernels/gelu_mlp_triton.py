"""Triton kernels of GELU (tanh) with a bias: a forward pass, and a backward pass that sums the bias's gradient.

The backward pass also recomputes the GELU's output, so that it need not be stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
"""Numbers of a row that are read at once, eight per thread."""
ROWS = 32
"""Rows per program; their gradients of the bias share one partial sum."""


def forward(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) of (n, W) and (W,)."""
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):  # a kernel starts on the current device, whatever device its tensors are on
        _forward[_tiles(x)](x, bias, out, *x.shape, R=ROWS, BLOCK=BLOCK, num_warps=WARPS)
    return out


def backward_(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite the gradient of gelu(x + bias) by that of x.

    Returns gelu(x + bias) and the gradient of the bias in float32.
    """
    out, tiles = torch.empty_like(x), _tiles(x)
    sums = torch.empty(tiles[0], len(bias), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _backward[tiles](grad, x, bias, out, sums, *x.shape, R=ROWS, BLOCK=BLOCK, num_warps=WARPS)
    return out, sums.sum(0)


def _tiles(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(len(x), ROWS), triton.cdiv(x.shape[1], BLOCK)


@triton.jit
def _gelu(z):  # type: ignore[no-untyped-def]
    """s with gelu(z) = z·s, and the derivative of gelu: (1 + tanh(u))/2 is the sigmoid of 2u."""
    s = tl.sigmoid(1.5957691216057308 * z * (1 + 0.044715 * z * z))  # 2·√(2/π)
    return s, s + z * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * z * z)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(x, bias, out, n, width, R: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    b = tl.load(bias + j, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * R
    for row in range(first, tl.minimum(first + R, n)):
        z = tl.load(x + row * width + j, mask=inside, other=0.0).to(tl.float32) + b
        s, _ = _gelu(z)
        tl.store(out + row * width + j, (z * s).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(grad, x, bias, out, sums, n, width, R: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    b = tl.load(bias + j, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * R
    for row in range(first, tl.minimum(first + R, n)):
        z = tl.load(x + row * width + j, mask=inside, other=0.0).to(tl.float32) + b
        s, derivative = _gelu(z)
        tl.store(out + row * width + j, (z * s).to(out.dtype.element_ty), mask=inside)
        g = tl.load(grad + row * width + j, mask=inside, other=0.0).to(tl.float32) * derivative
        tl.store(grad + row * width + j, g.to(grad.dtype.element_ty), mask=inside)
        total += g
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + j, total, mask=inside)
