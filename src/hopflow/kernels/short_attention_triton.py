"""Triton kernels of attention over short sequences, rotary embedding included: a program holds all of a head.

Queries, keys and values are read once and the result is written once, forward and backward. Attention weights (L × L)
and rotated queries and keys are never written to memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, WARPS, REGISTERS = 64, 4, 128
"""Forward: queries per iteration, warps, and registers per thread, so that four programs share a multiprocessor and one
computes while another waits for memory."""
HEADS_PER_PROGRAM, BACKWARD_WARPS = 6, 8
"""Backward: heads per program, of which the next is loaded while one is computed, and warps."""
SHARED_MEMORY = 163 << 10
"""Bytes of shared memory that loading ahead needs."""
LOG2E = 1.4426950408889634


def forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, L, 3, H, W) and the rotation (L, W/2) each -> (B, L, H·W)."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty(b, length, heads * width, dtype=qkv.dtype, device=qkv.device)
    arguments = (qkv, cos, sin, out, length, heads, LOG2E * width**-0.5)
    shape = {**_shape(length, width), "Q": min(QUERIES, _size(length))}
    limits = {} if torch.version.hip else {"maxnreg": REGISTERS}
    with torch.cuda.device_of(qkv):  # a kernel starts on the current device, whatever device its tensors are on
        _forward[(b * heads,)](*arguments, **shape, num_warps=WARPS, **limits)
    return out


def forward_at(queries: Tensor, keys_values: Tensor, row: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Single queries (m, H, W), each at a position of a row of keys and values (B, L, 2, H, W) -> (m, H·W)."""
    m, heads, width = queries.shape
    length = keys_values.shape[1]
    out = torch.empty(m, heads * width, dtype=queries.dtype, device=queries.device)
    arguments = (queries, keys_values, row, position, cos, sin, out, length, heads, LOG2E * width**-0.5)
    with torch.cuda.device_of(queries):
        _forward_at[(m * heads,)](*arguments, **_shape(length, width), num_warps=WARPS)
    return out


def backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of qkv, from that of the output of `forward`."""
    b, length, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    heads_per_program = max(n for n in range(1, HEADS_PER_PROGRAM + 1) if heads % n == 0)
    shared_memory = getattr(torch.cuda.get_device_properties(qkv.device), "shared_memory_per_block_optin", 0)
    arguments = (grad, qkv, cos, sin, out, length, heads, width**-0.5, LOG2E * width**-0.5)
    shape = {**_shape(length, width), "N": heads_per_program, "STAGES": 2 if shared_memory >= SHARED_MEMORY else 1}
    with torch.cuda.device_of(qkv):
        _backward[(b * heads // heads_per_program,)](*arguments, **shape, num_warps=BACKWARD_WARPS)
    return out


def _shape(length: int, width: int) -> dict[str, int | bool]:
    return {"L": _size(length), "W": width, "H": width // 2, "FULL": _size(length) == length}


def _size(length: int) -> int:
    return int(triton.next_power_of_2(max(16, length)))


@triton.jit  # type: ignore[untyped-decorator]
def _load(at, inside, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load with zeros outside; without a mask if everything is inside."""
    return tl.load(at) if FULL else tl.load(at, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(at, x, inside, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    if FULL:
        tl.store(at, x.to(at.dtype.element_ty))
    else:
        tl.store(at, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(a, b, c, s):  # type: ignore[no-untyped-def]
    """Halves (rows, W/2) of queries or keys, rotated by their positions and joined: (rows, W)."""
    dtype = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    # Sums of pairs and not a·c - b·s: the compiler does not move a change of layout past a sum. Otherwise it would
    # change the layout of each of a, b, c and s, through shared memory.
    first, second = tl.sum(tl.join(a * c, -(b * s)), 2), tl.sum(tl.join(b * c, a * s), 2)
    both = tl.join(first.to(dtype), second.to(dtype))
    return tl.reshape(tl.permute(both, (0, 2, 1)), (a.shape[0], 2 * a.shape[1]))


@triton.jit  # type: ignore[untyped-decorator]
def _store_rotated_back(to, x, at, c, s, inside, H: tl.constexpr, FULL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the gradient (rows, W) of rotated queries or keys, rotated back."""
    a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, H)), (0, 2, 1)))
    a, b = a.to(tl.float32), b.to(tl.float32)
    _store(to + at, a * c + b * s, inside, FULL)
    _store(to + at + H, b * c - a * s, inside, FULL)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    qkv, cos, sin, out, length, heads, power,
    L: tl.constexpr, Q: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    b, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    keys, half, columns = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W  # stride between queries, keys and values
    base = qkv + b * length * 3 * step + head * W
    inside_keys = (keys < length)[:, None]
    angle, at = keys[:, None] * H + half[None, :], keys[:, None] * 3 * step + half[None, :]
    ka, kb = _load(base + step + at, inside_keys, FULL), _load(base + step + at + H, inside_keys, FULL)
    c, s = _load(cos + angle, inside_keys, FULL), _load(sin + angle, inside_keys, FULL)
    v = _load(base + 2 * step + keys[:, None] * 3 * step + columns[None, :], inside_keys, FULL)
    k = _rotated(ka, kb, c, s)
    for start in tl.static_range(0, L, Q):
        rows = start + tl.arange(0, Q)
        inside = (rows < length)[:, None]
        angle, at = rows[:, None] * H + half[None, :], rows[:, None] * 3 * step + half[None, :]
        qa, qb = _load(base + at, inside, FULL), _load(base + at + H, inside, FULL)
        q = _rotated(qa, qb, _load(cos + angle, inside, FULL), _load(sin + angle, inside, FULL))
        x = tl.dot(q, tl.trans(k))
        if not FULL:
            x = tl.where((keys < length)[None, :], x, -float("inf"))
        p = tl.exp2(x * power - (tl.max(x, 1) * power)[:, None])
        o = tl.dot(p.to(v.dtype), v) * (1 / tl.sum(p, 1))[:, None]
        _store(out + (b * length + rows[:, None]) * step + head * W + columns[None, :], o, inside, FULL)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_at(  # type: ignore[no-untyped-def]
    queries, keys_values, row, position, cos, sin, out, length, heads, power,
    L: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    m, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    i, half, columns = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step, inside_keys = heads * W, (i < length)[:, None]
    keys = keys_values + (tl.load(row + m).to(tl.int64) * length + i[:, None]) * 2 * step + head * W
    ka = _load(keys + half[None, :], inside_keys, FULL).to(tl.float32)
    kb = _load(keys + H + half[None, :], inside_keys, FULL).to(tl.float32)
    v = _load(keys + step + columns[None, :], inside_keys, FULL).to(tl.float32)
    query, angle = queries + m * step + head * W + half, tl.load(position + m) * H + half
    qa, qb = tl.load(query).to(tl.float32)[None, :], tl.load(query + H).to(tl.float32)[None, :]
    c, s = tl.load(cos + angle)[None, :], tl.load(sin + angle)[None, :]
    qa, qb = qa * c - qb * s, qb * c + qa * s
    angles = i[:, None] * H + half[None, :]
    c, s = _load(cos + angles, inside_keys, FULL), _load(sin + angles, inside_keys, FULL)
    x = tl.sum(qa * (ka * c - kb * s) + qb * (kb * c + ka * s), 1)
    if not FULL:
        x = tl.where(i < length, x, -float("inf"))
    p = tl.exp2((x - tl.max(x, 0)) * power)
    o = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(out + m * step + head * W + columns, o.to(out.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, cos, sin, out, length, heads, scale, power,
    L: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, W: tl.constexpr, H: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    keys, half, columns = tl.arange(0, L), tl.arange(0, H), tl.arange(0, W)
    step = heads * W
    inside_keys = (keys < length)[:, None]
    angle, at = keys[:, None] * H + half[None, :], keys[:, None] * 3 * step + half[None, :]
    value_at = 2 * step + keys[:, None] * 3 * step + columns[None, :]
    c, s = _load(cos + angle, inside_keys, FULL), _load(sin + angle, inside_keys, FULL)
    for i in tl.range(0, N, num_stages=STAGES):
        b, head = (tl.program_id(0) * N + i).to(tl.int64) // heads, (tl.program_id(0) * N + i) % heads
        base, to = qkv + b * length * 3 * step + head * W, out + b * length * 3 * step + head * W
        ka, kb = _load(base + step + at, inside_keys, FULL), _load(base + step + at + H, inside_keys, FULL)
        qa, qb = _load(base + at, inside_keys, FULL), _load(base + at + H, inside_keys, FULL)
        g = _load(grad + b * length * step + head * W + keys[:, None] * step + columns[None, :], inside_keys, FULL)
        v = _load(base + value_at, inside_keys, FULL)
        dtype = v.dtype
        k, q = _rotated(ka, kb, c, s), _rotated(qa, qb, c, s)
        x = tl.dot(q, tl.trans(k))
        if not FULL:
            x = tl.where((keys < length)[None, :], x, -float("inf"))
        p = tl.exp2(x * power - (tl.max(x, 1) * power)[:, None])
        p *= (1 / tl.sum(p, 1))[:, None]
        _store(to + value_at, tl.dot(tl.trans(p.to(dtype)), g), inside_keys, FULL)
        dp = tl.dot(g, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None])).to(dtype)
        dq, dk = tl.dot(ds, k), tl.dot(tl.trans(ds), q)
        _store_rotated_back(to, (dq * scale).to(dtype), at, c, s, inside_keys, H, FULL)
        _store_rotated_back(to + step, (dk * scale).to(dtype), at, c, s, inside_keys, H, FULL)
