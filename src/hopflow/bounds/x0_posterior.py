"""p_{0|t}, the distribution of x0 given xt, from the logits of a head over all tokens.

The reversal of coupled pairs redraws tokens from it. It mirrors `Evidence`: the logits describe the context, and the
information of xt itself is added (theory.md §7). With q1, the smoothed token frequencies of the data,
logit0(xt) += log(1 + (1-k)/(k·q1(xt))). A mask, and every token at k = 0, is x0 with probability 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..paths import PathSample
from ..scores import linear_head_terms
from ..sources import Source

CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Largest (rows × V) that is held at once on a CPU and on a GPU."""

LogProbRows = Callable[[Tensor, Tensor], Tensor]
"""(row, position) -> log p_{0|t} over all tokens."""


@dataclass(frozen=True)
class X0Posterior:
    """log p_{0|t} at any positions, and the probability of all tokens other than xt at every position."""

    rows: LogProbRows
    other: Float[Tensor, "B L"]

    @classmethod
    def from_logits(cls, logits: Float[Tensor, "B L V"], xt: Int[Tensor, "B L"], source: Source) -> "X0Posterior":
        """From logits over all tokens; tokens with p0 = 0 are excluded."""
        size = source.vocab.size
        if logits.shape != (*xt.shape, size):
            raise ValueError(f"a network for x0 must return logits {(*xt.shape, size)}, got {tuple(logits.shape)}.")
        return cls._build(lambda row, position: logits[row, position], None, xt, source)

    @classmethod
    def from_head(
        cls,
        head: Any,
        features: Float[Tensor, "B L W"],
        xt: Int[Tensor, "B L"],
        rest: Float[Tensor, "#B #L"],
        source: Source,
    ) -> "X0Posterior":
        """From an `X0Head` and its features, with the evidence of xt added, in chunks of rows."""
        weights = head.linear.weight.dtype

        def rows(row: Tensor, position: Tensor) -> Tensor:
            with torch.autocast(features.device.type, enabled=False):  # logits in bf16 would have three digits only
                logits: Tensor = head(features[row, position].to(weights))
            return logits

        return cls._build(rows, x0_shift(xt, rest.expand(xt.shape), head.unigram.to(rest)), xt, source)

    @classmethod
    def _build(cls, logits: LogProbRows, shift: Tensor | None, xt: Int[Tensor, "B L"], source: Source) -> "X0Posterior":
        possible = source.probs_on(xt.device) > 0

        def rows(row: Tensor, position: Tensor) -> Tensor:
            found = logits(row, position).to(xt.device)
            found = found if found.dtype == torch.float64 else found.float()
            found = torch.where(possible, found, -torch.inf)
            if shift is None:
                return found.log_softmax(-1)
            at, more = xt[row, position, None], shift[row, position, None]
            certain = torch.isinf(more) & possible[at]
            seen = found.gather(-1, at) + torch.where(torch.isinf(more), 0.0, more).to(found.dtype)
            log_p = found.scatter(-1, at, seen).log_softmax(-1)
            return torch.where(certain, torch.full_like(log_p, -torch.inf).scatter(-1, at, 0.0), log_p)

        size = max(1, (CHUNK if xt.device.type == "cpu" else GPU_CHUNK) // source.vocab.size)
        places = torch.arange(xt.numel(), device=xt.device)
        found = []
        for some in places.split(size):
            at = some // xt.shape[1], some % xt.shape[1]
            without = rows(*at).scatter(-1, xt[at][:, None], -torch.inf)
            found.append(without.logsumexp(-1).double().exp().clamp(max=1))
        return cls(rows, torch.cat(found).view(xt.shape))


def smoothed(counts: Int[Tensor, " Vd"]) -> Float[Tensor, " Vd"]:
    """Token frequencies, mixed with a uniform distribution of weight 0.001, so that all are positive."""
    total = counts.sum().clamp(min=1)
    return (0.999 * counts.double() / total + 0.001 / len(counts)).float()


def x0_shift(
    xt: Int[Tensor, "*rows"], rest: Float[Tensor, "*#rows"], unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, "*rows"]:
    """What is added to the logit of xt; inf where xt is x0 with probability 1."""
    is_data = xt < len(unigram)
    q1 = torch.where(is_data, unigram.to(rest.dtype)[xt.clamp(max=len(unigram) - 1)], 0.0)
    seen = (1 - rest) * q1  # the probability that xt has come from the data
    shift = torch.log1p(rest / torch.where(seen > 0, seen, 1.0))
    return torch.where(seen > 0, shift, torch.inf)


def x0_nats(
    head: nn.Linear, features: Float[Tensor, "B L D"], sample: PathSample, unigram: Float[Tensor, " Vd"]
) -> Float[Tensor, " B"]:
    """-log p_{0|t}(x0 | xt), summed over the positions that count: the training loss of the head."""
    xt, x0 = sample.xt, sample.x0
    three = linear_head_terms(head, features.flatten(0, 1), xt.flatten(), x0.flatten())
    others, at_xt, at_x0 = three.unflatten(0, xt.shape).unbind(-1)
    shift = x0_shift(xt, sample.rest, unigram)
    certain = torch.isinf(shift)
    gap = others - at_xt - torch.where(certain, 0.0, shift).to(others.dtype)
    log_p = torch.where(x0 == xt, logsigmoid(-gap), at_x0 - others + logsigmoid(gap))
    return sample.total(torch.where(certain, 0.0, -log_p))
