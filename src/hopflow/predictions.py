"""Predictions: what a network's logits mean, given what is known of xt.

A prediction adds one number to one logit per position, that of the token xt itself (theory.md §6). An infinite shift
means that xt stays for certain; it is applied by `where`, never as inf - inf.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .sources import Source


class Prediction(ABC):
    """How logits over data tokens become P(x) = p_{1|t}(x | xt)."""

    @abstractmethod
    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        """What to add to the logit of xt: 0 for a mask, inf where a data token stays for certain."""

    def stays(self, source: Source) -> bool:
        """With this source a data token in xt is never redrawn to another."""
        return False

    def settles(self, source: Source) -> bool:
        """Near t = 1 the prediction becomes xt itself, so that continuous-time bounds are finite."""
        return self.stays(source)

    def log_probs(
        self,
        logits: Float[Tensor, "*rows Vd"],
        xt: Int[Tensor, "*rows"],
        rest: Float[Tensor, "*#rows"],
        source: Source,
    ) -> Float[Tensor, "*rows Vd"]:
        """log P over data tokens, whole rows, at least in float32: bf16 loses the tail of 50k tokens."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        shift = self.shift(xt, rest, source)
        at = torch.arange(logits.shape[-1], device=logits.device) == xt.unsqueeze(-1)  # no column for a mask
        certain = torch.isinf(shift).unsqueeze(-1)
        finite = torch.where(certain, 0.0, shift.unsqueeze(-1)).to(logits.dtype)
        shifted = torch.where(at, logits + finite, logits).log_softmax(-1)
        return torch.where(certain, torch.where(at, 0.0, -torch.inf), shifted)


@dataclass(frozen=True)
class Plain(Prediction):
    """Nothing added: the paper's DFM-O and DFM-B. Every bound in continuous time is infinite (theory.md §3)."""

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        return torch.zeros_like(xt, dtype=rest.dtype)


@dataclass(frozen=True)
class Carry(Prediction):
    """A data token stays when the source is disjoint. App. A.4 [A3], Prop. A.4"""

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        stays = source.vocab.is_data(xt) if source.disjoint else torch.zeros_like(xt, dtype=torch.bool)
        return torch.where(stays, torch.inf, 0.0).to(rest.dtype)

    def stays(self, source: Source) -> bool:
        return source.disjoint


@dataclass(frozen=True)
class Evidence(Prediction):
    """logit(xt) += log(1 + k/((1-k)·p0(xt))): logits mean the context, the path's evidence is added.  theory.md (E)

    Exact for independent pairs, a bijection of logits for any; contains Carry, because p0 of a data token is then 0.
    """

    def shift(self, xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], source: Source) -> Float[Tensor, "*rows"]:
        noise = rest * source.probs(xt, rest.dtype)  # the chance that xt is a source token here
        shift = torch.log1p((1 - rest) / noise)
        certain = (noise == 0) & (rest < 1)  # at k = 0 nothing is known yet, whatever p0 is
        shift = torch.where(certain, torch.inf, torch.where(rest < 1, shift, 0.0))
        return torch.where(source.vocab.is_data(xt), shift, 0.0)

    def stays(self, source: Source) -> bool:
        return source.disjoint

    def settles(self, source: Source) -> bool:
        return True


EXAMPLES: tuple[Prediction, ...] = (Plain(), Carry(), Evidence())
