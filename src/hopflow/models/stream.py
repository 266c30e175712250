"""Stream: the features that branches read, and add to."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm

from .add_norm import add_norm, fits


class Stream(NamedTuple):
    """x + gate·dropout(given): what a branch gave is added when the next one looks, in one pass with its norm."""

    x: Tensor
    """(B, L, D)"""
    given: Tensor | None = None
    gate: Tensor | None = None
    """(B or 1, 1, D), float32; None lets all in."""
    dropped: float = 0.0
    """The chance that a number of what was given is dropped; 0 unless in training."""

    def seen(
        self, norm: nn.LayerNorm, kind: torch.dtype, shift: Tensor | None = None, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum, and what a branch sees of it: norm(sum as `kind`), with its own weights or ·(1 + scale) + shift."""
        if self.given is not None and fits(self.x):
            factor = norm.weight.view(1, 1, -1) if scale is None else 1 + scale
            shift = norm.bias.view(1, 1, -1) if shift is None else shift
            gate = torch.ones_like(factor[:1]) if self.gate is None else self.gate
            return add_norm(self.x, self.given, gate, factor, shift, self.dropped, norm.eps, kind)
        x = self.added()
        seen = layer_norm(x.to(kind), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return x, seen if shift is None or scale is None else (seen * (1 + scale) + shift).to(seen.dtype)

    def added(self) -> Tensor:
        if self.given is None:
            return self.x
        given = dropout(self.given, self.dropped)
        return (self.x + (given if self.gate is None else self.gate * given)).to(self.x.dtype)
