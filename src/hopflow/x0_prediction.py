"""The law of x0 given xt, from the logits of a head over all tokens: what the reversal of coupled pairs needs.

It mirrors `Evidence`: the logits stand for the context, and what xt itself says of x0 is added (theory.md §7). With q1,
the smoothed token frequencies of the data, logit0(xt) += log(1 + (1-k)/(k·q1(xt))). A token that is no data token, and
every token at k = 0, is x0 for certain.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from .paths import PathSample
from .scores import head_three


def smoothed(counts: Int[Tensor, " Vd"]) -> Float[Tensor, " Vd"]:
    """Token frequencies, of which a thousandth is spread evenly: a token that was not seen is not impossible."""
    total = counts.sum().clamp(min=1)
    return (0.999 * counts.double() / total + 0.001 / len(counts)).float()


def x0_shift(
    xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, "*rows"]:
    """What to add to the logit of xt; inf where xt is x0 for certain."""
    is_data = xt < len(unigram)
    q1 = torch.where(is_data, unigram.to(rest.dtype)[xt.clamp(max=len(unigram) - 1)], 0.0)
    seen = (1 - rest) * q1  # the chance that xt has come from the data
    shift = torch.log1p(rest / torch.where(seen > 0, seen, 1.0))
    return torch.where(seen > 0, shift, torch.inf)


def x0_nats(
    head: nn.Linear, features: Float[Tensor, "B L D"], sample: PathSample, unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, " B"]:
    """-log p_{0|t}(x0 | xt), summed over the positions that count: what the head is trained on."""
    xt, x0 = sample.xt, sample.x0
    three = head_three(head, features.flatten(0, 1), xt.flatten(), x0.flatten())
    others, at_xt, at_x0 = three.unflatten(0, xt.shape).unbind(-1)
    shift = x0_shift(xt, sample.rest, unigram)
    certain = torch.isinf(shift)
    gap = others - at_xt - torch.where(certain, 0.0, shift).to(others.dtype)
    log_p = torch.where(x0 == xt, logsigmoid(-gap), at_x0 - others + logsigmoid(gap))
    return sample.total(torch.where(certain, 0.0, -log_p))
