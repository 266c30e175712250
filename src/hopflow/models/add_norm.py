"""x + gate·dropout(given) and its norm on a GPU, as an operation that a compiler leaves whole."""

import torch
from torch import Tensor

from ..gpu import has_kernels
from ..network import NARROW

WIDEST = 4096
"""Numbers of a row that a program holds at once."""


def fits(x: Tensor) -> bool:
    """Whether a stream (B, L, D) is of a size, type and place that the kernels are for."""
    return has_kernels(x) and x.dtype in NARROW and x.shape[-1] <= WIDEST


def add_norm(
    x: Tensor,
    given: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    lift: float,
    dropout: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + gate·dropout(given), and its norm·(lift + scale) + shift as `kind`.

    gate, scale and shift are (B or 1, 1, D), of any float type.
    """
    seed = torch.randint(1 << 62, (), device=x.device) if dropout else None
    out, seen, _ = _add_norm(x, given, gate, scale, shift, lift, seed, dropout, eps, kind)
    return out, seen


@torch.library.custom_op("hopflow::add_norm", mutates_args=())
def _add_norm(
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
    from . import triton_add_norm

    shared = _dense(gate), _dense(scale), _dense(shift)
    return triton_add_norm.forward(x.contiguous(), given.contiguous(), *shared, lift, seed, dropout, eps, kind)


@_add_norm.register_fake
def _(
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
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=kind), x.new_empty(*x.shape[:2], 2, dtype=torch.float32)


@torch.library.custom_op("hopflow::add_norm_backward", mutates_args=())
def _add_norm_backward(
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
    from . import triton_add_norm

    rows = grad.contiguous(), grad_seen.contiguous(), out, given.contiguous()
    return triton_add_norm.backward(*rows, _dense(gate), _dense(scale), stats, lift, seed, dropout)


@_add_norm_backward.register_fake
def _(
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
    sums = stats.new_empty(3, len(out), out.shape[-1])
    return out.new_empty(out.shape), given.new_empty(given.shape), sums


def _dense(shared: Tensor) -> Tensor:
    """(B or 1, 1, D) with its numbers side by side; sequences may be apart, as parts of a layer's output are."""
    return shared if shared.stride(-1) == 1 else shared.contiguous()


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, ...]) -> None:  # type: ignore[type-arg]
    _, given, gate, scale, shift, lift, seed, dropout, _, _ = inputs
    out, _, stats = output
    ctx.save_for_backward(out, given, gate, scale, shift, stats, seed)
    ctx.lift, ctx.dropout = lift, dropout  # type: ignore[attr-defined]


def _back(
    ctx: torch.autograd.function.FunctionCtx, grad: Tensor, grad_seen: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    out, given, gate, scale, shift, stats, seed = ctx.saved_tensors  # type: ignore[attr-defined]
    chances = ctx.lift, seed, ctx.dropout  # type: ignore[attr-defined]
    to_x, to_given, sums = _add_norm_backward(grad, grad_seen, out, given, gate, scale, stats, *chances)
    each = zip(sums.unsqueeze(2), (gate, scale, shift), strict=True)  # (B, 1, D) each
    return to_x, to_given, *(total.sum_to_size(part.shape).to(part.dtype) for total, part in each), *[None] * 5


_add_norm.register_autograd(_back, setup_context=_keep)
