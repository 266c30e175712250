"""ResidualStream: the features between two branches, with the update of the last branch not added yet."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm

from ..kernels import residual_norm


class ResidualStream(NamedTuple):
    """x + gate·dropout(update). The sum is computed together with the next layer norm, in one pass on a GPU."""

    x: Tensor
    """(B, L, D)"""
    update: Tensor | None = None
    """Output of the last branch, (B, L, D)."""
    gate: Tensor | None = None
    """(B or 1, 1, D); None means 1."""
    dropout: float = 0.0
    """Dropout probability of the update; 0 unless in training mode."""

    def normed(
        self, norm: nn.LayerNorm, dtype: torch.dtype, modulation: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum, and its layer norm computed in `dtype`.

        The norm has its own weights, or those of a modulation (shift, scale): norm·(1 + scale) + shift.
        """
        if self.update is not None and self.x.is_cuda and residual_norm.supports(self.x):
            shift, scale = (norm.bias[None, None], norm.weight[None, None]) if modulation is None else modulation
            gate = torch.ones_like(scale[:1]) if self.gate is None else self.gate
            offset = 0.0 if modulation is None else 1.0
            return residual_norm.residual_norm(
                self.x, self.update, gate, scale, shift, offset, self.dropout, norm.eps, dtype
            )
        x = self.sum()
        normed = layer_norm(x.to(dtype), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        if modulation is None:
            return x, normed
        shift, scale = (at_least_float32(part, x) for part in modulation)
        return x, (normed * (1 + scale) + shift).to(normed.dtype)

    def sum(self) -> Tensor:
        """x with the update added."""
        if self.update is None:
            return self.x
        update = dropout(self.update, self.dropout)
        return (self.x + (update if self.gate is None else at_least_float32(self.gate, self.x) * update)).to(
            self.x.dtype
        )


def at_least_float32(shared: Tensor, x: Tensor) -> Tensor:
    """`shared` in the type of x, but at least float32: in bf16, 1 + scale would lose its digits."""
    return shared.to(torch.promote_types(x.dtype, torch.float32))
