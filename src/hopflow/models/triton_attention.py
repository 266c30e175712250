"""Triton kernels of attention over short sequences, rotary positions included: a program holds all of a head.

Queries, keys and values are read once and what they give is written once, forward and back; nothing of size L × L, and
no turned query or key, ever leaves the chip.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, WARPS, REGISTERS = 64, 4, 128
"""Forward: queries that are taken at once, warps, and registers of a thread, so that four programs share a
multiprocessor and one works while another waits."""
TOGETHER, WARPS_BACK = 6, 8
"""Back: heads that a program takes one after another, the next being read meanwhile, and warps."""
ROOM = 163 << 10
"""Bytes of shared memory that this reading ahead needs."""
LOG2E = 1.4426950408889634


def forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, L, 3, H, W) and the rotation (L, W/2) each -> (B, L, H·W)."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty(b, length, heads * width, dtype=qkv.dtype, device=qkv.device)
    arguments = (qkv, cos, sin, out, length, heads, LOG2E * width**-0.5)
    shape = {**_shape(length, width), "Q": min(QUERIES, _size(length))}
    few = {} if torch.version.hip else {"maxnreg": REGISTERS}
    with torch.cuda.device_of(qkv):  # a kernel starts on the current device, wherever its tensors are
        _forward[(b * heads,)](*arguments, **shape, num_warps=WARPS, **few)
    return out


def glance(asked: Tensor, offered: Tensor, row: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Single queries (m, H, W), each at its position of a row of keys and values (B, L, 2, H, W) -> (m, H·W)."""
    m, heads, width = asked.shape
    length = offered.shape[1]
    out = torch.empty(m, heads * width, dtype=asked.dtype, device=asked.device)
    arguments = (asked, offered, row, position, cos, sin, out, length, heads, LOG2E * width**-0.5)
    with torch.cuda.device_of(asked):
        _glance[(m * heads,)](*arguments, **_shape(length, width), num_warps=WARPS)
    return out


def backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of qkv, from that of what `forward` gave."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    together = max(n for n in range(1, TOGETHER + 1) if heads % n == 0)
    room = getattr(torch.cuda.get_device_properties(qkv.device), "shared_memory_per_block_optin", 0)
    arguments = (grad, qkv, cos, sin, out, length, heads, width**-0.5, LOG2E * width**-0.5)
    shape = {**_shape(length, width), "N": together, "STAGES": 2 if room >= ROOM else 1}
    with torch.cuda.device_of(qkv):
        _backward[(b * heads // together,)](*arguments, **shape, num_warps=WARPS_BACK)
    return out


def _shape(length: int, width: int) -> dict[str, int | bool]:
    return {"L": _size(length), "W": width, "H": width // 2, "FULL": _size(length) == length}


def _size(length: int) -> int:
    return int(triton.next_power_of_2(max(16, length)))


@triton.jit  # type: ignore[untyped-decorator]
def _read(at, inside, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    """What is inside, and zeros; without a mask where all of it is."""
    return tl.load(at) if FULL else tl.load(at, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _write(at, x, inside, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    if FULL:
        tl.store(at, x.to(at.dtype.element_ty))
    else:
        tl.store(at, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _turned(a, b, c, s):  # type: ignore[no-untyped-def]
    """Halves (rows, W/2) of queries or keys, turned by their positions and put side by side: (rows, W)."""
    kind = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    # Sums of pairs and not a·c - b·s: past a sum the compiler does not move a change of layout, which would otherwise
    # be one of each of a, b, c and s, through shared memory.
    first, second = tl.sum(tl.join(a * c, -(b * s)), 2), tl.sum(tl.join(b * c, a * s), 2)
    both = tl.join(first.to(kind), second.to(kind))
    return tl.reshape(tl.permute(both, (0, 2, 1)), (a.shape[0], 2 * a.shape[1]))


@triton.jit  # type: ignore[untyped-decorator]
def _put_back(to, x, at, c, s, inside, H: tl.constexpr, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient (rows, W) of what was turned, turned back."""
    a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, H)), (0, 2, 1)))
    a, b = a.to(tl.float32), b.to(tl.float32)
    _write(to + at, a * c + b * s, inside, FULL)
    _write(to + at + H, b * c - a * s, inside, FULL)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, cos, sin, out, length, heads, power,
    L: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    keys, half, whole = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W  # from one of queries, keys and values to the next
    base = qkv + b * length * 3 * step + head * W
    there = (keys < length)[:, None]
    turn, at = keys[:, None] * H + half[None, :], keys[:, None] * 3 * step + half[None, :]
    ka, kb = _read(base + step + at, there, FULL), _read(base + step + at + H, there, FULL)
    c, s = _read(cos + turn, there, FULL), _read(sin + turn, there, FULL)
    v = _read(base + 2 * step + keys[:, None] * 3 * step + whole[None, :], there, FULL)
    k = _turned(ka, kb, c, s)
    for start in tl.static_range(0, L, Q):
        rows = start + tl.arange(0, Q)
        inside = (rows < length)[:, None]
        turn, at = rows[:, None] * H + half[None, :], rows[:, None] * 3 * step + half[None, :]
        qa, qb = _read(base + at, inside, FULL), _read(base + at + H, inside, FULL)
        q = _turned(qa, qb, _read(cos + turn, inside, FULL), _read(sin + turn, inside, FULL))
        x = tl.dot(q, tl.trans(k))
        if not FULL:
            x = tl.where((keys < length)[None, :], x, -float("inf"))
        p = tl.exp2(x * power - (tl.max(x, 1) * power)[:, None])
        o = tl.dot(p.to(v.dtype), v) * (1 / tl.sum(p, 1))[:, None]
        _write(out + (b * length + rows[:, None]) * step + head * W + whole[None, :], o, inside, FULL)


@triton.jit  # type: ignore[untyped-decorator]
def _glance(  # type: ignore[no-untyped-def]
    asked, offered, row, position, cos, sin, out, length, heads, power,
    L: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    m, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    i, half, whole = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step, there = heads * W, (i < length)[:, None]
    keys = offered + (tl.load(row + m).to(tl.int64) * length + i[:, None]) * 2 * step + head * W
    ka = _read(keys + half[None, :], there, FULL).to(tl.float32)
    kb = _read(keys + H + half[None, :], there, FULL).to(tl.float32)
    v = _read(keys + step + whole[None, :], there, FULL).to(tl.float32)
    mine, turn = asked + m * step + head * W + half, tl.load(position + m) * H + half
    qa, qb = tl.load(mine).to(tl.float32)[None, :], tl.load(mine + H).to(tl.float32)[None, :]
    c, s = tl.load(cos + turn)[None, :], tl.load(sin + turn)[None, :]
    qa, qb = qa * c - qb * s, qb * c + qa * s
    turns = i[:, None] * H + half[None, :]
    c, s = _read(cos + turns, there, FULL), _read(sin + turns, there, FULL)
    x = tl.sum(qa * (ka * c - kb * s) + qb * (kb * c + ka * s), 1)
    if not FULL:
        x = tl.where(i < length, x, -float("inf"))
    p = tl.exp2((x - tl.max(x, 0)) * power)
    o = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(out + m * step + head * W + whole, o.to(out.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, cos, sin, out, length, heads, scale, power,
    L: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    keys, half, whole = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W
    there = (keys < length)[:, None]
    turn, at = keys[:, None] * H + half[None, :], keys[:, None] * 3 * step + half[None, :]
    across = 2 * step + keys[:, None] * 3 * step + whole[None, :]
    c, s = _read(cos + turn, there, FULL), _read(sin + turn, there, FULL)
    for i in tl.range(0, N, num_stages=STAGES):
        b, head = (tl.program_id(0) * N + i).to(tl.int64) // heads, (tl.program_id(0) * N + i) % heads
        base, to = qkv + b * length * 3 * step + head * W, out + b * length * 3 * step + head * W
        ka, kb = _read(base + step + at, there, FULL), _read(base + step + at + H, there, FULL)
        qa, qb = _read(base + at, there, FULL), _read(base + at + H, there, FULL)
        g = _read(grad + b * length * step + head * W + keys[:, None] * step + whole[None, :], there, FULL)
        v = _read(base + across, there, FULL)
        kind = v.dtype
        k, q = _turned(ka, kb, c, s), _turned(qa, qb, c, s)
        x = tl.dot(q, tl.trans(k))
        if not FULL:
            x = tl.where((keys < length)[None, :], x, -float("inf"))
        p = tl.exp2(x * power - (tl.max(x, 1) * power)[:, None])
        p *= (1 / tl.sum(p, 1))[:, None]
        _write(to + across, tl.dot(tl.trans(p.to(kind)), g), there, FULL)
        dp = tl.dot(g, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None])).to(kind)
        dq, dk = tl.dot(ds, k), tl.dot(tl.trans(ds), q)
        _put_back(to, (dq * scale).to(kind), at, c, s, there, H, FULL)
        _put_back(to + step, (dk * scale).to(kind), at, c, s, there, H, FULL)
