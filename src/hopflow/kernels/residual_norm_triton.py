"""Triton kernels between two branches of a block: residual sum and layer norm, forward and backward.

A pass reads and writes each row once. Dropout is a hash of the position, the same in both passes: no mask is stored,
and a hash costs a fraction of a random generator's rounds.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD, BACKWARD = (32, 2, 4), (64, 1, 4)
"""Rows of a sequence per program, rows at once, and warps. The gradients of gate, scale and shift are summed over the
rows of a program and written once."""
STAGES = 4
"""Pipeline stages of the loop over rows: later rows are loaded while one is computed."""


def forward(
    x: Tensor,
    update: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    offset: float,
    seed: Tensor | None,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (B, L, D), its norm·(offset + scale) + shift, and mean and 1/deviation of each row (B, L, 2)."""
    b, length, width = x.shape
    out, normed_out = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    stats = torch.empty(b, length, 2, dtype=torch.float32, device=x.device)
    per_program, rows, warps = FORWARD
    arguments = (x, update, gate, scale, shift, seed, out, normed_out, stats, length, width)
    numbers = _row_stride(gate), _row_stride(scale), _row_stride(shift), offset, *_dropout_numbers(dropout), eps
    shape = {"DROP": seed is not None, "N": per_program, "R": rows, "D": _size(width), "S": STAGES}
    with torch.cuda.device_of(x):  # a kernel starts on the current device, whatever device its tensors are on
        _forward[(b * triton.cdiv(length, per_program),)](*arguments, *numbers, **shape, num_warps=warps)
    return out, normed_out, stats


def backward(
    grad: Tensor,
    grad_normed: Tensor,
    out: Tensor,
    update: Tensor,
    gate: Tensor,
    scale: Tensor,
    stats: Tensor,
    offset: float,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and update, and those of gate, scale and shift (3, B, D)."""
    b, length, width = out.shape
    grad_x, grad_update = torch.empty_like(out), torch.empty_like(update)
    per_program, rows, warps = BACKWARD
    parts = triton.cdiv(length, per_program)
    sums = torch.empty(3, b, parts, width, dtype=torch.float32, device=out.device)
    arguments = (
        grad,
        grad_normed,
        out,
        update,
        gate,
        scale,
        stats,
        seed,
        grad_x,
        grad_update,
        sums,
        length,
        width,
        parts,
    )
    numbers = sums.stride(0), _row_stride(gate), _row_stride(scale), offset, *_dropout_numbers(dropout)
    shape = {"DROP": seed is not None, "N": per_program, "R": rows, "D": _size(width), "S": STAGES}
    with torch.cuda.device_of(out):
        _backward[(b * parts,)](*arguments, *numbers, **shape, num_warps=warps)
    return grad_x, grad_update, sums.sum(2)


def _row_stride(per_sequence: Tensor) -> int:
    """Stride between the numbers of two sequences; 0 if all sequences share them."""
    return per_sequence.stride(0) if len(per_sequence) > 1 else 0


def _size(width: int) -> int:
    return int(triton.next_power_of_2(width))


def _dropout_numbers(dropout: float) -> tuple[int, float]:
    """The 24-bit threshold below which a number is dropped, and the factor of the others."""
    return round(dropout * 2**24), 1 / (1 - dropout)


@triton.jit
def _load_shared(sequence, column, in_row):  # type: ignore[no-untyped-def]
    """Numbers that all rows of a sequence share, in float32."""
    return tl.load(sequence + column, mask=in_row, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _keep(seed, row, column, threshold):  # type: ignore[no-untyped-def]
    """Whether dropout keeps a number: a hash of its column, mixed with two keys of its row."""
    key = tl.load(seed)
    a = _hash((row.to(tl.uint32) ^ key.to(tl.uint32)), (key >> 32).to(tl.uint32))
    b = _hash(a ^ 0x9E3779B9, key.to(tl.uint32))
    return (_hash(column.to(tl.uint32)[None, :] ^ a[:, None], b[:, None]) >> 8).to(tl.int32) >= threshold


@triton.jit
def _hash(x, key):  # type: ignore[no-untyped-def]
    """A hash: every bit depends on every bit of x and key."""
    x = x * 0x9E3779B1 + key
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, update, gate, scale, shift, seed, out, normed_out, stats, length, width,
    gate_step, scale_step, shift_step, offset, threshold, factor_kept, eps,
    DROP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(length, N)
    b, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    column = tl.arange(0, D)
    in_row = column < width
    gate_row = _load_shared(gate + b * gate_step, column, in_row)
    factor = offset + _load_shared(scale + b * scale_step, column, in_row)
    shift_row = _load_shared(shift + b * shift_step, column, in_row)
    first = b * length * width
    for start in tl.range(part * N, tl.minimum(part * N + N, length), R, num_stages=S):
        position = start + tl.arange(0, R)
        inside = (position < length)[:, None] & in_row[None, :]
        at = position[:, None].to(tl.int64) * width + column[None, :]
        y = tl.load(update + first + at, mask=inside, other=0.0).to(tl.float32)
        residual = tl.load(x + first + at, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            y = tl.where(_keep(seed, b * length + position, column, threshold), y * factor_kept, 0.0)
        total = (residual + y * gate_row).to(x.dtype.element_ty)
        tl.store(out + first + at, total, mask=inside)
        total = total.to(tl.float32)
        mean = tl.sum(total, 1) / width
        centred = tl.where(inside, total - mean[:, None], 0.0)
        per_deviation = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
        normed = centred * per_deviation[:, None] * factor + shift_row
        tl.store(normed_out + first + at, normed.to(normed_out.dtype.element_ty), mask=inside)
        row = stats + 2 * (b * length + position)
        tl.store(row, mean, mask=position < length)
        tl.store(row + 1, per_deviation, mask=position < length)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad, grad_normed, out, update, gate, scale, stats, seed, grad_x, grad_update, sums, length, width, parts, stride,
    gate_step, scale_step, offset, threshold, factor_kept,
    DROP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    b, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    column = tl.arange(0, D)
    in_row = column < width
    gate_row = _load_shared(gate + b * gate_step, column, in_row)
    factor = offset + _load_shared(scale + b * scale_step, column, in_row)
    sum_gate, sum_scale, sum_shift = tl.zeros([D], tl.float32), tl.zeros([D], tl.float32), tl.zeros([D], tl.float32)
    first = b * length * width
    for start in tl.range(part * N, tl.minimum(part * N + N, length), R, num_stages=S):
        position = start + tl.arange(0, R)
        inside = (position < length)[:, None] & in_row[None, :]
        at = position[:, None].to(tl.int64) * width + column[None, :]
        g = tl.load(grad_normed + first + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(out + first + at, mask=inside, other=0.0).to(tl.float32)
        grad_sum = tl.load(grad + first + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(update + first + at, mask=inside, other=0.0).to(tl.float32)
        row = stats + 2 * (b * length + position)
        mean = tl.load(row, mask=position < length, other=0.0)[:, None]
        per_deviation = tl.load(row + 1, mask=position < length, other=0.0)[:, None]
        normed = tl.where(inside, (total - mean) * per_deviation, 0.0)
        sum_shift += tl.sum(g, 0)
        sum_scale += tl.sum(g * normed, 0)
        g *= factor
        correction = (tl.sum(g, 1) / width)[:, None] + normed * (tl.sum(g * normed, 1) / width)[:, None]
        grad_total = grad_sum + (g - correction) * per_deviation
        tl.store(grad_x + first + at, grad_total.to(grad_x.dtype.element_ty), mask=inside)
        grad_branch = grad_total
        if DROP:
            grad_branch = tl.where(_keep(seed, b * length + position, column, threshold), grad_total * factor_kept, 0.0)
        sum_gate += tl.sum(y * grad_branch, 0)
        tl.store(grad_update + first + at, (grad_branch * gate_row).to(grad_update.dtype.element_ty), mask=inside)
    to = sums + tl.program_id(0).to(tl.int64) * width + column
    tl.store(to, sum_gate, mask=in_row)
    tl.store(to + stride, sum_scale, mask=in_row)
    tl.store(to + stride + stride, sum_shift, mask=in_row)  # 2 * stride may exceed 32 bits
