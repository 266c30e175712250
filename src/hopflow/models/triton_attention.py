"""Triton kernels of attention over short sequences, rotary positions included: one program per sequence and head.

All of a head fits into a multiprocessor, so that queries, keys and values are read once and what they give is written
once, forward and back; nothing of size L × L, and no turned query or key, ever leaves the chip.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, L, 3, H, W) and the rotation (L, W/2) each -> (B, L, H·W)."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty(b, length, heads * width, dtype=qkv.dtype, device=qkv.device)
    _forward[(b * heads,)](qkv, cos, sin, out, length, heads, *_sizes(length, width), num_warps=8)
    return out


def backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of qkv, from that of what `forward` gave."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    _backward[(b * heads,)](grad, qkv, cos, sin, out, length, heads, *_sizes(length, width), num_warps=8)
    return out


def _sizes(length: int, width: int) -> tuple[float, int, int, int]:
    return width**-0.5, triton.next_power_of_2(max(16, length)), width, width // 2


@triton.jit  # type: ignore[untyped-decorator]
def _turned(x, at, half, cos, sin, inside, H: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of queries or keys, turned by their positions."""
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + H, mask=inside, other=0.0).to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _weights(qa, qb, ka, kb, rows, length, scale):  # type: ignore[no-untyped-def]
    """softmax over the keys."""
    s = (tl.dot(qa, tl.trans(ka)) + tl.dot(qb, tl.trans(kb))) * scale
    s = tl.where((rows < length)[None, :], s, -float("inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, cos, sin, out, length, heads, scale, L: tl.constexpr, W: tl.constexpr, H: tl.constexpr
):
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    rows, half, whole = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W  # from one of queries, keys and values to the next
    base = qkv + b * length * 3 * step + head * W
    short = (rows < length)[:, None] & (half >= 0)[None, :]
    wide = (rows < length)[:, None] & (whole >= 0)[None, :]
    turn = rows[:, None] * H + half[None, :]
    c, s = tl.load(cos + turn, mask=short, other=0.0), tl.load(sin + turn, mask=short, other=0.0)
    at = rows[:, None] * 3 * step + half[None, :]
    kind = qkv.dtype.element_ty
    qa, qb = _turned(base, at, half, c, s, short, H)
    ka, kb = _turned(base + step, at, half, c, s, short, H)
    p = _weights(qa.to(kind), qb.to(kind), ka.to(kind), kb.to(kind), rows, length, scale)
    v = tl.load(base + 2 * step + rows[:, None] * 3 * step + whole[None, :], mask=wide, other=0.0)
    o = tl.dot(p.to(kind), v)
    tl.store(out + (b * length + rows[:, None]) * step + head * W + whole[None, :], o.to(kind), mask=wide)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, cos, sin, out, length, heads, scale, L: tl.constexpr, W: tl.constexpr, H: tl.constexpr
):
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    rows, half, whole = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W
    base, to = qkv + b * length * 3 * step + head * W, out + b * length * 3 * step + head * W
    short = (rows < length)[:, None] & (half >= 0)[None, :]
    wide = (rows < length)[:, None] & (whole >= 0)[None, :]
    turn = rows[:, None] * H + half[None, :]
    c, s = tl.load(cos + turn, mask=short, other=0.0), tl.load(sin + turn, mask=short, other=0.0)
    at = rows[:, None] * 3 * step + half[None, :]
    kind = qkv.dtype.element_ty
    qa, qb = _turned(base, at, half, c, s, short, H)
    ka, kb = _turned(base + step, at, half, c, s, short, H)
    qa, qb, ka, kb = qa.to(kind), qb.to(kind), ka.to(kind), kb.to(kind)
    p = _weights(qa, qb, ka, kb, rows, length, scale)
    across = rows[:, None] * 3 * step + whole[None, :]
    v = tl.load(base + 2 * step + across, mask=wide, other=0.0)
    g = tl.load(grad + (b * length + rows[:, None]) * step + head * W + whole[None, :], mask=wide, other=0.0)
    dv = tl.dot(tl.trans(p.to(kind)), g)
    tl.store(to + 2 * step + across, dv.to(kind), mask=wide)
    dp = tl.dot(g, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(kind)
    da, db = tl.dot(ds, ka), tl.dot(ds, kb)
    tl.store(to + at, (da * c + db * s).to(kind), mask=short)
    tl.store(to + at + H, (db * c - da * s).to(kind), mask=short)
    da, db = tl.dot(tl.trans(ds), qa), tl.dot(tl.trans(ds), qb)
    tl.store(to + step + at, (da * c + db * s).to(kind), mask=short)
    tl.store(to + step + at + H, (db * c - da * s).to(kind), mask=short)
