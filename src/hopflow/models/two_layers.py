"""Two linear layers and a gelu between them on a GPU: what the gelu gives is not kept, the pass back bends again.

Without gradients, gelu is part of the first product.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from ..gpu import has_kernels
from ..linear_rows import plain
from ..network import NARROW, narrow


def fits(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether layers of this kind, type and place have a way of their own; back through them only by a kernel."""
    return (
        x.device.type == "cuda"
        and all(plain(layer) and layer.bias is not None for layer in layers)
        and (narrow(x) or x.dtype) in NARROW
        and (not torch.is_grad_enabled() or has_kernels(x))
    )


def two_layers(x: Tensor, inner: nn.Linear, outer: nn.Linear) -> Tensor:
    """outer(gelu(inner(x))), gelu by tanh."""
    dtype = narrow(x) or x.dtype
    if torch.is_grad_enabled() and fits(x, inner, outer):
        return _bent_layer(linear(x, inner.weight), inner.bias, outer.weight.to(dtype), outer.bias.to(dtype))
    if not torch.is_grad_enabled() and fits(x, inner):
        bent = _layer_bent(x.to(dtype), inner.weight.to(dtype), inner.bias.to(dtype))
    else:
        bent = gelu(inner(x), approximate="tanh")
    out: Tensor = outer(bent)
    return out


@torch.library.custom_op("hopflow::layer_bent", mutates_args=())
def _layer_bent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """cuBLAS adds the bias and bends the sum before it is written; its gelu is the one by tanh."""
    return torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True).unflatten(0, x.shape[:-1])


@_layer_bent.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("hopflow::bent_layer", mutates_args=())
def _bent_layer(x: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor) -> Tensor:
    """gelu(x + bias)·weightᵀ + out_bias."""
    from . import triton_gelu

    bent = triton_gelu.forward(x.contiguous().flatten(0, -2), bias)
    return torch.addmm(out_bias, bent, weight.T).unflatten(0, x.shape[:-1])


@_bent_layer.register_fake
def _(x: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("hopflow::bent_layer_backward", mutates_args=())
def _bent_layer_backward(grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of bias in float32, and of weight."""
    from . import triton_gelu

    given = grad.flatten(0, -2)
    to_x = given @ weight
    bent, to_bias = triton_gelu.backward_(to_x, x.contiguous().flatten(0, -2), bias)
    return to_x.view(x.shape), to_bias, given.T @ bent


@_bent_layer_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape, dtype=torch.float32), torch.empty_like(weight)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, ...]:
    x, bias, weight = ctx.saved_tensors  # type: ignore[attr-defined]
    to_x, to_bias, to_weight = _bent_layer_backward(grad, x, bias, weight)
    return to_x, to_bias.to(bias.dtype), to_weight, grad.flatten(0, -2).sum(0)


_bent_layer.register_autograd(_back, setup_context=_keep)
