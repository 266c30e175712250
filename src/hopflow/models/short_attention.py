"""Attention over short sequences on a GPU, rotary positions included: operations that a compiler leaves whole.

`glance` is none of these; it is asked for a few positions at a time, outside of what is compiled.
"""

import torch
from torch import Tensor

from ..gpu import has_kernels
from ..network import NARROW

LONGEST = 128
"""Positions of which a multiprocessor holds all weights at once."""
WIDTHS = (32, 64)


def fits(qkv: Tensor) -> bool:
    """Whether (B, L, …, W) is of a size, type and place that the kernels are for."""
    small = qkv.shape[1] <= LONGEST and qkv.shape[-1] in WIDTHS
    return small and has_kernels(qkv) and qkv.dtype in NARROW


@torch.library.custom_op("hopflow::attend", mutates_args=())
def attend(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """softmax(⟨q, k⟩/√W)·v of queries and keys turned by their positions: (B, L, 3, H, W) -> (B, L, H·W)."""
    from . import triton_attention

    return triton_attention.forward(qkv.contiguous(), cos.contiguous(), sin.contiguous())


@attend.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[3] * qkv.shape[4])


@torch.library.custom_op("hopflow::attend_backward", mutates_args=())
def _attend_backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from . import triton_attention

    return triton_attention.backward(grad.contiguous(), qkv.contiguous(), cos.contiguous(), sin.contiguous())


@_attend_backward.register_fake
def _(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _attend_backward(grad, *ctx.saved_tensors), None, None  # type: ignore[attr-defined]


attend.register_autograd(_back, setup_context=_keep)


def glance(asked: Tensor, offered: Tensor, row: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `attend` gives for single queries (m, H, W) at positions of these rows, as (m, H·W); without a gradient.

    Keys and values are offered together (B, L, 2, H, W).
    """
    from . import triton_attention

    return triton_attention.glance(*(x.contiguous() for x in (asked, offered, row, position, cos, sin)))
