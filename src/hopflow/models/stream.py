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
    """(B or 1, 1, D); None lets all in."""
    dropped: float = 0.0
    """The chance that a number of what was given is dropped; 0 unless in training."""

    def seen(
        self, norm: nn.LayerNorm, kind: torch.dtype, modulation: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum, and what a branch sees of it: norm(sum as `kind`), with weights of its own or, by a modulation
        (shift, scale), ·(1 + scale) + shift."""
        if self.given is not None and fits(self.x):
            shift, scale = (norm.bias[None, None], norm.weight[None, None]) if modulation is None else modulation
            gate = torch.ones_like(scale[:1]) if self.gate is None else self.gate
            lift = 0.0 if modulation is None else 1.0
            return add_norm(self.x, self.given, gate, scale, shift, lift, self.dropped, norm.eps, kind)
        x = self.added()
        seen = layer_norm(x.to(kind), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        if modulation is None:
            return x, seen
        shift, scale = (wide(part, x) for part in modulation)
        return x, (seen * (1 + scale) + shift).to(seen.dtype)

    def added(self) -> Tensor:
        """The sum, without looking at it."""
        if self.given is None:
            return self.x
        given = dropout(self.given, self.dropped)
        return (self.x + (given if self.gate is None else wide(self.gate, self.x) * given)).to(self.x.dtype)


def wide(shared: Tensor, x: Tensor) -> Tensor:
    """In float32 at least: 1 + scale would lose its digits in bf16."""
    return shared.to(torch.promote_types(x.dtype, torch.float32))
