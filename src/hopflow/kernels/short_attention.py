"""Attention over short sequences on a GPU, rotary embedding included, as custom operations.

`attention_at` is a plain function: it runs at a few positions, outside of what is compiled.
"""

import torch
from torch import Tensor

from . import switch
from .support import HALF_TYPES, has_kernels

MAX_LENGTH = 128
"""Positions whose attention weights fit into one multiprocessor."""
HEAD_WIDTHS = (32, 64)


def supports(qkv: Tensor) -> bool:
    """Whether the kernels support (B, L, …, W) of this length, head width, type and device."""
    small = qkv.shape[1] <= MAX_LENGTH and qkv.shape[-1] in HEAD_WIDTHS
    return switch.current.short_attention and small and has_kernels(qkv) and qkv.dtype in HALF_TYPES


@torch.library.custom_op("hopflow::attention", mutates_args=())
def attention(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """softmax(⟨q, k⟩/√W)·v of queries and keys rotated by their positions: (B, L, 3, H, W) -> (B, L, H·W)."""
    from . import short_attention_triton

    return short_attention_triton.forward(qkv.contiguous(), cos.contiguous(), sin.contiguous())


@attention.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[3] * qkv.shape[4])


@torch.library.custom_op("hopflow::attention_backward", mutates_args=())
def _attention_backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from . import short_attention_triton

    return short_attention_triton.backward(grad.contiguous(), qkv.contiguous(), cos.contiguous(), sin.contiguous())


@_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _attention_backward(grad, *ctx.saved_tensors), None, None  # type: ignore[attr-defined]


attention.register_autograd(_backward, setup_context=_setup_context)


def attention_at(
    queries: Tensor, keys_values: Tensor, row: Tensor, position: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """`attention` for single queries (m, H, W) at positions of these rows, as (m, H·W); without a gradient.

    `keys_values` is (B, L, 2, H, W), not yet rotated.
    """
    from . import short_attention_triton

    return short_attention_triton.forward_at(*(x.contiguous() for x in (queries, keys_values, row, position, cos, sin)))
