"""Triton kernel of `divergences`: the divergence of each row of logits. Imported only on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
"""Logits of a row that are read at once, eight per thread."""


def row_divergence(
    logits: Tensor, p0: Tensor, xt: Tensor, x1: Tensor, shift: Tensor, coefficients: Tensor
) -> tuple[Tensor, ...]:
    """For each row: 1 - P(xt), P(xt), log P(x1) if x1 ≠ xt, and the divergence over all tokens but xt and x1.

    It is the divergence of c = C·p0 and v = A·P + W·p0 with W = W0 + W1·(1-P(xt)) and v - c = A·P + D·p0, D = D0 +
    D1·(1-P(xt)) + D2·P(xt). The columns of `coefficients` are A, C, W0, W1, D0, D1, D2. `shift` is added to the logit
    of xt; if it is inf, P is δ_xt.
    """
    out = torch.empty(4, len(logits), dtype=torch.float32, device=logits.device)
    arguments = (logits, p0.float(), xt.int(), x1.int(), shift.float(), coefficients.float().contiguous(), out)
    if len(logits):
        sizes = logits.stride(0), *logits.shape
        with torch.cuda.device_of(logits):  # a kernel starts on the current device, whatever device its tensors are on
            _row_divergence[(len(logits),)](*arguments, *sizes, BLOCK=BLOCK, num_warps=WARPS)
    return out.unbind(0)


@triton.jit  # type: ignore[untyped-decorator]
def _row_divergence(  # type: ignore[no-untyped-def]
    logits, p0, xt, x1, shift, coefficients, out, stride, n, width, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    token, to, added = tl.load(xt + row), tl.load(x1 + row), tl.load(shift + row)
    top = tl.full([BLOCK], -1e30, tl.float32)  # finite, because -inf - (-inf) is NaN
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        j = start + tl.arange(0, BLOCK)
        x = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32)
        x = tl.where(j != token, x, -float("inf"))
        higher = tl.maximum(top, x)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    highest = tl.max(top, 0)
    others = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    at = tl.where(token < width, token, 0)
    at_xt = tl.where(token < width, tl.load(here + at).to(tl.float32), -float("inf"))
    certain = added == float("inf")
    gap = tl.where(certain, -float("inf"), others - at_xt - tl.where(certain, 0.0, added))
    e = tl.exp(-tl.abs(gap))
    more, less = 1 / (1 + e), e / (1 + e)
    other, pt = tl.where(gap >= 0, more, less), tl.where(gap >= 0, less, more)
    log_other = tl.minimum(gap, 0.0) - tl.log(1 + e)
    scale = tl.where(log_other == -float("inf"), -float("inf"), log_other - others)  # log P = logit + scale
    at_x1 = tl.load(here + to).to(tl.float32)
    log_p1 = tl.where(at_x1 == -float("inf"), -float("inf"), at_x1 + scale)

    row_coefficients = coefficients + 7 * row
    a, c_noise = tl.load(row_coefficients), tl.load(row_coefficients + 1)
    v_noise = tl.load(row_coefficients + 2) + tl.load(row_coefficients + 3) * other
    d_noise = tl.load(row_coefficients + 4) + tl.load(row_coefficients + 5) * other + tl.load(row_coefficients + 6) * pt
    summed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):  # a second pass, from the cache
        j = start + tl.arange(0, BLOCK)
        log_p = tl.load(here + j, mask=j < width, other=-float("inf")).to(tl.float32) + scale
        q = tl.load(p0 + j, mask=j < width, other=0.0)
        p = a * tl.exp(log_p)
        c, v, difference = c_noise * q, p + v_noise * q, p + d_noise * q
        # as `velocities.divergence`
        some = tl.where(c > 0, c, 1.0)
        g = difference / some
        small = tl.abs(g) < 0.02
        near = tl.where(small, g, 0.0)
        tail = 1 / 4 - near * (1 / 5 - near * (1 / 6 - near / 7))
        series = near * near * (1 / 2 - near * (1 / 3 - near * tail))
        # without noise v may underflow, but its logarithm does not
        log_v = tl.where(v_noise * q > 0, tl.log(tl.where(v > 0, v, 1.0)), tl.log(a) + log_p)
        far = difference - some * (log_v - tl.log(some))
        term = tl.where(c > 0, tl.where(small, some * series, far), v)
        summed += tl.where((j != token) & (j != to) & (j < width), term, 0.0)
    result = out + row
    tl.store(result, other)
    tl.store(result + n, pt)
    tl.store(result + n + n, log_p1)  # 3 * n may exceed 32 bits
    tl.store(result + n + n + n, tl.sum(summed, 0))
