"""The law p_{0|t} that the reversal of coupled pairs renoises tokens from: of a network, or of its second head."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .sources import Source
from .x0_prediction import x0_shift

CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Numbers of (rows × V) that are held at once."""

Rows = Callable[[Tensor, Tensor], Tensor]
"""Of (row, position): log p_{0|t} over all tokens."""


@dataclass(frozen=True)
class X0Law:
    """log p_{0|t} at the positions that are asked for, and the probability of any other token than xt everywhere."""

    rows: Rows
    other: Float[Tensor, "B L"]

    @classmethod
    def of_logits(cls, logits: Float[Tensor, "B L V"], xt: Int[Tensor, "B L"], source: Source) -> "X0Law":
        """Of full logits, -inf where p0 = 0."""
        size = source.vocab.size
        if logits.shape != (*xt.shape, size):
            raise ValueError(f"a network for x0 must return logits {(*xt.shape, size)}; got {tuple(logits.shape)}")
        return cls._of(lambda row, position: logits[row, position], None, xt, source)

    @classmethod
    def of_head(
        cls,
        head: Any,
        features: Float[Tensor, "B L D"],
        xt: Int[Tensor, "B L"],
        rest: Float[Tensor, "#B #L"],
        source: Source,
    ) -> "X0Law":
        """Of an `X0Head` and the features it reads, with the evidence of xt added; the head runs on chunks of rows."""
        weights = head.linear.weight.dtype

        def rows(row: Tensor, position: Tensor) -> Tensor:
            with torch.autocast(features.device.type, enabled=False):  # logits in bf16 would keep three digits
                logits: Tensor = head(features[row, position].to(weights))
            return logits

        return cls._of(rows, x0_shift(xt, rest.expand(xt.shape), head.unigram.to(rest)), xt, source)

    @classmethod
    def _of(cls, logits: Rows, shift: Tensor | None, xt: Int[Tensor, "B L"], source: Source) -> "X0Law":
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
