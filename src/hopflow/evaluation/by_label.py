"""Bounds of a network with labels: on -log p(x1 | label) of all sequences, and of those of each label."""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds.estimate import Estimate
from .evaluated_model import EvaluatedModel
from .sets import TextSet

Labels = Int[Tensor, " m"] | None
MOST = 16
"""Labels up to which each has its own rows."""
LEAST = 2
"""Sequences of a label that a standard error needs."""


def with_labels(
    estimate: Callable[[Tensor, int, Labels], Sequence[Estimate]], x1: Int[Tensor, "n L"], labels: Labels
) -> tuple[Callable[[Tensor, int], Sequence[Estimate]], Tensor]:
    """An estimator of rows that contain their label, and these rows: the label of a row is one more column."""
    if labels is None:
        return lambda rows, turn: estimate(rows, turn, None), x1
    joined = torch.cat([x1, labels.to(x1)[:, None]], 1)
    return lambda rows, turn: estimate(rows[:, :-1], turn, rows[:, -1]), joined


def by_label(
    evaluated: EvaluatedModel, texts: TextSet, estimate: Estimate, rows: int
) -> Iterator[tuple[TextSet, Estimate]]:
    """The estimate for the sequences of each label among the first `rows`, which `estimate` has measured.

    None for an estimate whose values belong to minibatches, and for a network with many labels.
    """
    if texts.labels is None or len(estimate.each) != rows or evaluated.labels > MOST:
        return
    for label in texts.labels[:rows].unique().tolist():
        own, places = texts.of_label(label, evaluated.label_name(label), rows)
        if len(places) >= LEAST:
            yield own, estimate.of_rows(places)
