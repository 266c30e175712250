"""Generation: sequences drawn by `generate`, with their network calls, redraws and hops."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds.estimate import mean_and_error, plus_minus
from ..costs import Cost
from ..velocities import Eta
from .filters import Filter
from .samplers import Sampler

HOLE = -1
"""The id of a token to be drawn in a prompt, and of the padding after shorter sequences in a result."""

HOPS_PER_CHUNK = 1 << 15
"""Hops whose cost is computed at once."""


@dataclass(frozen=True, eq=False)
class Hops:
    """Every change of a token, in the order of time: sequence, time, position, old and new token."""

    row: Int[Tensor, " H"]
    t: Float[Tensor, " H"]
    position: Int[Tensor, " H"]
    before: Int[Tensor, " H"]
    after: Int[Tensor, " H"]


@dataclass(frozen=True, eq=False)
class Generation:
    """Sequences drawn by `generate` or `infill`."""

    tokens: Int[Tensor, "n L"]
    x0: Int[Tensor, "n L"]
    fixed: Bool[Tensor, "n L"]
    """True for the tokens of the prompt."""
    lengths: Int[Tensor, " n"]
    """Tokens of each sequence; later positions contain HOLE."""
    calls: Int[Tensor, " n"]
    """Network calls of each sequence."""
    redraws: Int[Tensor, "n L"]
    """How often each position was redrawn, from the prediction or the source."""
    changes: Int[Tensor, "n L"]
    """How often a redraw changed the token."""
    sampler: Sampler
    eta: Eta
    filter: Filter
    draw: str
    """Name of the function that drew the tokens: `categorical` by default."""
    hops: Hops | None = None
    precision: str = "unknown"
    """Float type of the network up to its head: bf16, or the type of its weights; `unknown` for a plain function."""

    @property
    def steps(self) -> int | None:
        """Number of steps of the sampler; None in continuous time."""
        times = self.sampler.step_times
        return None if times is None else len(times) - 1

    @property
    def jumps(self) -> Float[Tensor, " n"]:
        """The number of hops of each sequence."""
        return self.changes.sum(1).float()

    def rows(self) -> list[Int[Tensor, " L"]]:
        """The sequences without padding."""
        return [row[:length] for row, length in zip(self.tokens, self.lengths.tolist(), strict=True)]

    def text(self, tokenizer: Any, cut: bool = False) -> list[str]:
        """The decoded sequences; with `cut` each ends at the first end-of-text token that was drawn."""
        texts = []
        for row, fixed in zip(self.rows(), self.fixed, strict=True):
            ends = ((row == tokenizer.end) & ~fixed[: len(row)]).nonzero() if cut and tokenizer.end is not None else []
            texts.append(tokenizer.decode((row[: int(ends[0])] if len(ends) else row).tolist()))
        return texts

    def path_cost(self, cost: Cost, embedding: Float[Tensor, "V D"] | None = None) -> Float[Tensor, " n"]:
        """The dynamic cost of each sequence: the sum of s(from, to) over its hops. Theorem 3.1 [theorem1]"""
        hops = self._hops()
        # in chunks: the embeddings of all hops of a thousand sequences take gigabytes
        chunks = zip(*(x.split(HOPS_PER_CHUNK) for x in (hops.row, hops.before, hops.after)), strict=True)
        total = torch.zeros(len(self.tokens), dtype=torch.float64)
        for row, before, after in chunks:
            total = total.index_add(0, row.cpu(), cost.dissimilarity(before, after, embedding).cpu().double())
        return total

    def at(self, t: float) -> Int[Tensor, "n L"]:
        """The state of the sequences at time t, before the events at t."""
        hops, length = self._hops(), self.x0.shape[1]
        place = hops.row * length + hops.position
        count = int((hops.t < t).sum())  # they are sorted by time
        last = torch.full((self.x0.numel(),), -1, device=place.device)
        last = last.scatter_reduce(0, place[:count], torch.arange(count, device=place.device), "amax")
        after = torch.cat([hops.after, hops.after.new_zeros(1)])  # there may be no hop
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
            raise ValueError("the hops were not recorded: pass trajectory=True to generate.")
        return self.hops
