"""Matched: batches of a run's own text, before and after a coupling."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..costs import Hamming, SequenceCost
from ..couplings import Coupling, ExactOT, Independent
from ..estimate import mean_and_error
from ..evaluation.measured import Measured
from ..network import Network, home
from ..training.streams import stream
from .trained import Trained

ROWS, BATCHES, SEED = 64, 8, 0
BARS = 24
"""Of the histograms of costs."""

Numbers = tuple[float, float]
"""A mean over batches and its standard error."""


@dataclass(frozen=True)
class Matched:
    """Batches before and after a coupling; the first of them in full."""

    coupling: str
    cost: str
    rows: int
    trained: int
    """Rows of an OT batch of the training; 0 where pairs are as they come."""
    batches: int
    before: Numbers
    after: Numbers
    gain: Numbers
    """The share that is saved."""
    equal_before: Numbers
    """The share of positions at which the rows of a pair are equal."""
    equal_after: Numbers
    matrix: tuple[tuple[float, ...], ...]
    """Costs of the first batch, a row per data row."""
    order: tuple[int, ...]
    """The source row that each data row is given."""
    edges: tuple[float, ...]
    all_pairs: tuple[float, ...]
    """Shares of the costs between two edges."""
    own_pairs: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """No pair is better than another, such as by Hamming from a disjoint source: there is nothing to see."""
        return self.before == self.after and len(set(self.matrix[0])) == 1


def pair(trained: Trained) -> Matched:
    """Batches of the training text by the run's coupling; where it has none, by what exact transport would do."""
    plain = isinstance(trained.flow.coupling, Independent)
    coupling: Coupling = ExactOT(Hamming()) if plain else trained.flow.coupling
    rows = ROWS if plain else min(ROWS, trained.ot_batch)
    reads = trained.reads(coupling)
    batches = [
        (
            trained.flow.source.sample(rows, trained.length, generator=stream(SEED, "report", index)),
            trained.corpus.batch(SEED, index * rows, rows),
        )
        for index in range(BATCHES)
    ]
    return match(coupling, batches, 0 if plain else trained.ot_batch, **reads)


def match(
    coupling: Coupling,
    batches: Sequence[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]],
    trained: int = 0,
    embedding: Float[Tensor, "V D"] | None = None,
    network: Network | None = None,
) -> Matched:
    """What a coupling does to batches of source and data rows; before it, every pair counts alike."""
    found = [_Batch.of(coupling, *rows, index, embedding, network) for index, rows in enumerate(batches)]
    before, after = _means(batch.costs for batch in found), _means(batch.own(batch.costs) for batch in found)
    gain = Measured.ratio("gain", before - after, before, "") if bool(before.any()) else None
    every = torch.cat([batch.costs.flatten() for batch in found])
    edges = _edges(every)
    return Matched(
        type(coupling).__name__,
        type(_cost(coupling)).__name__,
        len(found[0].order),
        trained,
        len(found),
        mean_and_error(before),
        mean_and_error(after),
        (0.0, 0.0) if gain is None else (gain.value, gain.stderr),
        mean_and_error(_means(batch.equal for batch in found)),
        mean_and_error(_means(batch.own(batch.equal) for batch in found)),
        tuple(tuple(round(cost, 4) for cost in row) for row in found[0].costs.tolist()),
        tuple(found[0].order.tolist()),
        tuple(edges.tolist()),
        _shares(every, edges),
        _shares(torch.cat([batch.own(batch.costs) for batch in found]), edges),
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """What every pair of a batch costs, how alike its rows are, and which source row each data row is given."""

    costs: Float[Tensor, "n n"]
    equal: Float[Tensor, "n n"]
    order: Int[Tensor, " n"]

    @classmethod
    def of(
        cls,
        coupling: Coupling,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        index: int,
        embedding: Float[Tensor, "V D"] | None,
        network: Network | None,
    ) -> "_Batch":
        there = torch.device("cpu") if network is None else home(network)  # a network is asked where it is
        x0, x1 = x0.to(there), x1.to(there)
        table = None if embedding is None else embedding.to(there)
        with torch.no_grad():
            chosen = coupling.match(x0, x1, stream(SEED, "report coupling", index), embedding=table, network=network)
            costs = _cost(coupling).matrix(x0, x1, table, network)
        equal = 1 - Hamming().matrix(x0, x1) / x0.shape[1]
        return cls(costs.cpu().double(), equal.cpu().double(), chosen.order.cpu())

    def own(self, matrix: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
        """Of the coupling's pairs."""
        return matrix[torch.arange(len(self.order)), self.order]


def _edges(costs: Float[Tensor, " m"]) -> Float[Tensor, " e"]:
    """Of bars as wide as each other; where all costs are whole numbers, each bar holds as many of these."""
    low, high = float(costs.min()), float(costs.max())
    if bool((costs == costs.round()).all()):
        width = max(1, math.ceil((high - low + 1) / BARS))
        count = math.ceil((high - low + 1) / width)
        return low - 0.5 + width * torch.arange(count + 1, dtype=torch.float64)
    return torch.linspace(low, high if high > low else low + 1, BARS + 1, dtype=torch.float64)


def _cost(coupling: Coupling) -> SequenceCost:
    cost = getattr(coupling, "cost", None)
    return cost if isinstance(cost, SequenceCost) else Hamming()


def _means(values: Iterable[Tensor]) -> Float[Tensor, " batches"]:
    return torch.stack([value.mean() for value in values])


def _shares(costs: Float[Tensor, " pairs"], edges: Float[Tensor, " E"]) -> tuple[float, ...]:
    counts = torch.bucketize(costs, edges[1:-1]).bincount(minlength=len(edges) - 1)
    return tuple((counts.double() / len(costs)).tolist())
