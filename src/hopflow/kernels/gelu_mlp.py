"""Linear, GELU, linear on a GPU: the GELU's output is not stored, the backward pass recomputes it.

Without gradients, cuBLAS applies GELU as part of the first product.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..network.precision import autocast_dtype
from . import switch
from .fused_head import is_plain_linear
from .support import HALF_TYPES, has_kernels


def supports(x: Tensor, inner: nn.Linear, outer: nn.Linear) -> bool:
    """Whether these layers have a fused version for this tensor.

    With gradients it needs the Triton kernels and replaces both layers; without gradients it replaces the first one.
    """
    layers = (inner, outer) if torch.is_grad_enabled() else (inner,)
    return (
        switch.current.gelu_mlp
        and x.device.type == "cuda"
        and all(is_plain_linear(layer) and layer.bias is not None for layer in layers)
        and (autocast_dtype(x) or x.dtype) in HALF_TYPES
        and (not torch.is_grad_enabled() or has_kernels(x))
    )


def gelu_mlp(x: Tensor, inner: nn.Linear, outer: nn.Linear) -> Tensor:
    """outer(gelu(inner(x))), with the tanh approximation of GELU, for layers that `supports` accepts."""
    dtype = autocast_dtype(x) or x.dtype
    if torch.is_grad_enabled():
        return _gelu_linear(linear(x, inner.weight), inner.bias, outer.weight.to(dtype), outer.bias.to(dtype))
    out: Tensor = outer(_linear_gelu(x.to(dtype), inner.weight.to(dtype), inner.bias.to(dtype)))
    return out


@torch.library.custom_op("hopflow::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x·weightᵀ + bias): cuBLAS applies bias and GELU (tanh) before it writes the product."""
    return torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True).unflatten(0, x.shape[:-1])


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("hopflow::gelu_linear", mutates_args=())
def _gelu_linear(x: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor) -> Tensor:
    """gelu(x + bias)·weightᵀ + out_bias."""
    from . import gelu_mlp_triton

    hidden = gelu_mlp_triton.forward(x.contiguous().flatten(0, -2), bias)
    return torch.addmm(out_bias, hidden, weight.T).unflatten(0, x.shape[:-1])


@_gelu_linear.register_fake
def _(x: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("hopflow::gelu_linear_backward", mutates_args=())
def _gelu_linear_backward(grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of bias in float32, and of weight."""
    from . import gelu_mlp_triton

    grad_rows = grad.flatten(0, -2)
    grad_x = grad_rows @ weight
    hidden, grad_bias = gelu_mlp_triton.backward_(grad_x, x.contiguous().flatten(0, -2), bias)
    return grad_x.view(x.shape), grad_bias, grad_rows.T @ hidden


@_gelu_linear_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape, dtype=torch.float32), torch.empty_like(weight)


def _setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, ...]:
    x, bias, weight = ctx.saved_tensors  # type: ignore[attr-defined]
    grad_x, grad_bias, grad_weight = _gelu_linear_backward(grad, x, bias, weight)
    return grad_x, grad_bias.to(bias.dtype), grad_weight, grad.flatten(0, -2).sum(0)


_gelu_linear.register_autograd(_backward, setup_context=_setup_context)
