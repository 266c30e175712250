"""gelu(x·wᵀ + b) as one product on a GPU, where nothing goes back through it."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from ..linear_rows import plain


@torch.library.custom_op("hopflow::gelu_linear", mutates_args=())
def _fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """cuBLAS adds the bias and bends the sum before it is written; its gelu is the one by tanh."""
    return torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True).unflatten(0, x.shape[:-1])


@_fused.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def gelu_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu by tanh, of a layer with a bias."""
    if x.device.type != "cuda" or torch.is_grad_enabled() or not plain(layer):
        return gelu(layer(x), approximate="tanh")
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return gelu(layer(x), approximate="tanh")
    fused: Tensor = _fused(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
    return fused
