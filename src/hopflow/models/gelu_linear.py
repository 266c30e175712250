"""gelu(x·wᵀ + b) on a GPU: as one product where nothing goes back through it, and else in one pass after it."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from ..gpu import has_kernels
from ..linear_rows import plain
from ..network import NARROW, narrow


def fits(x: Tensor, layer: nn.Linear) -> bool:
    """Whether a product of this type and place has a way of its own; back through it only by a kernel."""
    return (
        x.device.type == "cuda"
        and plain(layer)
        and layer.bias is not None
        and (narrow(x) or x.dtype) in NARROW
        and (not torch.is_grad_enabled() or has_kernels(x))
    )


def gelu_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu by tanh, of a layer with a bias."""
    if not fits(x, layer):
        return gelu(layer(x), approximate="tanh")
    if torch.is_grad_enabled():
        return _bent(linear(x, layer.weight), layer.bias)
    dtype = narrow(x) or x.dtype
    return _fused(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


@torch.library.custom_op("hopflow::gelu_linear", mutates_args=())
def _fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """cuBLAS adds the bias and bends the sum before it is written; its gelu is the one by tanh."""
    return torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True).unflatten(0, x.shape[:-1])


@_fused.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


@torch.library.custom_op("hopflow::gelu_bias", mutates_args=())
def _bent(x: Tensor, bias: Tensor) -> Tensor:
    from . import triton_gelu

    return triton_gelu.forward(x.contiguous().flatten(0, -2), bias).view(x.shape)


@_bent.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("hopflow::gelu_bias_backward", mutates_args=())
def _bent_backward(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    from . import triton_gelu

    rows = grad.contiguous().flatten(0, -2), x.contiguous().flatten(0, -2)
    to_x, to_bias = triton_gelu.backward(*rows, bias)
    return to_x.view(x.shape), to_bias


@_bent_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), bias.new_empty(bias.shape, dtype=torch.float32)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, bias = ctx.saved_tensors  # type: ignore[attr-defined]
    to_x, to_bias = _bent_backward(grad, x, bias)
    return to_x, to_bias.to(bias.dtype)


_bent.register_autograd(_back, setup_context=_keep)
