"""Labels of the rows of a corpus, for training a network with labels."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..flow import Flow
from ..network.network import NO_LABEL, label_count
from ..runs.ot_batch import Share
from ..runs.rng import stream
from .settings import Settings


def labels_of(corpus: Any, seed: int, start: int, count: int) -> Int[Tensor, " n"]:
    """The labels of the training rows that `corpus.batch` returns for the same arguments."""
    labels: Int[Tensor, " n"] = corpus.labels(seed, start, count)
    return labels


class RowLabels:
    """The labels of the rows of training steps, OT batches, evaluations and samples."""

    def __init__(self, corpus: Any, settings: Settings, share: Share) -> None:
        self.corpus, self.settings, self.share = corpus, settings, share

    @classmethod
    def of(cls, model: object, flow: Flow, corpus: Any, settings: Settings, share: Share) -> "RowLabels | None":
        """The labels of a corpus for this network; None for a network without labels.

        Raises a ValueError if the network has labels that the corpus does not have, or fewer.
        """
        count = label_count(model)
        if not count:
            return None
        _check(count, flow, corpus)
        return cls(corpus, settings, share)

    def of_step(self, step: int, stored: Int[Tensor, " n"] | None = None) -> Int[Tensor, " n"]:
        """The labels of this process's rows of a step; each is left out with the probability `label_dropout`.

        `stored` are the labels of these rows if the step has stored pairs.
        """
        seed, size = self.settings.seed, self.settings.batch
        labels = self.share.take(labels_of(self.corpus, seed, step * size, size), size) if stored is None else stored
        dropped = torch.rand(size, generator=stream(seed, "label dropout", step)) < self.settings.label_dropout
        return torch.where(self.share.take(dropped, size), NO_LABEL, labels)

    def of_ot_batch(self, index: int) -> Int[Tensor, " n"]:
        """The labels of an OT batch: rows are paired within their label.

        Pairs across labels would change the distribution of x0 given the label, but samples of every label start from
        the source.
        """
        size = self.settings.ot_batch or self.settings.batch
        return self.share.take(labels_of(self.corpus, self.settings.seed, index * size, size), self.settings.batch)

    def of_test(self, rows: int) -> Int[Tensor, " n"]:
        """The labels of the first held-out rows."""
        labels: Int[Tensor, " n"] = self.corpus.test_labels[:rows]
        return labels

    def of_samples(self, count: int) -> Int[Tensor, " n"]:
        """Labels to generate samples for: those of as many training rows."""
        return labels_of(self.corpus, self.settings.seed, 0, count)


def _check(count: int, flow: Flow, corpus: Any) -> None:
    find = getattr(corpus, "labels", None)
    if (find(0, 0, 1) if callable(find) else None) is None:
        raise ValueError(
            f"the network has {count} labels, and the data has none: pass data with a label for each row, such as "
            f"hf.data.rows(array, labels=…), or build the network without labels."
        )
    names = getattr(corpus, "label_names", ())
    if len(names) > count:
        raise ValueError(
            f"the data has {len(names)} labels, but the network has {count}: build it with labels={len(names)}."
        )
    if flow.couples and "network" in flow.coupling.reads:
        raise ValueError(
            f"{flow.coupling} reads the network, which would need a label for each pair: use another cost, such as "
            f"Hamming(), or a network without labels."
        )
