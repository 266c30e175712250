"""OT batches: the rows that are coupled together, the share of each process, their random numbers, and the solution.

The result depends on the seed and the index of the OT batch only: it is equal to the bit in the trainer, in a worker
process and in an evaluation. Therefore it is computed with one CPU thread.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..couplings import CouplingNumbers, HasCouplingNumbers, OptimalTransport, Pairs, Verdict
from ..flow import Flow
from ..network.network import Network, device_of, evaluation_mode
from ..transport.cost_matrix import CostMatrix
from .rng import stream


@dataclass(frozen=True)
class Solution(HasCouplingNumbers):
    """The source row of each data row of an OT batch, and the numbers of its coupling."""

    x0: Int[Tensor, "n L"]
    numbers: CouplingNumbers

    @property
    def saved_numbers(self) -> tuple[float, ...]:
        """The numbers that a worker returns and a checkpoint stores, in this order."""
        n = self.numbers
        return (
            n.cost,
            n.independent_cost,
            n.marginal_error,
            n.information,
            float(n.verdict.converged),
            n.seconds,
        )

    @classmethod
    def restored(cls, x0: Int[Tensor, "n L"], saved_numbers: Sequence[float]) -> "Solution":
        """The inverse of `saved_numbers`."""
        cost, independent_cost, marginal_error, information, converged, seconds = saved_numbers
        verdict = Verdict(converged=bool(converged))
        return cls(x0, CouplingNumbers(cost, independent_cost, marginal_error, information, verdict, seconds))


@dataclass(frozen=True)
class Share:
    """The `rank`-th of `world` equal parts of every flow batch.

    An OT batch consists of several consecutive flow batches. A share of it is that part of each of them.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be between 0 and world - 1 = {self.world - 1}, got {self.rank}.")

    @classmethod
    def here(cls) -> "Share":
        """The share of this process under torch.distributed; the complete batch if that is not initialized."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def take(self, rows: Shaped[Tensor, "n *rest"], batch: int) -> Shaped[Tensor, "m *rest"]:
        """The rows of this share; `rows` holds consecutive flow batches of `batch` rows."""
        return self._parts(rows, batch)[:, self.rank].flatten(0, 1)

    def split(self, rows: Int[Tensor, "n L"], batch: int) -> list[Int[Tensor, "m L"]]:
        """The rows of every process, by rank."""
        return [part.flatten(0, 1) for part in self._parts(rows, batch).unbind(1)]

    def join(self, parts: list[Int[Tensor, "m L"]], batch: int) -> Int[Tensor, "n L"]:
        """The inverse of `split`."""
        each = batch // self.world
        return torch.stack([part.unflatten(0, (-1, each)) for part in parts], 1).flatten(0, 2)

    def _parts(self, rows: Shaped[Tensor, "n *rest"], batch: int) -> Shaped[Tensor, "k w b *rest"]:
        return rows.unflatten(0, (-1, self.world, batch // self.world))


@dataclass(frozen=True)
class OTDraw:
    """The key of an OT batch's random numbers: the seed of the run, the index of the batch, and the rows held here."""

    seed: int
    index: int
    ot_batch: int
    batch: int
    share: Share = Share()

    def uniforms(self, length: int) -> Float[Tensor, "n L"]:
        """The uniform numbers from which `Source.at` computes the source rows, with the same result on CPU and GPU."""
        # drawn for all processes, then divided, so that x0 does not depend on the number of processes
        generator = stream(self.seed, "source", self.index)
        every = torch.rand(self.ot_batch, length, generator=generator, dtype=torch.float64)
        return self.share.take(every, self.batch)

    def coupling(self) -> torch.Generator:
        """The random generator of the coupling."""
        return stream(self.seed, "coupling", self.index, self.share.rank)


@dataclass(frozen=True)
class OTProblem:
    """The data rows of an OT batch, and the embedding table or network that its cost reads.

    `group` has a label per data row: rows are paired within a group only. Source row i belongs to the group of data
    row i.
    """

    draw: OTDraw
    x1: Int[Tensor, "n L"]
    group: Int[Tensor, " n"] | None = None
    table: Float[Tensor, "V D"] | None = None
    network: Network | None = None

    def solve(self, flow: Flow) -> Solution:
        """Draw the source rows and couple them with the data rows."""
        started = time.perf_counter()
        x0 = flow.source.at(self.draw.uniforms(self.x1.shape[1]))  # (n, L)
        with one_thread():
            pairs = self._pairs(flow, x0)
        if not torch.equal(pairs.x1.cpu(), self.x1):
            raise ValueError(
                f"{type(flow.coupling).__name__}.pair changed the data rows or their order. A coupling must return "
                f"one source row per data row, in the order of the data rows."
            )
        return Solution(pairs.x0.cpu(), replace(pairs.numbers, seconds=time.perf_counter() - started))

    def _pairs(self, flow: Flow, x0: Int[Tensor, "n L"]) -> Pairs:
        """The pairs, computed on the network's device if the cost reads the network; in eval mode, without gradient."""
        generator = self.draw.coupling()
        if self.network is None:
            return flow.coupling.pair(x0, self.x1, generator, embedding=self.table, group=self.group)
        there = device_of(self.network)
        table = None if self.table is None else self.table.to(there)
        with evaluation_mode(self.network):
            return flow.coupling.pair(
                x0.to(there),
                self.x1.to(there),
                generator,
                embedding=table,
                network=self.network,
                group=self.group,
            )


@dataclass(frozen=True)
class CostedProblem:
    """An OT batch whose source rows and cost matrix are computed: it can be solved without the table or the network."""

    draw: OTDraw
    x0: Int[Tensor, "n L"]
    costs: CostMatrix
    group: Int[Tensor, " n"] | None = None

    def solve(self, flow: Flow) -> Solution:
        """Couple the source rows with the data rows."""
        assert isinstance(flow.coupling, OptimalTransport)
        started = time.perf_counter()
        with one_thread():
            found = flow.coupling.solve_by_group(self.costs, self.draw.coupling(), self.group)
        return Solution(self.x0[found.order], replace(found.numbers, seconds=time.perf_counter() - started))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one CPU thread inside.

    The last bits of a matrix product depend on the number of threads, and a small one is faster with a single thread
    where other processes use the cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
