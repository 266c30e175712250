"""Stored pairs: the flow batches of a run whose coupling is `Rectified`, from a pair store and from text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ...data.corpus import visited
from ...flow import Flow
from ...network.network import Network
from ...runs.ot_batch import Share
from ...runs.rectified_pairs import RectifiedPairs
from ..labels import labels_of
from ..text import Text

ROWS = 1024
"""Rows of the text from which the hops of fresh pairs are predicted."""


class StoredPairs:
    """Flow batches (x0, x1) of a pair store: every epoch visits each pair once, in an order of (seed, epoch).

    With the probability `fresh` a pair is replaced by the text row of that position, with noise that is independent of
    it: the flow then also sees text that no network has written, and x0 still has the distribution of the source. What
    a row is depends on (seed, step, its index in the batch) only, so that nothing has to be saved.
    """

    workers = 0
    seconds_waited = 0.0

    def __init__(self, flow: Flow, corpus: Text, batch: int, seed: int, share: Share, labels: int = 0) -> None:
        if corpus.test_keep is not None:
            raise ValueError(
                "rectified pairs have no padding: train a text with pack=true; rows must have one length, or "
                "hf.data.rows(…, keep=True)"
            )
        self.corpus, self.batch, self.seed, self.share = corpus, batch, seed, share
        tokenizer = getattr(corpus, "tokenizer", None)
        self.pairs = RectifiedPairs.open(flow, corpus.length, getattr(tokenizer, "sha256", None))
        if labels:
            self.pairs.store.check_labels(labels, getattr(corpus, "label_names", ()))

    def agree(self, device: torch.device) -> None:
        """Use the pairs that every process has found: `hopflow rectify` may append to the store meanwhile."""
        if self.share.world > 1:
            store = self.pairs.store
            common = torch.tensor(len(store.chunks), device=device)
            dist.all_reduce(common, dist.ReduceOp.MIN)
            self.pairs = replace(self.pairs, store=store.first(int(common)))

    def __str__(self) -> str:
        store, fresh = self.pairs.store, self.pairs.fresh
        hops, error = self.pairs.hops(self.corpus.batch(self.seed, 0, ROWS if fresh else 1))
        share = f" and a share of {fresh:g} of text with independent noise" if fresh else ""
        return f"{len(store):,} pairs of {store.folder}{share}: predicted hops {hops:.2f} ± {error:.2f} per sequence"

    def identity(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a run's identity that name its store: by the pairs in it, not by its folder."""
        name = f"{len(self.pairs.store)} pairs, {self.pairs.store.sha256[:16]}"
        keys = {"flow.coupling.store": name, "coupling": f"rectified: {name}"}
        return {key: value for key, value in keys.items() if key in identity}

    def step(self, step: int, table: object = None, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """(x0, x1) of this process's rows of a step, on the CPU."""
        text = self.corpus.batch(self.seed, step * self.batch, self.batch) if self.pairs.fresh else None
        x0, x1 = self.pairs.batch(self._index(step), text, self.seed, step)
        return self.share.take(x0, self.batch), self.share.take(x1, self.batch)

    def labels(self, step: int) -> Tensor:
        """The labels of these rows."""
        text = labels_of(self.corpus, self.seed, step * self.batch, self.batch) if self.pairs.fresh else None
        return self.share.take(self.pairs.labels(self._index(step), text, self.seed, step), self.batch)

    def _index(self, step: int) -> NDArray[np.int64]:
        """The pairs of a step, by their index in the store."""
        return visited(step * self.batch, self.batch, len(self.pairs.store), self.seed)

    def report(self, step: int) -> None:
        """Nothing is solved, so there is nothing to report."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to resume: a step depends on its number only."""

    def wait_until_ready(self) -> None:
        """There are no workers."""

    def close(self) -> None:
        """There are no workers."""
