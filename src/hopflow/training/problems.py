"""Problems: one OT batch to be coupled, and what came out; the same bits wherever it is solved."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..couplings import Match, OptimalTransport, Pairs
from ..flow import Flow
from ..network import Network, home, resting
from ..split import Split
from .shares import Share
from .sheets import Sheet
from .streams import stream


@dataclass(frozen=True)
class Solution:
    """The source row of each data row, and what the pairing did (`couplings.Pairs`)."""

    x0: Int[Tensor, "n L"]
    cost: float
    independent_cost: float
    marginal_error: float
    information: float
    converged: bool
    seconds: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """All but the rows: what a worker's answer and a saved state carry beside them."""
        return (
            self.cost,
            self.independent_cost,
            self.marginal_error,
            self.information,
            float(self.converged),
            self.seconds,
        )

    @classmethod
    def from_match(cls, x0: Int[Tensor, "n L"], found: Match | Pairs, seconds: float) -> "Solution":
        numbers = (found.cost, found.independent_cost, found.marginal_error, found.information)
        return cls(x0, *numbers, found.verdict.converged, seconds)

    @classmethod
    def of(cls, x0: Int[Tensor, "n L"], numbers: Sequence[float]) -> "Solution":
        cost, independent_cost, marginal_error, information, converged, seconds = numbers
        return cls(x0, cost, independent_cost, marginal_error, information, bool(converged), seconds)


@dataclass(frozen=True)
class Report:
    """What the coupling of one OT batch did and took."""

    index: int
    cost: float
    independent_cost: float
    marginal_error: float
    information: float
    converged: bool
    seconds_solved: float
    seconds_waited: float
    """By the training step, whether for a worker or for a solution in place."""
    in_place: bool
    """Not by a worker: none was ready, one failed, or the cost reads the network, which only the trainer has."""

    @classmethod
    def of(cls, index: int, s: Solution, waited: float, in_place: bool) -> "Report":
        numbers = (s.cost, s.independent_cost, s.marginal_error, s.information)
        return cls(index, *numbers, s.converged, s.seconds, waited, in_place)


@dataclass(frozen=True)
class Draw:
    """What names the random numbers of an OT batch: the run's seed, its index, and which rows are paired here."""

    seed: int
    index: int
    ot_batch: int
    batch: int
    share: Share = Share()

    def uniforms(self, length: int) -> Float[Tensor, "n L"]:
        """The numbers at which `Source.at` looks up the source rows: here or on a GPU, with the same result."""
        # drawn for all processes and then shared out, so that x0 does not depend on how many there are
        generator = stream(self.seed, "source", self.index)
        every = torch.rand(self.ot_batch, length, generator=generator, dtype=torch.float64)
        return self.share.take(every, self.batch)

    def coupling(self) -> torch.Generator:
        """What the coupling draws from."""
        return stream(self.seed, "coupling", self.index, self.share.rank)


@dataclass(frozen=True)
class Problem:
    """The data rows of an OT batch, and what its coupling may read of them and of the model, as it was for this batch.

    `group` holds a label per data row: rows pair only within a group, the source rows by their positions in the batch.
    """

    draw: Draw
    x1: Int[Tensor, "n L"]
    group: Int[Tensor, " n"] | None = None
    table: Float[Tensor, "V D"] | None = None
    network: Network | None = None

    def solve(self, flow: Flow) -> Solution:
        """Draw the source rows and couple them."""
        started = time.perf_counter()
        x0 = flow.source.at(self.draw.uniforms(self.x1.shape[1]))  # (n, L)
        with one_thread():
            pairs = self._pairs(flow, x0)
        if not torch.equal(pairs.x1.cpu(), self.x1):
            raise ValueError(
                f"{type(flow.coupling).__name__}.pair changed the data rows or their order; a coupling gives each "
                f"data row one source row, in the order of the data rows"
            )
        return Solution.from_match(pairs.x0.cpu(), pairs, time.perf_counter() - started)

    def _pairs(self, flow: Flow, x0: Int[Tensor, "n L"]) -> Pairs:
        """Where the network is, if one is asked; it takes no gradient, and no dropout falls."""
        generator = self.draw.coupling()
        if self.network is None:
            return flow.coupling.pair(x0, self.x1, generator, embedding=self.table, group=self.group)
        there = home(self.network)
        table = None if self.table is None else self.table.to(there)
        with resting(self.network):
            return flow.coupling.pair(
                x0.to(there),
                self.x1.to(there),
                generator,
                embedding=table,
                network=self.network,
                group=self.group,
            )


@dataclass(frozen=True)
class Priced:
    """An OT batch whose cost matrix is known, a row per data row: to solve it asks for no table and no network."""

    draw: Draw
    x0: Int[Tensor, "n L"]
    split: Split
    group: Int[Tensor, " n"] | None = None

    def solve(self, flow: Flow) -> Solution:
        """Couple the source rows, which are drawn already."""
        assert isinstance(flow.coupling, OptimalTransport)
        started = time.perf_counter()
        with one_thread():
            found = flow.coupling.settle(self.split, self.draw.coupling(), self.group)
        return Solution.from_match(self.x0[found.order], found, time.perf_counter() - started)


def posed(draw: Draw, sheet: Sheet) -> Problem | Priced:
    """What is on a sheet; the source rows that answer it belong to its place "x0"."""
    if sheet.get("pairwise") is None:
        return Problem(draw, sheet["x1"], sheet.get("group"), sheet.get("table"))
    split = Split(sheet["pairwise"], sheet["rows"], sheet["columns"])
    return Priced(draw, sheet["source"], split, sheet.get("group"))


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread, here and in workers: a matrix product's last bits depend on how many share its sums.

    And one does not wait for the others, of which some may have no core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
