"""x + gate·dropout(given) and its norm on a GPU, as an operation that a compiler leaves whole."""

import torch
from torch import Tensor

from ..linear_rows import WORKS

WIDEST = 4096
"""Numbers of a row that a program holds at once."""
TYPES = (torch.bfloat16, torch.float16)


def fits(x: Tensor) -> bool:
    """Whether a stream (B, L, D) is of a size, type and place that the kernels are for."""
    return x.device.type == "cuda" and x.dtype in TYPES and x.shape[-1] <= WIDEST and WORKS


def add_norm(
    x: Tensor,
    given: Tensor,
    gate: Tensor,
    factor: Tensor,
    shift: Tensor,
    dropout: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + gate·dropout(given), and its norm·factor + shift as `kind`; gate, factor and shift are (B or 1, 1, D)."""
    seed = torch.randint(1 << 62, (), device=x.device) if dropout else None
    out, seen, _ = _add_norm(x, given, gate, factor, shift, seed, dropout, eps, kind)
    return out, seen


@torch.library.custom_op("hopflow::add_norm", mutates_args=())
def _add_norm(
    x: Tensor,
    given: Tensor,
    gate: Tensor,
    factor: Tensor,
    shift: Tensor,
    seed: Tensor | None,
    dropout: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import triton_add_norm

    per_sequence = _rows(gate), _rows(factor), _rows(shift)
    return triton_add_norm.forward(x.contiguous(), given.contiguous(), *per_sequence, seed, dropout, eps, kind)


@_add_norm.register_fake
def _(
    x: Tensor,
    given: Tensor,
    gate: Tensor,
    factor: Tensor,
    shift: Tensor,
    seed: Tensor | None,
    dropout: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=kind), x.new_empty(*x.shape[:2], 2, dtype=torch.float32)


@torch.library.custom_op("hopflow::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad: Tensor,
    grad_seen: Tensor,
    out: Tensor,
    given: Tensor,
    gate: Tensor,
    factor: Tensor,
    stats: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import triton_add_norm

    grads = grad.contiguous(), grad_seen.contiguous()
    return triton_add_norm.backward(*grads, out, given.contiguous(), _rows(gate), _rows(factor), stats, seed, dropout)


@_add_norm_backward.register_fake
def _(
    grad: Tensor,
    grad_seen: Tensor,
    out: Tensor,
    given: Tensor,
    gate: Tensor,
    factor: Tensor,
    stats: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = stats.new_empty(3, len(out), out.shape[-1])
    return out.new_empty(out.shape), given.new_empty(given.shape), sums


def _rows(part: Tensor) -> Tensor:
    """(B or 1, 1, D) as float32 with its numbers side by side."""
    part = part.float()
    return part if part.stride(-1) == 1 else part.contiguous()


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, ...]) -> None:  # type: ignore[type-arg]
    _, given, gate, factor, shift, seed, dropout, _, _ = inputs
    out, _, stats = output
    ctx.save_for_backward(out, given, gate, factor, shift, stats, seed)
    ctx.dropout = dropout  # type: ignore[attr-defined]


def _back(
    ctx: torch.autograd.function.FunctionCtx, grad: Tensor | None, grad_seen: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    out, given, gate, factor, shift, stats, seed = ctx.saved_tensors  # type: ignore[attr-defined]
    grad = torch.zeros_like(out) if grad is None else grad
    grad_seen = torch.zeros_like(out) if grad_seen is None else grad_seen
    dropout: float = ctx.dropout  # type: ignore[attr-defined]
    to_x, to_given, sums = _add_norm_backward(grad, grad_seen, out, given, gate, factor, stats, seed, dropout)
    each = zip(sums.unsqueeze(2), (gate, factor, shift), strict=True)  # (B, 1, D) each
    return to_x, to_given, *(total.sum_to_size(part.shape).to(part.dtype) for total, part in each), *[None] * 4


_add_norm.register_autograd(_back, setup_context=_keep)
