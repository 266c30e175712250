"""Rectified pairs: the pairs of a store, of which a share `fresh` is replaced by text with independent noise."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from ..bounds.estimate import mean_and_error
from ..couplings import Rectified
from ..flow import Flow
from .pair_store import PairStore
from .rng import stream


@dataclass(frozen=True, eq=False)
class RectifiedPairs:
    """The pairs (x0, x1) that a flow with the coupling `Rectified` is trained on."""

    flow: Flow
    store: PairStore
    fresh: float

    @classmethod
    def open(cls, flow: Flow, length: int, tokenizer: str | None = None) -> "RectifiedPairs":
        """Open the store that the coupling names; a ValueError if it is missing, damaged or of another text."""
        coupling = flow.coupling
        assert isinstance(coupling, Rectified)
        store = PairStore.open(coupling.store)
        store.check(flow, length, tokenizer)
        return cls(flow, store, coupling.fresh)

    def batch(
        self, index: NDArray[np.int64], text: Int[Tensor, "n L"] | None, seed: int, step: int
    ) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """The pairs of these indices; each is with probability `fresh` a row of `text` with noise of (seed, step)."""
        x0, x1 = self.store.pairs(index)
        if not self.fresh:
            return x0, x1
        assert text is not None
        real = self._is_text(len(index), seed, step)
        noise = torch.rand(x0.shape, generator=stream(seed, "source", step), dtype=torch.float64)
        return torch.where(real, self.flow.source.at(noise), x0), torch.where(real, text, x1)

    def labels(
        self, index: NDArray[np.int64], text: Int[Tensor, " n"] | None, seed: int, step: int
    ) -> Int[Tensor, " n"]:
        """The labels of the pairs of `batch`; `text` are those of the rows of text."""
        stored = self.store.labels(index)
        assert stored is not None
        return stored if text is None else torch.where(self._is_text(len(index), seed, step)[:, 0], text, stored)

    def _is_text(self, count: int, seed: int, step: int) -> Bool[Tensor, "n 1"]:
        return torch.rand(count, 1, generator=stream(seed, "fresh", step)) < self.fresh

    def next_to(self, text: Int[Tensor, "n L"], seed: int, index: int) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """As many pairs as there are rows of text: batch `index` of the store, which begins again at its end."""
        rows = np.arange(index * len(text), (index + 1) * len(text), dtype=np.int64) % len(self.store)
        return self.batch(rows, text, seed, index)

    def hops(self, text: Int[Tensor, "m L"]) -> tuple[float, float]:
        """E d_H(x0, x1) of the pairs and its standard error; `text` are rows for the share that is fresh."""
        hops, error = self.store.hops()
        if not self.fresh:
            return hops, error
        fresh, fresh_error = independent_hops(self.flow, text)
        share = 1 - self.fresh, self.fresh
        return share[0] * hops + share[1] * fresh, float(np.hypot(share[0] * error, share[1] * fresh_error))


def independent_hops(flow: Flow, x1: Int[Tensor, "m L"]) -> tuple[float, float]:
    """E d_H(x0, x1) = Σ_i (1 - p0(x1^i)) for noise that is independent of these rows, with its standard error."""
    return mean_and_error((1 - flow.source.probs(x1).double()).sum(1))
