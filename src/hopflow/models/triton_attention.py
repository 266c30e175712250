"""Triton kernels of attention over short sequences, rotary positions included: one program per sequence and head.

All of a head fits into a multiprocessor, so that queries, keys and values are read once and what they give is written
once, forward and back; nothing of size L × L, and no turned query or key, ever leaves the chip.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD, BACKWARD = (128, 8), (128, 8)
"""Queries that are taken at once, and warps."""


def forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, L, 3, H, W) and the rotation (L, W/2) each -> (B, L, H·W)."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty(b, length, heads * width, dtype=qkv.dtype, device=qkv.device)
    size = _size(length)
    queries, warps = min(size, FORWARD[0]), FORWARD[1]
    grid = b * heads, triton.cdiv(length, queries)
    arguments = (qkv, cos, sin, out, length, heads, width**-0.5)
    with torch.cuda.device_of(qkv):  # a kernel starts on the current device, wherever its tensors are
        _forward[grid](*arguments, L=size, Q=queries, W=width, H=width // 2, num_warps=warps)
    return out


def backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of qkv, from that of what `forward` gave."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    size = _size(length)
    queries, warps = min(size, BACKWARD[0]), BACKWARD[1]
    arguments = (grad, qkv, cos, sin, out, length, heads, width**-0.5)
    with torch.cuda.device_of(qkv):
        _backward[(b * heads,)](*arguments, L=size, Q=queries, W=width, H=width // 2, num_warps=warps)
    return out


def _size(length: int) -> int:
    return int(triton.next_power_of_2(max(16, length)))


@triton.jit  # type: ignore[untyped-decorator]
def _turned(x, cos, sin, rows, length, step, H: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of queries or keys, turned by their positions."""
    half = tl.arange(0, H)
    inside = (rows < length)[:, None] & (half >= 0)[None, :]
    turn, at = rows[:, None] * H + half[None, :], rows[:, None] * 3 * step + half[None, :]
    c, s = tl.load(cos + turn, mask=inside, other=0.0), tl.load(sin + turn, mask=inside, other=0.0)
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + H, mask=inside, other=0.0).to(tl.float32)
    kind = x.dtype.element_ty
    return (a * c - b * s).to(kind), (b * c + a * s).to(kind)


@triton.jit  # type: ignore[untyped-decorator]
def _put_back(to, a, b, cos, sin, rows, length, step, H: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of what was turned, turned back; by how much is read again, registers are scarcer than reads."""
    half = tl.arange(0, H)
    inside = (rows < length)[:, None] & (half >= 0)[None, :]
    turn = rows[:, None] * H + half[None, :]
    c, s = tl.load(cos + turn, mask=inside, other=0.0), tl.load(sin + turn, mask=inside, other=0.0)
    at = rows[:, None] * 3 * step + half[None, :]
    kind = to.dtype.element_ty
    tl.store(to + at, (a * c + b * s).to(kind), mask=inside)
    tl.store(to + at + H, (b * c - a * s).to(kind), mask=inside)


@triton.jit
def _weights(qa, qb, ka, kb, keys, length, scale):  # type: ignore[no-untyped-def]
    """softmax over the keys."""
    s = (tl.dot(qa, tl.trans(ka)) + tl.dot(qb, tl.trans(kb))) * scale
    s = tl.where((keys < length)[None, :], s, -float("inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, cos, sin, out, length, heads, scale, L: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, H: tl.constexpr
):
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    keys, rows, whole = tl.arange(0, L), tl.program_id(1) * Q + tl.arange(0, Q), tl.arange(0, W)
    step = heads * W  # from one of queries, keys and values to the next
    base = qkv + b * length * 3 * step + head * W
    ka, kb = _turned(base + step, cos, sin, keys, length, step, H)
    qa, qb = _turned(base, cos, sin, rows, length, step, H)
    p = _weights(qa, qb, ka, kb, keys, length, scale)
    there = (keys < length)[:, None] & (whole >= 0)[None, :]
    v = tl.load(base + 2 * step + keys[:, None] * 3 * step + whole[None, :], mask=there, other=0.0)
    o = tl.dot(p.to(v.dtype), v)
    inside = (rows < length)[:, None] & (whole >= 0)[None, :]
    tl.store(out + (b * length + rows[:, None]) * step + head * W + whole[None, :], o.to(v.dtype), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, cos, sin, out, length, heads, scale, L: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, H: tl.constexpr
):
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    keys, whole = tl.arange(0, L), tl.arange(0, W)
    step = heads * W
    base, to = qkv + b * length * 3 * step + head * W, out + b * length * 3 * step + head * W
    ka, kb = _turned(base + step, cos, sin, keys, length, step, H)
    there = (keys < length)[:, None] & (whole >= 0)[None, :]
    across = keys[:, None] * 3 * step + whole[None, :]
    v = tl.load(base + 2 * step + across, mask=there, other=0.0)
    kind = v.dtype
    dv = tl.zeros([L, W], tl.float32)
    dka, dkb = tl.zeros([L, H], tl.float32), tl.zeros([L, H], tl.float32)
    for start in range(0, L, Q):
        rows = start + tl.arange(0, Q)
        qa, qb = _turned(base, cos, sin, rows, length, step, H)
        p = _weights(qa, qb, ka, kb, keys, length, scale)
        inside = (rows < length)[:, None] & (whole >= 0)[None, :]
        g = tl.load(grad + (b * length + rows[:, None]) * step + head * W + whole[None, :], mask=inside, other=0.0)
        dv += tl.dot(tl.trans(p.to(kind)), g)
        dp = tl.dot(g, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(kind)
        _put_back(to, tl.dot(ds, ka), tl.dot(ds, kb), cos, sin, rows, length, step, H)
        dka += tl.dot(tl.trans(ds), qa)
        dkb += tl.dot(tl.trans(ds), qb)
    _put_back(to + step, dka, dkb, cos, sin, keys, length, step, H)
    tl.store(to + 2 * step + across, dv.to(kind), mask=there)
