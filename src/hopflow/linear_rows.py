"""The three numbers of `Scores` from features and a linear head, with as few passes over logits as there can be.

On a GPU: a product, a pass that reads the logits, a pass that turns them into their gradient where they lie, and two
products; nothing else ever sees them, and no float32 copy exists. The vocabulary is padded to a number that the matrix
units like: 50,257 is odd, and products with an odd row length take four times as long.
"""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .gpu import has_kernels, knows_bf16
from .network import narrow

PAD = 64
"""The vocabulary is padded to a multiple of this."""
BEYOND = 1 << 30
"""Stands for every mask: no logit is its own, not even among those that pad."""


def plain(layer: Any) -> bool:
    """A linear layer that is nothing but its weights: no class of one's own, no hooks, that would be passed over."""
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    return not (layer._backward_hooks or layer._backward_pre_hooks)


def kernels(head: Any, features: Tensor) -> ModuleType | None:
    """The module with kernels for this head and device, if there is one."""
    wanted = has_kernels(features) and features.dtype != torch.float64 and len(features)
    if not (wanted and plain(head)):
        return None
    from . import triton_rows

    return triton_rows


def linear_three(
    module: ModuleType, features: Float[Tensor, "n D"], head: nn.Linear, xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
) -> Float[Tensor, "n 3"]:
    """As `scores._three` of head(features): in bf16 under autocast, summed in float32."""
    bias = head.bias if head.bias is not None else head.weight.new_zeros(head.out_features)
    three: Tensor = _Three.apply(module, features, head.weight, bias, xt, x1)
    return three


class WideHead:
    """A linear head in float32 quality from products in bf16, which a GPU has ten times as fast.

    A float32 number is, to 16 bits, the sum of two bf16 numbers: x·w = xₕwₕ + xₕwₗ + xₗwₕ, as one product of three
    times the width, summed in float32. What is left out is 2^-16 of each term.
    """

    def __init__(self, head: nn.Linear) -> None:
        self._count = head.out_features
        high, low = _halves(_padded(head.weight.detach(), torch.float32, 0.0))
        self._weight = torch.cat([high, low, high], 1)
        bias = head.weight.new_zeros(self._count) if head.bias is None else head.bias.detach()
        self._bias = _padded(bias, torch.float32, -torch.inf)
        self._kernels = kernels(head, self._weight)
        self.draws = self._kernels is not None
        """Whether it has a way to draw of its own."""

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
        return (self._product(features) + self._bias)[:, : self._count]

    def draw(
        self, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], shift: Float[Tensor, " n"], u: Float[Tensor, " n"]
    ) -> tuple[Int[Tensor, " n"], Bool[Tensor, ""]]:
        """Tokens at u of the softmax of the logits, shifted at xt; and whether all was sound.

        As `categorical` draws, in two passes over the logits. Only where it `draws`.
        """
        assert self._kernels is not None
        given = self._product(features), self._bias, xt.int(), shift.float(), u.double()
        tokens, sums = self._kernels.draw(*given)
        return tokens, ~torch.isnan(sums).any()

    def three(
        self, features: Float[Tensor, "n D"], xt: Int[Tensor, " n"], x1: Int[Tensor, " n"]
    ) -> Float[Tensor, "n 3"] | None:
        """As `scores._three` of the logits, in one pass over them; None where that has no kernel, or there is none."""
        if self._kernels is None or not len(features):
            return None
        xt = torch.where(xt < self._count, xt, BEYOND).int()
        three: Tensor = self._kernels.forward(self._product(features), self._bias, xt, x1.int())
        return three

    def _product(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n W"]:
        high, low = _halves(features.float())
        return _product(torch.cat([high, high, low], 1), self._weight.T)

    @staticmethod
    def suits(head: Any) -> bool:
        """Whether it stands in for this head: a linear one in float32 on a GPU that knows bf16."""
        return plain(head) and head.weight.dtype == torch.float32 and knows_bf16(head.weight.device)


def _halves(x: Float[Tensor, "n D"]) -> tuple[Tensor, Tensor]:
    high = x.to(torch.bfloat16)
    return high, (x - high).to(torch.bfloat16)


class _Three(torch.autograd.Function):
    """The logits of the forward pass become their own gradient in the backward pass, which is why there is only one."""

    @staticmethod
    def forward(
        ctx: Any, module: ModuleType, features: Tensor, weight: Tensor, bias: Tensor, xt: Tensor, x1: Tensor
    ) -> Tensor:
        kind = features.device.type
        dtype = narrow(features) or features.dtype
        xt, x1 = torch.where(xt < len(weight), xt, BEYOND).int(), x1.int()
        with torch.autocast(kind, enabled=False):
            x, w = features.to(dtype), _padded(weight, dtype, 0.0)
            added = _padded(bias, torch.float32, -torch.inf)  # what is beyond the vocabulary has no chance
            logits = x @ w.T
            three: Tensor = module.forward(logits, added, xt, x1)
        ctx.module, ctx.logits = module, logits
        ctx.save_for_backward(x, w, added, xt, x1, three)
        ctx.kinds, ctx.count = (features.dtype, weight.dtype, bias.dtype), len(weight)
        return three

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w, added, xt, x1, three = ctx.saved_tensors
        logits, ctx.logits = ctx.logits, None
        if logits is None:
            raise RuntimeError("this loss has no second backward pass: its logits have become their gradient")
        with torch.autocast(x.device.type, enabled=False):
            grad_bias = ctx.module.backward_(logits, added, xt, x1, three, grads[0].float().contiguous())
            given = logits @ w, _product(logits.T, x)[: ctx.count], grad_bias[: ctx.count]
        grad_x, grad_w, grad_bias = (grad.to(kind) for grad, kind in zip(given, ctx.kinds, strict=True))
        return None, grad_x, grad_w, grad_bias, None, None


def _padded(x: Float[Tensor, "V *more"], dtype: torch.dtype, fill: float) -> Float[Tensor, "W *more"]:
    out = x.new_full((-(-len(x) // PAD) * PAD, *x.shape[1:]), fill, dtype=dtype)
    out[: len(x)] = x
    return out


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, given in float32: a sum over all rows of a batch has more digits than its terms."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
