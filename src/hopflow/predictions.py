"""Predictions: how the logits of a network become probabilities P(x) = p_{1|t}(x | xt).

A prediction adds a number to one logit per position, that of the current token xt (theory.md §6). An infinite number
means that xt stays with probability 1; it is applied with `where`, never as inf - inf.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .sources import Source


class Prediction(ABC):
    """How logits over data tokens become P(x) = p_{1|t}(x | xt)."""

    @abstractmethod
    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        """What is added to the logit of xt: 0 for a mask, inf where a data token stays with probability 1."""

    def keeps_data_tokens(self, source: Source) -> bool:
        """Whether a data token in xt always stays, with this source."""
        return False

    def kept_positions(self, source: Source) -> Bool[Tensor, " #L"]:
        """The positions at which a data token in xt always stays, with this source."""
        return torch.full_like(source.disjoint_positions, self.keeps_data_tokens(source))

    def has_finite_bounds(self, source: Source) -> bool:
        """Whether P becomes δ_xt as t → 1, so that the bounds in continuous time are finite."""
        return self.keeps_data_tokens(source)

    def stays(self, source: Source) -> bool:
        """Deprecated name of `keeps_data_tokens`."""
        warnings.warn("Prediction.stays is now keeps_data_tokens", DeprecationWarning, stacklevel=2)
        return self.keeps_data_tokens(source)

    def settles(self, source: Source) -> bool:
        """Deprecated name of `has_finite_bounds`."""
        warnings.warn("Prediction.settles is now has_finite_bounds", DeprecationWarning, stacklevel=2)
        return self.has_finite_bounds(source)

    def log_probs(
        self,
        logits: Float[Tensor, "*rows Vd"],
        xt: Int[Tensor, "*rows"],
        rest: Float[Tensor, "*#rows"],
        source: Source,
    ) -> Float[Tensor, "*rows Vd"]:
        """log P over all data tokens, in float32 or float64: bf16 loses the tail of 50,000 tokens."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        shift = self.shift(xt, rest, source)
        at = torch.arange(logits.shape[-1], device=logits.device) == xt.unsqueeze(-1)  # no column for a mask
        certain = torch.isinf(shift).unsqueeze(-1)
        finite = torch.where(certain, 0.0, shift.unsqueeze(-1)).to(logits.dtype)
        shifted = torch.where(at, logits + finite, logits).log_softmax(-1)
        return torch.where(certain, torch.where(at, 0.0, -torch.inf), shifted)


@dataclass(frozen=True)
class Plain(Prediction):
    """Softmax of the logits: the paper's DFM-O and DFM-B. Bounds in continuous time are infinite (theory.md §3)."""

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        return torch.zeros_like(xt, dtype=rest.dtype)


@dataclass(frozen=True)
class Carry(Prediction):
    """Softmax of the logits, but a data token stays if the source is disjoint. App. A.4 [A3], Prop. A.4"""

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        return torch.where(source.comes_from_data(xt), torch.inf, 0.0).to(rest.dtype)

    def keeps_data_tokens(self, source: Source) -> bool:
        return source.disjoint

    def kept_positions(self, source: Source) -> Bool[Tensor, " #L"]:
        return source.disjoint_positions


@dataclass(frozen=True)
class Evidence(Prediction):
    """Softmax with logit(xt) += log(1 + k/((1-k)·p0(xt))), the evidence of xt itself.  theory.md (E)

    The logits then describe the context of a position only. Exact for independent pairs, and a bijection of logits for
    any pairs. With a disjoint source it includes Carry, because p0 of a data token is 0.
    """

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        noise = rest * source.probs(xt, rest.dtype)  # the probability that xt is a source token
        shift = torch.log1p((1 - rest) / noise)
        certain = (noise == 0) & (rest < 1)  # at k = 0 xt carries no information, whatever p0 is
        shift = torch.where(certain, torch.inf, torch.where(rest < 1, shift, 0.0))
        return torch.where(source.vocab.is_data(xt), shift, 0.0)

    def keeps_data_tokens(self, source: Source) -> bool:
        return source.disjoint

    def kept_positions(self, source: Source) -> Bool[Tensor, " #L"]:
        return source.disjoint_positions

    def has_finite_bounds(self, source: Source) -> bool:
        return True


EXAMPLES: tuple[Prediction, ...] = (Plain(), Carry(), Evidence())
