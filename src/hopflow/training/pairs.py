"""Pairs ahead of time: an OT batch is coupled once, beside the training steps, and handed out as flow batches.

Which table a coupling sees. OT batch b spans the steps b·m … (b+1)·m - 1, with m = ot_batch / batch. A cost that reads
embeddings sees, for OT batch b, the table as it was handed over at the first step of OT batch b - ahead, and that of
step 0 for the first `ahead` of them. So `ahead` belongs to the recipe; the number of workers and the depth of the queue
do not: the rule names steps, never what happened to be finished. A cost that reads no table can be solved any number of
OT batches before its steps (`depth`), one that does at most `ahead`.

A table on a GPU stays there. The cost matrix is computed from it on the GPU, beside the step, and only the matrix
travels to a worker (`crossings`): the rule is the same. The worker is given its task at once and waits for the matrix
itself: the trainer looks only once a step, which would be too late where every step has a coupling of its own.

A cost that reads the network itself (`coupling.reads`) is solved in place, at the first step of its OT batch and with
the weights of that step, as if `ahead` were 0: weights do not travel to workers. Nothing hides it.
"""

import logging
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..couplings import Coupling, OptimalTransport
from ..flow import Flow
from ..network import Network
from . import crossings
from .crew import Crew
from .crossings import Crossing
from .ema import Ema
from .growth import Growth
from .pair_state import saved_solutions
from .problems import Draw, Priced, Problem, Report, Solution, posed
from .shares import Share
from .sheets import Layout, Sheet

log = logging.getLogger("hopflow")

Table = Float[Tensor, "V D"] | Ema
"""Embeddings of all tokens, or their average, of which no copy is needed: an update gives it another tensor."""


@dataclass
class Job:
    """An OT batch on its way."""

    x1: Int[Tensor, "n L"]
    problem: Problem | Priced
    sheet: Sheet | None = None
    crossing: Crossing | None = None
    ticket: int | None = None
    solution: Solution | None = None
    report: Report | None = None


class Pairing:
    """Flow batches (x0, x1) for the steps of a run, from OT batches that are coupled ahead of time.

    `batches(b)` gives the data rows of OT batch b, and `groups(b)` a label for each: rows then pair only within their
    group. Source rows have no label; they are i.i.d., and row i of the OT batch is dealt to the group of data row i.
    `workers`, `depth` and `timeout` only say how it runs: pairs are bitwise the same for any of them, also when a
    worker dies or hangs. With `workers=None` it starts with one worker and adds more, up to `most_workers`, while steps
    wait for couplings (`Growth`). `depth` is the number of OT batches that are prepared ahead where no table is read,
    at least `ahead`; None means two for each worker. Use it as a context manager, so that nothing is left.
    """

    def __init__(
        self,
        flow: Flow,
        batches: Callable[[int], Int[Tensor, "n L"]],
        *,
        length: int,
        batch: int,
        ot_batch: int | None = None,
        seed: int = 0,
        workers: int | None = 1,
        most_workers: int = 1,
        ahead: int = 2,
        depth: int | None = None,
        timeout: float = 120.0,
        share: Share = Share(),  # noqa: B008  (frozen)
        groups: Callable[[int], Int[Tensor, " n"]] | None = None,
    ) -> None:
        self.flow = flow = replace(flow, coupling=flow.solved_coupling)
        self.length, self.batch, self.ot_batch = length, batch, ot_batch or batch
        _check(self.batch, self.ot_batch, workers, ahead, depth, timeout, share)
        self.seed, self.share = seed, share
        self.reads = flow.coupling.reads
        # rows that meet as they come leave nothing to hide, and what reads the network cannot be done elsewhere
        as_they_come = flow.coupling.is_identity
        self.ahead = 0 if as_they_come or "network" in self.reads else ahead
        # which rows meet, not only what is said of their cost, depends on a table or on weights that will be gone
        self._reads_the_past = bool(self.reads) and not as_they_come
        self._transport = _transport(flow.coupling)
        self._batches, self._groups = batches, groups
        self._jobs: dict[int, Job] = {}
        self._past: dict[int, Job] = {}
        self._sheets: list[Sheet] = []
        self._sides: dict[torch.device, crossings.Side] = {}
        self._closed = False
        # of couplings that read the past no more than `ahead` can be solved at once
        most = min(most_workers if workers is None else workers, self.ahead if self._reads_the_past else sys.maxsize)
        self._growth = Growth(most) if workers is None else None
        self._crew = Crew(flow, min(most, 1) if self._growth else most, timeout) if most and self.ahead else None
        self._depth = depth
        self.seconds_waited = 0.0
        """By all steps so far, for workers and for solutions in place."""
        self._finalizer = weakref.finalize(self, self._crew.close) if self._crew else None

    @property
    def updates(self) -> int:
        """Training steps per coupling."""
        return self.ot_batch // self.batch

    @property
    def depth(self) -> int:
        """How many OT batches after the current one are prepared."""
        if self._reads_the_past or self._crew is None:
            return self.ahead
        return max(self.ahead, 2 * self._crew.wanted if self._depth is None else self._depth)

    @property
    def workers(self) -> int:
        """Processes that solve couplings now, or are starting."""
        return self._crew.wanted if self._crew else 0

    @property
    def prepared(self) -> list[int]:
        """The OT batches that are solved, being solved or waiting, the current one first; at most 1 + depth."""
        return sorted(self._jobs)

    def step(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
        """(x0, x1) of this step, on the CPU; `table` is the embedding table, or its average, before the step's update.

        The table and the network are read at the first step of an OT batch only, by costs that ask for them. The table
        is copied, if it has to be, and may change afterwards; the network is asked at once, at rest and on its own
        device.
        """
        x0, x1 = self.ot_pairs(step, table, network)
        rows = self.batch // self.share.world
        at = step % self.updates * rows
        return x0[at : at + rows], x1[at : at + rows]

    def ot_pairs(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """All pairs of the OT batch that this step belongs to."""
        if self._closed:
            raise RuntimeError("this Pairing is closed: make a new one for more steps")
        current = self._open(step, table, network)
        job = self._jobs[current]
        return self._solved(current).x0, job.x1

    def report(self, step: int) -> Report:
        """On the OT batch of a step that has just been taken."""
        job = self._jobs.get(step // self.updates)
        if job is None or job.report is None:
            raise ValueError(f"step {step} is not the current one: take its report right after step({step})")
        return job.report

    def wait_until_ready(self) -> None:
        """Until the workers are awake, some seconds; without this the first couplings are solved in place."""
        if self._crew:
            self._crew.wait_until_ready()

    def state_dict(self) -> dict[str, Tensor]:
        """What later pairs need besides the seed: the open OT batches, where their tables or weights are past.

        And the one before: of a step on a GPU it is known only later that it failed, and that a run has to go on there.
        Source rows, not tables: for 100,000 tokens of width 768 a table is 200 times as large as an OT batch of 512.
        Waits for those that are being solved.
        """
        if not self._reads_the_past:
            return {}
        state: dict[str, Tensor] = {}
        solved = {index: job.solution for index, job in self._past.items() if job.solution}
        for index, solution in {**solved, **{index: self._solved(index) for index in self.prepared}}.items():
            state[f"{index}.x0"] = solution.x0.to(torch.int32)
            state[f"{index}.numbers"] = torch.tensor(solution.numbers, dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self._past.clear()
        for index in list(self._jobs):
            self._drop(index)
        saved = saved_solutions(state, self.flow.source) if self._reads_the_past else {}
        for index, solution in saved.items():
            x1 = self._rows(index)
            if solution.x0.shape != x1.shape:
                raise ValueError(
                    f"the state holds OT batches of shape {tuple(solution.x0.shape)}, this run has {tuple(x1.shape)}: "
                    f"resume with the same ot_batch, length and number of processes"
                )
            self._jobs[index] = Job(x1, Problem(self._draw(index), x1), solution=solution)

    def close(self) -> None:
        """End the workers and free their memory; safe to call twice."""
        self._closed = True
        if self._finalizer:
            self._finalizer()
        for job in self._jobs.values():
            self._free(job)
        for sheet in self._sheets:
            sheet.close()
        self._jobs.clear()
        self._sheets.clear()

    def __enter__(self) -> "Pairing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, step: int, table: Table | None, network: Network | None) -> int:
        """Open the OT batches that this step's table or network, or the seed alone, makes possible."""
        if step < 0:
            raise ValueError(f"steps are counted from 0; got {step}")
        current, within = divmod(step, self.updates)
        window = range(current, current + self.depth + 1)
        for index, job in list(self._jobs.items()):
            # a network still there could not be paired with: by now it may have other weights
            if index not in window or (isinstance(job.problem, Problem) and job.problem.network is not None):
                self._drop(index)
                if index < current and job.solution:
                    self._past = {index: job}
        if self._reads_the_past:
            # each table serves the OT batch `ahead` later; the first one also those before it
            window = window[0 if step == 0 else self.ahead :] if within == 0 else range(0)
        for index in window:
            if index not in self._jobs:
                self._jobs[index] = self._job(index, *self._asked(table, network))
        if current not in self._jobs:
            raise ValueError(
                f"the pairs of step {step} need the {' and the '.join(self.reads)} of step "
                f"{max(current - self.ahead, 0) * self.updates}, which this Pairing has not seen: "
                f"start at step 0, or load_state_dict() what the interrupted run saved"
            )
        if self._crew:
            for job in self._jobs.values():
                self._hand_out(job)
            self._crew.sweep()
        return current

    def _asked(self, table: Table | None, network: Network | None) -> tuple[Table | None, Network | None]:
        """What the coupling reads of these."""
        for name, given in (("embedding", table), ("network", network)):
            if name in self.reads and given is None:
                raise ValueError(
                    f"{self.flow.coupling} reads the {name}: pass it at every step, step(step, table, network)"
                )
        return table if "embedding" in self.reads else None, network if "network" in self.reads else None

    def _job(self, index: int, table: Table | None, network: Network | None) -> Job:
        draw, x1, group = self._draw(index), self._rows(index), self._labels(index)
        now = table.value if isinstance(table, Ema) else None if table is None else table.detach()
        if self._transport and now is not None and network is None and crossings.elsewhere(now):
            # read beside the step, while any other table may change in its place
            kept = now if isinstance(table, Ema) else now.clone()
            return self._priced(self._transport, draw, x1, group, kept)
        if self._crew is None:
            copy = None if now is None else now.to("cpu", copy=True)
            return Job(x1, Problem(draw, x1, group, copy, network))
        given = {"x1": x1, "group": group, "table": now}
        sheet = self._sheet(Layout.of(x0=x1, **given))
        for name, content in given.items():
            if content is not None:
                sheet[name].copy_(content)
        return Job(x1, Problem(draw, x1, group, sheet.get("table")), sheet)

    def _priced(
        self,
        transport: OptimalTransport,
        draw: Draw,
        x1: Int[Tensor, "n L"],
        group: Int[Tensor, " n"] | None,
        table: Float[Tensor, "V D"],
    ) -> Job:
        """With the cost matrix under way from the table's GPU."""
        if table.device not in self._sides:
            self._sides[table.device] = crossings.Side(table.device)
        side = self._sides[table.device]
        priced = side.price(transport.cost, self.flow.source, draw.uniforms(self.length), x1, table)
        sheet = self._sheet(Layout.of(x0=x1, group=group, **priced))
        if group is not None:
            sheet["group"].copy_(group)
        return Job(x1, posed(draw, sheet), sheet, side.send(priced, sheet))

    def _hand_out(self, job: Job) -> None:
        """To the workers; where the matrix needs the trainer's help to reach its sheet, once it is there."""
        if self._crew is None or job.sheet is None or job.ticket is not None:
            return
        if job.crossing is None or job.crossing.direct or job.crossing.arrived():
            job.ticket = self._crew.submit(job.problem.draw, job.sheet)

    def _solved(self, index: int) -> Solution:
        job, started = self._jobs[index], time.perf_counter()
        in_place = False
        if job.solution is None and job.crossing is not None:
            job.crossing.wait()
            self._hand_out(job)
        if job.solution is None and self._crew and job.ticket is not None:
            job.solution = self._crew.take(job.ticket)
        if job.solution is None:
            # also after a worker's error: what is wrong with the problem is raised here, where it can be debugged
            in_place = True
            job.solution = job.problem.solve(self.flow)
            if self._crew:
                self._crew.slowest = max(self._crew.slowest, job.solution.seconds)
        if job.report is None:
            waited = time.perf_counter() - started
            job.report = Report.of(index, job.solution, waited, in_place)
            self.seconds_waited += waited
            job.problem = Problem(job.problem.draw, job.x1)  # the rest has done its work
            self._free(job)
            self._grow(waited)
        return job.solution

    def _grow(self, waited: float) -> None:
        """Start one more worker where steps wait too long."""
        if self._growth is None or self._crew is None:
            return
        if not self._crew.ready:
            self._growth.restart()
        elif (share := self._growth.note(waited, self.workers)) is not None:
            self._crew.add()
            log.info("%d OT workers: steps waited for couplings for %.1f%% of the time", self.workers, 100 * share)

    def _drop(self, index: int) -> None:
        self._free(self._jobs.pop(index))

    def _free(self, job: Job) -> None:
        """Use the job's sheet again, unless a worker may still write to it."""
        if job.sheet is None:
            return
        if job.crossing is not None:
            job.crossing.wait()  # nor while a GPU does
        if job.ticket is None or self._crew is None or self._crew.forget(job.ticket):
            self._sheets.append(job.sheet)
        else:
            job.sheet.close()
        job.sheet = job.crossing = job.ticket = None

    def _sheet(self, layout: Layout) -> Sheet:
        for at, sheet in enumerate(self._sheets):
            if sheet.layout == layout:
                return self._sheets.pop(at)
        return Sheet(layout)

    def _draw(self, index: int) -> Draw:
        return Draw(self.seed, index, self.ot_batch, self.batch, self.share)

    def _rows(self, index: int) -> Int[Tensor, "n L"]:
        rows = self._batches(index)
        wanted = (self.ot_batch // self.share.world, self.length)
        if tuple(rows.shape) != wanted or rows.is_floating_point():
            raise ValueError(
                f"batches({index}) must give the token ids of an OT batch, {wanted}; "
                f"got {rows.dtype} of shape {tuple(rows.shape)}"
            )
        return rows.to("cpu", torch.int64, copy=True)

    def _labels(self, index: int) -> Int[Tensor, " n"] | None:
        if self._groups is None:
            return None
        labels, wanted = self._groups(index), self.ot_batch // self.share.world
        if tuple(labels.shape) != (wanted,) or labels.is_floating_point():
            raise ValueError(
                f"groups({index}) must give a whole number per data row of an OT batch, {wanted} in all; "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        return labels.to("cpu", torch.int64, copy=True)


def _transport(coupling: Coupling) -> OptimalTransport | None:
    """A coupling that solves a cost matrix and does nothing else: one with its own `match` or `pair` sees the rows."""
    if not isinstance(coupling, OptimalTransport):
        return None
    own = {name for kind in type(coupling).__mro__ for name in vars(kind) if kind not in OptimalTransport.__mro__}
    return None if own & {"match", "pair", "settle"} else coupling


def _check(
    batch: int, ot_batch: int, workers: int | None, ahead: int, depth: int | None, timeout: float, share: Share
) -> None:
    if batch < 1 or ot_batch % batch:
        raise ValueError(
            f"an OT batch is one or more whole flow batches: ot_batch must be a multiple of batch = {batch}; "
            f"got {ot_batch}"
        )
    if batch % share.world:
        raise ValueError(f"a batch of {batch} cannot be shared by {share.world} processes: take a multiple")
    if any(count is not None and count < 0 for count in (workers, ahead, depth)):
        raise ValueError(f"workers, ahead and depth are counts, 0 or more; got {workers}, {ahead} and {depth}")
    if not timeout > 0:
        raise ValueError(f"timeout is the seconds to wait for a worker, above 0; got {timeout}")
