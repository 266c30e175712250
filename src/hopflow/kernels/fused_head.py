"""A linear output head fused with cross-entropy, and with what bounds and samplers need of its logits.

On a GPU a loss takes one matrix product, one pass that reads the logits, one pass that overwrites them by their
gradient, and two more products; no float32 copy of the logits exists. The vocabulary is padded to a multiple of 64:
matrix products with an odd row length, such as 50,257, take four times as long.

The "score terms" of a row of logits are three numbers: the log-sum-exp over all tokens except xt, the logit of xt and
the logit of x1 (see `hopflow.scores`).
"""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..network.precision import autocast_dtype, supports_bf16
from . import switch
from .support import has_kernels

PAD = 64
"""The vocabulary is padded to a multiple of this."""
NO_COLUMN = 1 << 30
"""Stands for every mask token: no column of the padded logits has this index."""


def is_plain_linear(layer: Any) -> bool:
    """Whether a layer is an nn.Linear without subclass and hooks, so that a kernel may use its weights directly."""
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    return not (layer._backward_hooks or layer._backward_pre_hooks)


def head_kernels(head: Any, features: Tensor) -> ModuleType | None:
    """The module with the loss kernels for this head and device; None where plain PyTorch is used."""
    return _kernels(head, features) if switch.current.fused_head else None


def _kernels(head: Any, features: Tensor) -> ModuleType | None:
    usable = has_kernels(features) and features.dtype != torch.float64 and len(features)
    if not (usable and is_plain_linear(head)):
        return None
    from . import fused_head_triton

    return fused_head_triton


def fused_score_terms(
    module: ModuleType, features: Float[Tensor, "n D"], head: nn.Linear, xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
) -> Float[Tensor, "n 3"]:
    """The score terms of head(features): logits in bf16 under autocast, sums in float32; differentiable once."""
    bias = head.bias if head.bias is not None else head.weight.new_zeros(head.out_features)
    terms: Tensor = _ScoreTerms.apply(module, features, head.weight, bias, xt, x1)
    return terms


class Bf16x3Head:
    """A linear head of float32 quality from bf16 matrix products, which a GPU computes ten times as fast.

    To 16 bits a float32 number is the sum of two bf16 numbers: x·w ≈ xₕwₕ + xₕwₗ + xₗwₕ, computed as one product of
    three times the width and summed in float32. The omitted term is 2^-16 of each product.
    """

    def __init__(self, head: nn.Linear) -> None:
        self._count = head.out_features
        high, low = _high_and_low(_padded(head.weight.detach(), torch.float32, 0.0))
        self._weight = torch.cat([high, low, high], 1)
        bias = head.weight.new_zeros(self._count) if head.bias is None else head.bias.detach()
        self._bias = _padded(bias, torch.float32, -torch.inf)
        self._kernels = _kernels(head, self._weight)
        self.can_draw = self._kernels is not None and switch.current.draw_tokens
        """Whether `draw` has a kernel here."""

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
        return (self._product(features) + self._bias)[:, : self._count]

    def draw(
        self, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], shift: Float[Tensor, " n"], u: Float[Tensor, " n"]
    ) -> tuple[Int[Tensor, " n"], Bool[Tensor, ""]]:
        """Tokens at u of the softmax of the logits, with `shift` added at xt; and whether all logits are numbers.

        Draws as `sampling.random_draws.categorical` does, in two passes over the logits. Only if `can_draw`.
        """
        assert self._kernels is not None
        arguments = self._product(features), self._bias, xt.int(), shift.float(), u.double()
        tokens, sums = self._kernels.draw(*arguments)
        return tokens, ~torch.isnan(sums).any()

    def score_terms(
        self, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
    ) -> Float[Tensor, "n 3"] | None:
        """The score terms of the logits in one pass; None without a kernel or without rows."""
        if self._kernels is None or not len(features):
            return None
        xt = torch.where(xt < self._count, xt, NO_COLUMN).int()
        terms: Tensor = self._kernels.forward(self._product(features), self._bias, xt, x1.int())
        return terms

    def _product(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n W"]:
        high, low = _high_and_low(features.float())
        return _float32_product(torch.cat([high, high, low], 1), self._weight.T)

    @staticmethod
    def supports(head: Any) -> bool:
        """Whether it can replace this head: a plain float32 linear layer on a GPU that supports bf16."""
        if not switch.current.bf16x3_head:
            return False
        return is_plain_linear(head) and head.weight.dtype == torch.float32 and supports_bf16(head.weight.device)


def _high_and_low(x: Float[Tensor, "n D"]) -> tuple[Tensor, Tensor]:
    """Two bf16 tensors whose sum is x to 16 bits."""
    high = x.to(torch.bfloat16)
    return high, (x - high).to(torch.bfloat16)


class _ScoreTerms(torch.autograd.Function):
    """The backward pass overwrites the logits of the forward pass by their gradient, so it can run only once."""

    @staticmethod
    def forward(
        ctx: Any, module: ModuleType, features: Tensor, weight: Tensor, bias: Tensor, xt: Tensor, x1: Tensor
    ) -> Tensor:
        device_type = features.device.type
        dtype = autocast_dtype(features) or features.dtype
        xt, x1 = torch.where(xt < len(weight), xt, NO_COLUMN).int(), x1.int()
        with torch.autocast(device_type, enabled=False):
            x, w = features.to(dtype), _padded(weight, dtype, 0.0)
            padded_bias = _padded(bias, torch.float32, -torch.inf)  # padding has probability 0
            logits = x @ w.T
            terms: Tensor = module.forward(logits, padded_bias, xt, x1)
        ctx.module, ctx.logits = module, logits
        ctx.save_for_backward(x, w, padded_bias, xt, x1, terms)
        ctx.dtypes, ctx.count = (features.dtype, weight.dtype, bias.dtype), len(weight)
        return terms

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w, padded_bias, xt, x1, terms = ctx.saved_tensors
        logits, ctx.logits = ctx.logits, None
        if logits is None:
            raise RuntimeError("backward can run only once through this loss: its logits were overwritten")
        with torch.autocast(x.device.type, enabled=False):
            grad_bias = ctx.module.backward_(logits, padded_bias, xt, x1, terms, grads[0].float().contiguous())
            each = logits @ w, _float32_product(logits.T, x)[: ctx.count], grad_bias[: ctx.count]
        grad_x, grad_w, grad_bias = (grad.to(dtype) for grad, dtype in zip(each, ctx.dtypes, strict=True))
        return None, grad_x, grad_w, grad_bias, None, None


def _padded(x: Float[Tensor, "V *more"], dtype: torch.dtype, fill: float) -> Float[Tensor, "W *more"]:
    out = x.new_full((-(-len(x) // PAD) * PAD, *x.shape[1:]), fill, dtype=dtype)
    out[: len(x)] = x
    return out


def _float32_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with a float32 result: a sum over all rows of a batch has more digits than its terms."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
