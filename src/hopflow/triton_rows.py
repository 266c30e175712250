"""Triton kernels of `linear_rows`: one pass over rows of logits, and one back. Imported only where there is a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
"""Logits of a row that are read at once, eight by a thread."""
ROWS = 64
"""That share a sum of the bias's gradient."""
SUMMED = 256
"""Tokens whose chances are summed in float32 to draw one."""


def forward(logits: Tensor, bias: Tensor, xt: Tensor, x1: Tensor) -> Tensor:
    """The three numbers (n, 3) of rows of logits (n, W) that lack their bias (W,), -inf beyond the vocabulary."""
    out = torch.empty(len(logits), 3, dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):  # a kernel starts on the current device, wherever its tensors are
        _forward[(len(logits),)](logits, bias, xt, x1, out, logits.shape[1], BLOCK=BLOCK, num_warps=WARPS)
    return out


def backward_(logits: Tensor, bias: Tensor, xt: Tensor, x1: Tensor, three: Tensor, grad: Tensor) -> Tensor:
    """Turn logits into their gradient, in their own place; the gradient of the bias (W,)."""
    n, width = logits.shape
    tiles = triton.cdiv(n, ROWS), triton.cdiv(width, BLOCK)
    sums = torch.empty(tiles[0], width, dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        _backward[tiles](logits, bias, xt, x1, three, grad, sums, n, width, R=ROWS, BLOCK=BLOCK, num_warps=WARPS)
    return sums.sum(0)


@triton.jit  # type: ignore[untyped-decorator]
def _other(here, bias, token, start, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a row's logits, but for that of xt."""
    j = start + tl.arange(0, BLOCK)
    x = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32)
    return tl.where(j != token, x + tl.load(bias + j, mask=j < width, other=0.0), -float("inf"))


# A width that is a multiple of 16 lets a thread read 16 bytes at once; a bound that is none, such as 50,257, does not.
@triton.jit  # type: ignore[untyped-decorator]
def _forward(logits, bias, xt, x1, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * width
    token = tl.load(xt + row)
    top = tl.full([BLOCK], -1e30, tl.float32)  # finite: -inf less -inf is no number
    total = tl.zeros([BLOCK], tl.float32)
    # a running sum for each place of a block, which meet only at the end; four blocks at a time share its rescaling
    for start in range(0, width, 4 * BLOCK):
        a = _other(here, bias, token, start, width, BLOCK)
        b = _other(here, bias, token, start + BLOCK, width, BLOCK)
        c = _other(here, bias, token, start + 2 * BLOCK, width, BLOCK)
        d = _other(here, bias, token, start + 3 * BLOCK, width, BLOCK)
        higher = tl.maximum(tl.maximum(top, tl.maximum(a, b)), tl.maximum(c, d))
        total = total * tl.exp(top - higher) + tl.exp(a - higher) + tl.exp(b - higher)
        total += tl.exp(c - higher) + tl.exp(d - higher)
        top = higher
    highest = tl.max(top, 0)
    others = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    to = tl.load(x1 + row)
    is_data = token < width
    at = tl.where(is_data, token, 0)
    at_xt = tl.load(here + at).to(tl.float32) + tl.load(bias + at)
    tl.store(out + 3 * row, others)
    tl.store(out + 3 * row + 1, tl.where(is_data, at_xt, -float("inf")))
    tl.store(out + 3 * row + 2, tl.load(here + to).to(tl.float32) + tl.load(bias + to))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    logits, bias, xt, x1, three, grad, sums, n, width, R: tl.constexpr, BLOCK: tl.constexpr
):
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    added = tl.load(bias + j, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * R
    for row in range(first, tl.minimum(first + R, n)):
        here = logits + row * width + j
        x = tl.load(here, mask=inside, other=-float("inf")).to(tl.float32) + added
        others = tl.load(three + 3 * row)
        others = tl.where(others == -float("inf"), 0.0, others)  # of a single token: nothing is left to have a share
        g = tl.load(grad + 3 * row) * tl.exp(x - others)
        g = tl.where(j == tl.load(xt + row), tl.load(grad + 3 * row + 1), g)
        g += tl.where(j == tl.load(x1 + row), tl.load(grad + 3 * row + 2), 0.0)
        tl.store(here, g.to(logits.dtype.element_ty), mask=inside)
        total += g
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + j, total, mask=inside)


def block_sums(logits: Tensor, bias: Tensor, xt: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, shifted at xt: its highest logit, and Σ exp(logit - highest) over blocks of SUMMED tokens."""
    n, width = logits.shape
    blocks = triton.cdiv(width, SUMMED)
    top = torch.empty(n, dtype=torch.float32, device=logits.device)
    sums = torch.empty(n, blocks, dtype=torch.float32, device=logits.device)
    arguments = (logits, bias, xt, shift, top, sums, width, blocks)
    if n:
        with torch.cuda.device_of(logits):
            _block_sums[(n,)](*arguments, BLOCK=BLOCK, SUMMED=SUMMED, num_warps=WARPS)
    return top, sums


def draw(logits: Tensor, bias: Tensor, xt: Tensor, shift: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, shifted at xt: the token at u, as `categorical` finds it, and the sums in which NaN would show."""
    n, width = logits.shape
    top, sums = block_sums(logits, bias, xt, shift)
    tokens = torch.empty(n, dtype=torch.int64, device=logits.device)
    arguments = (logits, bias, xt, shift, u, top, sums, tokens, width, sums.shape[1])
    if n:
        with torch.cuda.device_of(logits):
            _draw[(n,)](*arguments, BLOCKS=triton.next_power_of_2(sums.shape[1]), SUMMED=SUMMED, num_warps=WARPS)
    return tokens, sums


@triton.jit
def _shifted(here, bias, token, by, j, width):  # type: ignore[no-untyped-def]
    x = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32)
    return x + tl.load(bias + j, mask=j < width, other=0.0) + tl.where(j == token, by, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _block_sums(  # type: ignore[no-untyped-def]
    logits, bias, xt, shift, top, sums, width, blocks, BLOCK: tl.constexpr, SUMMED: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * width
    token, by = tl.load(xt + row), tl.load(shift + row)
    highest = tl.full([BLOCK], -1e30, tl.float32)
    for start in range(0, width, BLOCK):
        highest = tl.maximum(highest, _shifted(here, bias, token, by, start + tl.arange(0, BLOCK), width))
    most = tl.max(highest, 0)
    tl.store(top + row, most)
    each: tl.constexpr = BLOCK // SUMMED
    for start in range(0, width, BLOCK):  # again, from the cache
        p = tl.exp(_shifted(here, bias, token, by, start + tl.arange(0, BLOCK), width) - most)
        which = start // SUMMED + tl.arange(0, each)
        tl.store(sums + row * blocks + which, tl.sum(tl.reshape(p, [each, SUMMED]), 1), mask=which < blocks)


@triton.jit  # type: ignore[untyped-decorator]
def _passed(mass, u, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `categorical.passed`: where the running sum passes the share u of the total, and how far into that entry."""
    j, sums = tl.arange(0, SIZE), tl.cumsum(mass, 0)
    target = u * tl.max(sums, 0)
    at = tl.min(tl.where((sums > target) & (mass > 0), j, SIZE), 0)
    # the last one, where nothing is above: u is rounded up to 1, or sums in a tree do not rise to the last digit
    at = tl.where(at < SIZE, at, tl.max(tl.where(mass > 0, j, 0), 0))
    here = tl.where(j == at, mass, 0.0)
    share = 1 - (tl.sum(tl.where(j == at, sums, 0.0), 0) - target) / tl.sum(here, 0)
    return at, tl.minimum(tl.maximum(share, 0.0), 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    logits, bias, xt, shift, u, top, sums, tokens, width, blocks, BLOCKS: tl.constexpr, SUMMED: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCKS)
    mass = tl.load(sums + row * blocks + i, mask=i < blocks, other=0.0).to(tl.float64)
    block, left = _passed(mass, tl.load(u + row), BLOCKS)
    j = block * SUMMED + tl.arange(0, SUMMED)
    x = _shifted(logits + row * width, bias, tl.load(xt + row), tl.load(shift + row), j, width)
    place, _ = _passed(tl.exp(x - tl.load(top + row)).to(tl.float64), left, SUMMED)
    tl.store(tokens + row, (block * SUMMED + place).to(tl.int64))
