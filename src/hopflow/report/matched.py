"""Batches of a run's training text, before and after its coupling."""

import math
import time
from collections.abc import Iterable, Iterator
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
from .expected import check_time
from .journey import SECONDS
from .numbers import Error
from .trained import Trained

SHOWN, BATCHES, SEED = 64, 8, 0
"""Rows of a batch that are drawn, batches that are coupled at most, and their seed."""
BARS = 24
"""Of the histograms of costs."""

Numbers = tuple[float, Error]
"""A mean over batches and its standard error."""
Square = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Matched:
    """Batches before and after a coupling, of the size that the run was trained with."""

    coupling: str
    cost: str
    rows: int
    """Rows of a batch."""
    coupled: bool
    """Whether the run itself uses this coupling; otherwise it is what exact transport would do."""
    batches: int
    before: Numbers
    after: Numbers
    gain: Numbers
    """The share that is saved."""
    equal_before: Numbers
    """The share of positions at which the rows of a pair are equal."""
    equal_after: Numbers
    drawn: Square
    """Centred costs of the first data rows (rows) and the first source rows (columns) of the first batch."""
    paired: Square
    """The same data rows with their partners as columns: pairs are the diagonal."""
    edges: tuple[float, ...]
    all_pairs: tuple[float, ...]
    """Shares of the costs between two edges."""
    own_pairs: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """Whether all pairs cost the same, such as by Hamming from a disjoint source: there is nothing to choose."""
        return self.before[0] == self.after[0] and not any(value for row in self.drawn for value in row)


def pair(trained: Trained) -> Matched:
    """Batches of the training text, coupled as in the training; independent pairs are compared with exact OT."""
    plain = isinstance(trained.flow.coupling, Independent)
    coupling: Coupling = ExactOT(Hamming()) if plain else trained.flow.coupling
    rows = trained.ot_batch
    check_time(trained, rows)
    return match(coupling, _batches(trained, rows), not plain, **trained.reads(coupling))


def _batches(trained: Trained, rows: int) -> Iterator[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
    """Source and data rows that are not coupled yet: two batches, and more while there is time."""
    started = time.perf_counter()
    for index in range(BATCHES):
        if index > 1 and time.perf_counter() - started > SECONDS:
            break
        x0 = trained.flow.source.sample(rows, trained.length, generator=stream(SEED, "report", index))
        yield x0, trained.corpus.batch(SEED, index * rows, rows)


def match(
    coupling: Coupling,
    batches: Iterable[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]],
    coupled: bool = True,
    embedding: Float[Tensor, "V D"] | None = None,
    network: Network | None = None,
) -> Matched:
    """What a coupling does to batches of source and data rows; before it, every pair counts alike."""
    found = [_Batch.of(coupling, *rows, index, embedding, network) for index, rows in enumerate(batches)]
    before, after = _stack(batch.before for batch in found), _stack(batch.own.mean() for batch in found)
    gain = Measured.ratio("gain", before - after, before, "") if bool(before.any()) else None
    every, own = torch.cat([batch.some for batch in found]), torch.cat([batch.own for batch in found])
    edges = _edges(torch.cat([every, own]))
    return Matched(
        type(coupling).__name__,
        type(_cost(coupling)).__name__,
        len(found[0].own),
        coupled,
        len(found),
        mean_and_error(before),
        mean_and_error(after),
        (0.0, 0.0) if gain is None else (gain.value, gain.stderr),
        mean_and_error(_stack(batch.equal_before for batch in found)),
        mean_and_error(_stack(batch.equal_after for batch in found)),
        _square(found[0].drawn),
        _square(found[0].paired),
        tuple(edges.tolist()),
        _shares(every, edges),
        _shares(own, edges),
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """One batch, of which only what is shown is kept: a batch of 4,096 rows has 16 million pairs."""

    before: Float[Tensor, ""]
    own: Float[Tensor, " n"]
    """Costs of the coupling's pairs."""
    some: Float[Tensor, " m"]
    """Costs of all pairs of the first rows."""
    equal_before: Float[Tensor, ""]
    equal_after: Float[Tensor, ""]
    drawn: Float[Tensor, "k k"]
    paired: Float[Tensor, "k k"]

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
            costs = _cost(coupling).matrix(x0, x1, table, network).cpu().double()
        order = chosen.order.cpu()
        equal = 1 - Hamming().matrix(x0, x1).cpu().double() / x0.shape[1]
        rows, few = torch.arange(len(order)), torch.arange(min(SHOWN, len(order)))
        centred = costs - costs.mean(1, keepdim=True) - costs.mean(0) + costs.mean()
        return cls(
            costs.mean(),
            costs[rows, order],
            costs[: 4 * SHOWN, : 4 * SHOWN].flatten(),
            equal.mean(),
            equal[rows, order].mean(),
            centred[few][:, few],
            centred[few][:, order[few]],
        )


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


def _stack(values: Iterable[Tensor]) -> Float[Tensor, " batches"]:
    return torch.stack(list(values))


def _square(values: Float[Tensor, "k k"]) -> Square:
    return tuple(tuple(round(value, 4) for value in row) for row in values.tolist())


def _shares(costs: Float[Tensor, " pairs"], edges: Float[Tensor, " E"]) -> tuple[float, ...]:
    counts = torch.bucketize(costs, edges[1:-1]).bincount(minlength=len(edges) - 1)
    return tuple((counts.double() / len(costs)).tolist())
