"""Residual sum and layer norm on a GPU: x + gate·dropout(update), and its norm, as one custom operation."""

import torch
from torch import Tensor

from . import switch
from .support import HALF_TYPES, has_kernels

MAX_WIDTH = 4096
"""Numbers of a row that one program holds."""


def supports(x: Tensor) -> bool:
    """Whether the kernels support a residual stream (B, L, D) of this width, type and device."""
    return switch.current.residual_norm and has_kernels(x) and x.dtype in HALF_TYPES and x.shape[-1] <= MAX_WIDTH


def residual_norm(
    x: Tensor,
    update: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    offset: float,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + gate·dropout(update), and its layer norm·(offset + scale) + shift as `dtype`.

    gate, scale and shift are (B or 1, 1, D), of any float type.
    """
    seed = torch.randint(1 << 62, (), device=x.device) if dropout else None
    out, normed, _ = _residual_norm(x, update, gate, scale, shift, offset, seed, dropout, eps, dtype)
    return out, normed


@torch.library.custom_op("hopflow::residual_norm", mutates_args=())
def _residual_norm(
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
    from . import residual_norm_triton

    rows = x.contiguous(), update.contiguous()
    shared = _dense(gate), _dense(scale), _dense(shift)
    return residual_norm_triton.forward(*rows, *shared, offset, seed, dropout, eps, dtype)


@_residual_norm.register_fake
def _(
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
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=dtype), x.new_empty(*x.shape[:2], 2, dtype=torch.float32)


@torch.library.custom_op("hopflow::residual_norm_backward", mutates_args=())
def _residual_norm_backward(
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
    from . import residual_norm_triton

    rows = grad.contiguous(), grad_normed.contiguous(), out, update.contiguous()
    return residual_norm_triton.backward(*rows, _dense(gate), _dense(scale), stats, offset, seed, dropout)


@_residual_norm_backward.register_fake
def _(
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
    sums = stats.new_empty(3, len(out), out.shape[-1])
    return out.new_empty(out.shape), update.new_empty(update.shape), sums


def _dense(shared: Tensor) -> Tensor:
    """(B or 1, 1, D) with a dense last dimension; the rows may be apart, as slices of a layer's output are."""
    return shared if shared.stride(-1) == 1 else shared.contiguous()


def _setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, ...]) -> None:  # type: ignore[type-arg]
    _, update, gate, scale, shift, offset, seed, dropout, _, _ = inputs
    out, _, stats = output
    ctx.save_for_backward(out, update, gate, scale, shift, stats, seed)
    ctx.offset, ctx.dropout = offset, dropout  # type: ignore[attr-defined]


def _backward(
    ctx: torch.autograd.function.FunctionCtx, grad: Tensor, grad_normed: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    out, update, gate, scale, shift, stats, seed = ctx.saved_tensors  # type: ignore[attr-defined]
    numbers = ctx.offset, seed, ctx.dropout  # type: ignore[attr-defined]
    grad_x, grad_update, sums = _residual_norm_backward(grad, grad_normed, out, update, gate, scale, stats, *numbers)
    each = zip(sums.unsqueeze(2), (gate, scale, shift), strict=True)  # (B, 1, D) each
    return grad_x, grad_update, *(total.sum_to_size(part.shape).to(part.dtype) for total, part in each), *[None] * 5


_residual_norm.register_autograd(_backward, setup_context=_setup_context)
