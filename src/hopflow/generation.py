"""Generation: sequences that were drawn, and what it took."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .costs import Cost
from .estimate import mean_and_error, plus_minus
from .filters import Filter
from .samplers import Sampler
from .velocities import Eta

HOLE = -1
"""Stands in a prompt for a token to be drawn, and in ragged results for what is beyond a sequence's end."""

PART = 1 << 15
"""Hops whose cost is computed at once."""


@dataclass(frozen=True, eq=False)
class Hops:
    """Every change of a token: of which sequence, when, where, from what to what; in the order of time."""

    row: Int[Tensor, " H"]
    t: Float[Tensor, " H"]
    position: Int[Tensor, " H"]
    before: Int[Tensor, " H"]
    after: Int[Tensor, " H"]


@dataclass(frozen=True, eq=False)
class Generation:
    """Sequences, and what it took to draw them."""

    tokens: Int[Tensor, "n L"]
    x0: Int[Tensor, "n L"]
    fixed: Bool[Tensor, "n L"]
    """Where a prompt stood."""
    lengths: Int[Tensor, " n"]
    """Tokens of each sequence; beyond them a ragged batch holds HOLE."""
    calls: Int[Tensor, " n"]
    """Network calls of each sequence."""
    redraws: Int[Tensor, "n L"]
    """How often each position was drawn anew, from the prediction or the source."""
    changes: Int[Tensor, "n L"]
    """How often that changed the token."""
    sampler: Sampler
    eta: Eta
    filter: Filter
    draw: str
    """How tokens were drawn: `categorical`, of float64 quality, or what was asked for instead."""
    hops: Hops | None = None
    precision: str = "unknown"
    """What the network computed in, up to its head: bf16, or the type of its weights; `unknown` of a plain function."""

    @property
    def steps(self) -> int | None:
        """Of the sampler; None in continuous time."""
        return getattr(self.sampler, "steps", None)

    @property
    def jumps(self) -> Float[Tensor, " n"]:
        """The hops of each sequence, all positions together."""
        return self.changes.sum(1).float()

    def rows(self) -> list[Int[Tensor, " L"]]:
        """The sequences without what is beyond their ends."""
        return [row[:length] for row, length in zip(self.tokens, self.lengths.tolist(), strict=True)]

    def text(self, tokenizer: Any, cut: bool = False) -> list[str]:
        """Decoded; `cut` ends each at the first end-of-text token that was drawn."""
        texts = []
        for row, fixed in zip(self.rows(), self.fixed, strict=True):
            ends = ((row == tokenizer.end) & ~fixed[: len(row)]).nonzero() if cut and tokenizer.end is not None else []
            texts.append(tokenizer.decode((row[: int(ends[0])] if len(ends) else row).tolist()))
        return texts

    def path_cost(self, cost: Cost, embedding: Float[Tensor, "V D"] | None = None) -> Float[Tensor, " n"]:
        """The dynamic cost of each sequence: the sum of s(from, to) over its hops. Theorem 3.1 [theorem1]"""
        hops = self._hops()
        # in parts: the embeddings of all hops of a thousand sequences take gigabytes
        parts = zip(*(x.split(PART) for x in (hops.row, hops.before, hops.after)), strict=True)
        total = torch.zeros(len(self.tokens), dtype=torch.float64)
        for row, before, after in parts:
            total = total.index_add(0, row.cpu(), cost.dissimilarity(before, after, embedding).cpu().double())
        return total

    def at(self, t: float) -> Int[Tensor, "n L"]:
        """The sequences as they stood at this time, before what moves then."""
        hops, length = self._hops(), self.x0.shape[1]
        place = hops.row * length + hops.position
        count = int((hops.t < t).sum())  # they are in order
        last = torch.full((self.x0.numel(),), -1, device=place.device)
        last = last.scatter_reduce(0, place[:count], torch.arange(count, device=place.device), "amax")
        after = torch.cat([hops.after, hops.after.new_zeros(1)])  # there may be none at all
        return torch.where(last < 0, self.x0.flatten(), after[last]).view_as(self.x0)

    def __str__(self) -> str:
        eta = "η(t)" if callable(self.eta) else f"{self.eta:g}"
        jumps, calls = plus_minus(*mean_and_error(self.jumps)), mean_and_error(self.calls)[0]
        return (
            f"{len(self.tokens)} sequences, {self.sampler.label}, eta {eta}: hops {jumps} and "
            f"{calls:.4g} network calls per sequence"
        )

    def _hops(self) -> Hops:
        if self.hops is None:
            raise ValueError("the hops were not kept: draw with trajectory=True")
        return self.hops
