"""Triton kernels of what lies between two branches: add what one gave, norm the sum for the next; and back.

A pass reads and writes each row once. Whether a number is dropped is hashed from where it is, forward and back: nothing
is kept, and a hash costs a fraction of a random generator's rounds.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD, BACKWARD = (32, 2, 4), (64, 1, 4)
"""Rows of a sequence that a program passes over, of which so many at once, and warps. What the gradients of gate,
scale and shift sum over these rows is written once."""
STAGES = 4
"""Of a pass over rows: later ones are on their way while one is being worked on."""


def forward(
    x: Tensor,
    given: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    lift: float,
    seed: Tensor | None,
    dropout: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (B, L, D), its norm·(lift + scale) + shift, and each row's mean and reciprocal deviation (B, L, 2)."""
    b, length, width = x.shape
    out, seen = torch.empty_like(x), torch.empty_like(x, dtype=kind)
    stats = torch.empty(b, length, 2, dtype=torch.float32, device=x.device)
    passed, rows, warps = FORWARD
    arguments = (x, given, gate, scale, shift, seed, out, seen, stats, length, width)
    numbers = _step(gate), _step(scale), _step(shift), lift, *_chances(dropout), eps
    shape = {"DROP": seed is not None, "N": passed, "R": rows, "D": _size(width), "S": STAGES}
    with torch.cuda.device_of(x):  # a kernel starts on the current device, wherever its tensors are
        _forward[(b * triton.cdiv(length, passed),)](*arguments, *numbers, **shape, num_warps=warps)
    return out, seen, stats


def backward(
    grad: Tensor,
    grad_seen: Tensor,
    out: Tensor,
    given: Tensor,
    gate: Tensor,
    scale: Tensor,
    stats: Tensor,
    lift: float,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and given, and those of gate, scale and shift (3, B, D)."""
    b, length, width = out.shape
    to_x, to_given = torch.empty_like(out), torch.empty_like(given)
    passed, rows, warps = BACKWARD
    parts = triton.cdiv(length, passed)
    sums = torch.empty(3, b, parts, width, dtype=torch.float32, device=out.device)
    arguments = (grad, grad_seen, out, given, gate, scale, stats, seed, to_x, to_given, sums, length, width, parts)
    numbers = sums.stride(0), _step(gate), _step(scale), lift, *_chances(dropout)
    shape = {"DROP": seed is not None, "N": passed, "R": rows, "D": _size(width), "S": STAGES}
    with torch.cuda.device_of(out):
        _backward[(b * parts,)](*arguments, *numbers, **shape, num_warps=warps)
    return to_x, to_given, sums.sum(2)


def _step(per_sequence: Tensor) -> int:
    """From one sequence's numbers to the next's; 0 where all share them."""
    return per_sequence.stride(0) if len(per_sequence) > 1 else 0


def _size(width: int) -> int:
    return int(triton.next_power_of_2(width))


def _chances(dropout: float) -> tuple[int, float]:
    """Below which of 2^24 a number is dropped, and by what the others grow."""
    return round(dropout * 2**24), 1 / (1 - dropout)


@triton.jit
def _of(sequence, column, there):  # type: ignore[no-untyped-def]
    """Numbers that all rows of a sequence share."""
    return tl.load(sequence + column, mask=there, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _kept(seed, row, column, least):  # type: ignore[no-untyped-def]
    """Whether a number stays: two keys of its row, and a hash of its column that both are mixed into."""
    key = tl.load(seed)
    a = _mixed((row.to(tl.uint32) ^ key.to(tl.uint32)), (key >> 32).to(tl.uint32))
    b = _mixed(a ^ 0x9E3779B9, key.to(tl.uint32))
    return (_mixed(column.to(tl.uint32)[None, :] ^ a[:, None], b[:, None]) >> 8).to(tl.int32) >= least


@triton.jit
def _mixed(x, key):  # type: ignore[no-untyped-def]
    """Every bit depends on every bit of both."""
    x = x * 0x9E3779B1 + key
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, given, gate, scale, shift, seed, out, seen, stats, length, width,
    gate_step, scale_step, shift_step, lift, least, grown, eps,
    DROP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(length, N)
    b, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    column = tl.arange(0, D)
    there = column < width
    opened = _of(gate + b * gate_step, column, there)
    factor = lift + _of(scale + b * scale_step, column, there)
    added = _of(shift + b * shift_step, column, there)
    first = b * length * width
    for start in tl.range(part * N, tl.minimum(part * N + N, length), R, num_stages=S):
        position = start + tl.arange(0, R)
        inside = (position < length)[:, None] & there[None, :]
        at = position[:, None] * width + column[None, :]
        y = tl.load(given + first + at, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(x + first + at, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            y = tl.where(_kept(seed, b * length + position, column, least), y * grown, 0.0)
        total = (before + y * opened).to(x.dtype.element_ty)
        tl.store(out + first + at, total, mask=inside)
        total = total.to(tl.float32)
        mean = tl.sum(total, 1) / width
        centred = tl.where(inside, total - mean[:, None], 0.0)
        per_deviation = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
        normed = centred * per_deviation[:, None] * factor + added
        tl.store(seen + first + at, normed.to(seen.dtype.element_ty), mask=inside)
        row = stats + 2 * (b * length + position)
        tl.store(row, mean, mask=position < length)
        tl.store(row + 1, per_deviation, mask=position < length)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, grad_seen, out, given, gate, scale, stats, seed, to_x, to_given, sums, length, width, parts, apart,
    gate_step, scale_step, lift, least, grown,
    DROP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    column = tl.arange(0, D)
    there = column < width
    opened = _of(gate + b * gate_step, column, there)
    factor = lift + _of(scale + b * scale_step, column, there)
    for_gate, for_scale, for_shift = tl.zeros([D], tl.float32), tl.zeros([D], tl.float32), tl.zeros([D], tl.float32)
    first = b * length * width
    for start in tl.range(part * N, tl.minimum(part * N + N, length), R, num_stages=S):
        position = start + tl.arange(0, R)
        inside = (position < length)[:, None] & there[None, :]
        at = position[:, None] * width + column[None, :]
        g = tl.load(grad_seen + first + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(out + first + at, mask=inside, other=0.0).to(tl.float32)
        straight = tl.load(grad + first + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(given + first + at, mask=inside, other=0.0).to(tl.float32)
        row = stats + 2 * (b * length + position)
        mean = tl.load(row, mask=position < length, other=0.0)[:, None]
        per_deviation = tl.load(row + 1, mask=position < length, other=0.0)[:, None]
        normed = tl.where(inside, (total - mean) * per_deviation, 0.0)
        for_shift += tl.sum(g, 0)
        for_scale += tl.sum(g * normed, 0)
        g *= factor
        about = (tl.sum(g, 1) / width)[:, None] + normed * (tl.sum(g * normed, 1) / width)[:, None]
        whole = straight + (g - about) * per_deviation
        tl.store(to_x + first + at, whole.to(to_x.dtype.element_ty), mask=inside)
        back = whole
        if DROP:
            back = tl.where(_kept(seed, b * length + position, column, least), whole * grown, 0.0)
        for_gate += tl.sum(y * back, 0)
        tl.store(to_given + first + at, (back * opened).to(to_given.dtype.element_ty), mask=inside)
    to = sums + tl.program_id(0).to(tl.int64) * width + column
    tl.store(to, for_gate, mask=there)
    tl.store(to + apart, for_scale, mask=there)
    tl.store(to + 2 * apart, for_shift, mask=there)
