"""Triton kernels of `fused_head`: one pass over rows of logits forward, one backward. Imported only on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
"""Logits of a row that are read at once, eight per thread."""
ROWS = 64
"""Rows that share a partial sum of the bias's gradient."""
SUM_BLOCK = 256
"""Tokens per block whose probabilities are summed in float32, to draw a token."""


def forward(logits: Tensor, bias: Tensor, xt: Tensor, x1: Tensor) -> Tensor:
    """The score terms (n, 3) of rows of logits (n, W) without their bias (W,), which is -inf beyond the vocabulary."""
    out = torch.empty(len(logits), 3, dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):  # a kernel starts on the current device, whatever device its tensors are on
        _forward[(len(logits),)](logits, bias, xt, x1, out, logits.shape[1], BLOCK=BLOCK, num_warps=WARPS)
    return out


def backward_(logits: Tensor, bias: Tensor, xt: Tensor, x1: Tensor, terms: Tensor, grad: Tensor) -> Tensor:
    """Overwrite logits by their gradient; returns the gradient of the bias (W,)."""
    n, width = logits.shape
    tiles = triton.cdiv(n, ROWS), triton.cdiv(width, BLOCK)
    sums = torch.empty(tiles[0], width, dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        _backward[tiles](logits, bias, xt, x1, terms, grad, sums, n, width, R=ROWS, BLOCK=BLOCK, num_warps=WARPS)
    return sums.sum(0)


@triton.jit  # type: ignore[untyped-decorator]
def _other(here, bias, token, start, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a row's logits, -inf at xt."""
    j = start + tl.arange(0, BLOCK)
    x = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32)
    return tl.where(j != token, x + tl.load(bias + j, mask=j < width, other=0.0), -float("inf"))


# If the width is a multiple of 16, a thread reads 16 bytes at once; with 50,257 it could not.
@triton.jit  # type: ignore[untyped-decorator]
def _forward(logits, bias, xt, x1, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * width
    token = tl.load(xt + row)
    top = tl.full([BLOCK], -1e30, tl.float32)  # finite, because -inf - (-inf) is NaN
    total = tl.zeros([BLOCK], tl.float32)
    # one running sum per column of a block, joined at the end; four blocks share a rescaling
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
    log_others = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    to = tl.load(x1 + row)
    is_data = token < width
    at = tl.where(is_data, token, 0)
    at_xt = tl.load(here + at).to(tl.float32) + tl.load(bias + at)
    tl.store(out + 3 * row, log_others)
    tl.store(out + 3 * row + 1, tl.where(is_data, at_xt, -float("inf")))
    tl.store(out + 3 * row + 2, tl.load(here + to).to(tl.float32) + tl.load(bias + to))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    logits, bias, xt, x1, terms, grad, sums, n, width, R: tl.constexpr, BLOCK: tl.constexpr
):
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    bias_block = tl.load(bias + j, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * R
    for row in range(first, tl.minimum(first + R, n)):
        here = logits + row * width + j
        x = tl.load(here, mask=inside, other=-float("inf")).to(tl.float32) + bias_block
        log_others = tl.load(terms + 3 * row)
        log_others = tl.where(log_others == -float("inf"), 0.0, log_others)  # a vocabulary of one token has no others
        g = tl.load(grad + 3 * row) * tl.exp(x - log_others)
        g = tl.where(j == tl.load(xt + row), tl.load(grad + 3 * row + 1), g)
        g += tl.where(j == tl.load(x1 + row), tl.load(grad + 3 * row + 2), 0.0)
        tl.store(here, g.to(logits.dtype.element_ty), mask=inside)
        total += g
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + j, total, mask=inside)


def block_sums(logits: Tensor, bias: Tensor, xt: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, shifted at xt: its highest logit, and Σ exp(logit - highest) over blocks of SUM_BLOCK tokens."""
    n, width = logits.shape
    blocks = triton.cdiv(width, SUM_BLOCK)
    top = torch.empty(n, dtype=torch.float32, device=logits.device)
    sums = torch.empty(n, blocks, dtype=torch.float32, device=logits.device)
    arguments = (logits, bias, xt, shift, top, sums, width, blocks)
    if n:
        with torch.cuda.device_of(logits):
            _block_sums[(n,)](*arguments, BLOCK=BLOCK, SUM_BLOCK=SUM_BLOCK, num_warps=WARPS)
    return top, sums


def draw(logits: Tensor, bias: Tensor, xt: Tensor, shift: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, shifted at xt: the token at u, as `categorical` finds it, and sums that are NaN if a logit is."""
    n, width = logits.shape
    top, sums = block_sums(logits, bias, xt, shift)
    tokens = torch.empty(n, dtype=torch.int64, device=logits.device)
    arguments = (logits, bias, xt, shift, u, top, sums, tokens, width, sums.shape[1])
    if n:
        with torch.cuda.device_of(logits):
            _draw[(n,)](*arguments, BLOCKS=triton.next_power_of_2(sums.shape[1]), SUM_BLOCK=SUM_BLOCK, num_warps=WARPS)
    return tokens, sums


@triton.jit
def _shifted(here, bias, token, added, j, width):  # type: ignore[no-untyped-def]
    x = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32)
    return x + tl.load(bias + j, mask=j < width, other=0.0) + tl.where(j == token, added, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _block_sums(  # type: ignore[no-untyped-def]
    logits, bias, xt, shift, top, sums, width, blocks, BLOCK: tl.constexpr, SUM_BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * width
    token, added = tl.load(xt + row), tl.load(shift + row)
    highest = tl.full([BLOCK], -1e30, tl.float32)
    for start in range(0, width, BLOCK):
        highest = tl.maximum(highest, _shifted(here, bias, token, added, start + tl.arange(0, BLOCK), width))
    most = tl.max(highest, 0)
    tl.store(top + row, most)
    each: tl.constexpr = BLOCK // SUM_BLOCK
    for start in range(0, width, BLOCK):  # a second pass, from the cache
        p = tl.exp(_shifted(here, bias, token, added, start + tl.arange(0, BLOCK), width) - most)
        which = start // SUM_BLOCK + tl.arange(0, each)
        tl.store(sums + row * blocks + which, tl.sum(tl.reshape(p, [each, SUM_BLOCK]), 1), mask=which < blocks)


@triton.jit  # type: ignore[untyped-decorator]
def _cumulative_search(mass, u, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `categorical.passed`: where the cumulative sum passes u times the total, and how far into that entry."""
    j, sums = tl.arange(0, SIZE), tl.cumsum(mass, 0)
    target = u * tl.max(sums, 0)
    at = tl.min(tl.where((sums > target) & (mass > 0), j, SIZE), 0)
    # the last entry if none is above: u may be rounded up to 1, and tree sums may fall short of the total
    at = tl.where(at < SIZE, at, tl.max(tl.where(mass > 0, j, 0), 0))
    here = tl.where(j == at, mass, 0.0)
    share = 1 - (tl.sum(tl.where(j == at, sums, 0.0), 0) - target) / tl.sum(here, 0)
    return at, tl.minimum(tl.maximum(share, 0.0), 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    logits, bias, xt, shift, u, top, sums, tokens, width, blocks, BLOCKS: tl.constexpr, SUM_BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCKS)
    mass = tl.load(sums + row * blocks + i, mask=i < blocks, other=0.0).to(tl.float64)
    block, left = _cumulative_search(mass, tl.load(u + row), BLOCKS)
    j = block * SUM_BLOCK + tl.arange(0, SUM_BLOCK)
    x = _shifted(logits + row * width, bias, tl.load(xt + row), tl.load(shift + row), j, width)
    place, _ = _cumulative_search(tl.exp(x - tl.load(top + row)).to(tl.float64), left, SUM_BLOCK)
    tl.store(tokens + row, (block * SUM_BLOCK + place).to(tl.int64))
