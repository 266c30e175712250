"""Pairs ahead of time: an OT batch is coupled once, in parallel with training, and split into flow batches.

Which embedding table a coupling uses. OT batch b covers the steps b·m … (b+1)·m - 1, with m = ot_batch / batch. A cost
that reads embeddings uses, for OT batch b, the table of the first step of OT batch b - ahead, and that of step 0 for
the first `ahead` OT batches. `ahead` therefore changes what is learned. The number of workers and the depth of the
queue do not: the rule names steps, not what happened to be finished. A cost that reads no table can be solved any
number of OT batches in advance (`depth`), one that does at most `ahead`.

A table on a GPU stays there. The GPU computes the cost matrix in parallel with the step, and only the matrix is sent to
a worker (`gpu_costs`); the rule is the same. The worker receives its task at once and waits for the matrix itself: the
trainer checks only once per step, which is too late if every step has its own coupling.

A cost that reads the network itself (`coupling.reads`) is solved in the trainer, at the first step of its OT batch and
with the weights of that step, as if `ahead` were 0: weights are not sent to workers. Every such step waits for it.
"""

import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...couplings import Coupling, OptimalTransport
from ...flow import Flow
from ...network.network import Network
from ...runs.ot_batch import OTDraw, OTProblem, Share, Solution
from ..averages import Ema
from .pool_growth import PoolGrowth
from .saved_pairs import saved_solutions
from .shared_jobs import CouplingReport, OTJob, SharedJobs
from .worker_pool import WorkerPool

Table = Float[Tensor, "V D"] | Ema
"""The embeddings of all tokens, or their average. An average needs no copy: each update creates a new tensor."""


class Pairing:
    """Flow batches (x0, x1) for the steps of a run, from OT batches that are coupled ahead of time.

    `batches(b)` returns the data rows of OT batch b, and `groups(b)` a label for each: rows are then paired only within
    their group. Source rows have no label; they are i.i.d., and row i joins the group of data row i.
    `workers`, `depth` and `timeout` affect the speed only: pairs are equal to the bit for any of them, also if a worker
    ends or hangs. With `workers=None` it starts one worker and adds more, up to `most_workers`, while steps wait for
    couplings (`PoolGrowth`). `depth` is the number of OT batches prepared in advance if no table is read, at least
    `ahead`; None means two per worker. Use it as a context manager, which ends the workers.
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
        # an identity coupling has nothing to solve, and a cost that reads the network is solved in the trainer
        identity = flow.coupling.is_identity
        self.ahead = 0 if identity or "network" in self.reads else ahead
        # the pairs themselves, not only their reported cost, depend on an earlier table or earlier weights
        self._needs_past_weights = bool(self.reads) and not identity
        self._transport = _matrix_coupling(flow.coupling)
        self._batches, self._groups = batches, groups
        self._jobs: dict[int, OTJob] = {}
        self._past: dict[int, OTJob] = {}
        self._closed = False
        # at most `ahead` couplings that need past weights can be solved at once
        limit = self.ahead if self._needs_past_weights else sys.maxsize
        most = min(most_workers if workers is None else workers, limit)
        growth = PoolGrowth(most) if workers is None else None
        pool = WorkerPool(flow, min(most, 1) if growth else most, timeout) if most and self.ahead else None
        self._shared = SharedJobs(pool, growth)
        self._depth = depth
        self.seconds_waited = 0.0
        """Time that all steps so far have waited for couplings, solved by workers or by the trainer."""
        self._finalizer = weakref.finalize(self, pool.close) if pool else None

    @property
    def steps_per_ot_batch(self) -> int:
        """Training steps per coupling."""
        return self.ot_batch // self.batch

    @property
    def depth(self) -> int:
        """How many OT batches after the current one are prepared."""
        if self._needs_past_weights or self._shared.pool is None:
            return self.ahead
        return max(self.ahead, 2 * self.workers if self._depth is None else self._depth)

    @property
    def workers(self) -> int:
        """Worker processes, including those that are still starting."""
        return self._shared.workers if self._shared.pool else 0

    @property
    def prepared(self) -> list[int]:
        """The OT batches that are solved, being solved or queued, the current one first; at most 1 + depth."""
        return sorted(self._jobs)

    def step(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
        """(x0, x1) of this step, on the CPU; `table` is the embedding table, or its average, before the step's update.

        The table and the network are read at the first step of an OT batch only, by costs that need them. The table is
        copied if necessary and may change afterwards. The network is called at once, in eval mode and on its device.
        """
        x0, x1 = self.ot_pairs(step, table, network)
        rows = self.batch // self.share.world
        at = step % self.steps_per_ot_batch * rows
        return x0[at : at + rows], x1[at : at + rows]

    def ot_pairs(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """All pairs of the OT batch that this step belongs to."""
        if self._closed:
            raise RuntimeError("this Pairing is closed; create a new one for more steps.")
        current = self._prepare(step, table, network)
        job = self._jobs[current]
        return self._solve(current).x0, job.x1

    def report(self, step: int) -> CouplingReport:
        """The report on the OT batch of the current step."""
        job = self._jobs.get(step // self.steps_per_ot_batch)
        if job is None or job.report is None:
            raise ValueError(f"step {step} is not the current one; call report({step}) right after step({step}).")
        return job.report

    def wait_until_ready(self) -> None:
        """Wait some seconds until the workers have started; otherwise the trainer solves the first couplings."""
        if self._shared.pool:
            self._shared.pool.wait_until_ready()

    def state_dict(self) -> dict[str, Tensor]:
        """What later pairs need besides the seed: the prepared OT batches, if their tables or weights are past.

        And the previous one: a step on a GPU may turn out later to have failed, and the run then resumes there.
        It holds source rows, not tables: for 100,000 tokens of width 768 a table is 200 times as large as an OT batch
        of 512. Waits for couplings that are being solved.
        """
        if not self._needs_past_weights:
            return {}
        state: dict[str, Tensor] = {}
        solved = {index: job.solution for index, job in self._past.items() if job.solution}
        for index, solution in {**solved, **{index: self._solve(index) for index in self.prepared}}.items():
            state[f"{index}.x0"] = solution.x0.to(torch.int32)
            state[f"{index}.numbers"] = torch.tensor(solution.saved_numbers, dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume where `state_dict` was called."""
        self._past.clear()
        for index in list(self._jobs):
            self._drop(index)
        saved = saved_solutions(state, self.flow.source) if self._needs_past_weights else {}
        for index, solution in saved.items():
            x1 = self._rows(index)
            if solution.x0.shape != x1.shape:
                raise ValueError(
                    f"the state has OT batches of shape {tuple(solution.x0.shape)}, this run {tuple(x1.shape)}; "
                    f"resume with the same ot_batch, length and number of processes."
                )
            self._jobs[index] = OTJob(x1, OTProblem(self._draw(index), x1), solution=solution)

    def close(self) -> None:
        """End the workers and free their memory; may be called twice."""
        self._closed = True
        if self._finalizer:
            self._finalizer()
        for job in self._jobs.values():
            self._shared.release(job)
        self._shared.close()
        self._jobs.clear()

    def __enter__(self) -> "Pairing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, step: int, table: Table | None, network: Network | None) -> int:
        """Prepare the OT batches that can be solved from this step on; returns the index of the current one."""
        if step < 0:
            raise ValueError(f"step must be ≥ 0, got {step}.")
        current, within = divmod(step, self.steps_per_ot_batch)
        window = range(current, current + self.depth + 1)
        self._drop_outside(window)
        if self._needs_past_weights:
            # each table is for the OT batch `ahead` later; the first one also for those before it
            window = window[0 if step == 0 else self.ahead :] if within == 0 else range(0)
        for index in window:
            if index not in self._jobs:
                self._jobs[index] = self._job(index, *self._needed(table, network))
        if current not in self._jobs:
            raise ValueError(
                f"the pairs of step {step} need the {' and the '.join(self.reads)} of step "
                f"{max(current - self.ahead, 0) * self.steps_per_ot_batch}, which this Pairing has not seen; "
                f"start at step 0, or call load_state_dict() with the state that the interrupted run saved."
            )
        if self._shared.pool:
            for job in self._jobs.values():
                self._shared.submit(job)
            self._shared.poll()
        return current

    def _drop_outside(self, window: range) -> None:
        for index, job in list(self._jobs.items()):
            # a problem that still holds the network was not solved, and the weights may have changed since
            if index not in window or (isinstance(job.problem, OTProblem) and job.problem.network is not None):
                self._drop(index)
                if index < window.start and job.solution:
                    self._past = {index: job}

    def _needed(self, table: Table | None, network: Network | None) -> tuple[Table | None, Network | None]:
        """The table and the network, each None if the coupling does not read it."""
        for name, value in (("embedding", table), ("network", network)):
            if name in self.reads and value is None:
                raise ValueError(
                    f"{self.flow.coupling} reads the {name}; pass it at every step: step(step, table, network)."
                )
        return table if "embedding" in self.reads else None, network if "network" in self.reads else None

    def _job(self, index: int, table: Table | None, network: Network | None) -> OTJob:
        draw, x1, group = self._draw(index), self._rows(index), self._labels(index)
        now = table.value if isinstance(table, Ema) else None if table is None else table.detach()
        if self._transport and now is not None and network is None and is_on_gpu(now):
            # read in parallel with the step; only an average is not changed in place meanwhile
            kept = now if isinstance(table, Ema) else now.clone()
            return self._shared.with_gpu_costs(self._transport, self.flow.source, draw, x1, group, kept)
        if self._shared.pool is None:
            copy = None if now is None else now.to("cpu", copy=True)
            return OTJob(x1, OTProblem(draw, x1, group, copy, network))
        return self._shared.with_rows(draw, x1, group, now)

    def _solve(self, index: int) -> Solution:
        job, started = self._jobs[index], time.perf_counter()
        in_place = False
        if job.solution is None and job.buffer is not None:
            job.solution = self._shared.solution(job)
        if job.solution is None:
            # also after a worker's error: what is wrong with the problem is raised here, where it can be debugged
            in_place = True
            job.solution = job.problem.solve(self.flow)
            if job.buffer is not None:
                self._shared.note_seconds(job.solution.seconds)
        if job.report is None:
            waited = time.perf_counter() - started
            job.report = CouplingReport(index, job.solution.numbers, waited, in_place)
            self.seconds_waited += waited
            job.problem = OTProblem(job.problem.draw, job.x1)  # drops the table and the network
            if job.buffer is not None:
                self._shared.release(job)
            if self._shared.pool:
                self._shared.grow(waited)
        return job.solution

    def _drop(self, index: int) -> None:
        job = self._jobs.pop(index)
        if job.buffer is not None:
            self._shared.release(job)

    def _draw(self, index: int) -> OTDraw:
        return OTDraw(self.seed, index, self.ot_batch, self.batch, self.share)

    def _rows(self, index: int) -> Int[Tensor, "n L"]:
        rows = self._batches(index)
        wanted = (self.ot_batch // self.share.world, self.length)
        if tuple(rows.shape) != wanted or rows.is_floating_point():
            raise ValueError(
                f"batches({index}) must return token ids of shape {wanted}, got {rows.dtype} of shape "
                f"{tuple(rows.shape)}."
            )
        return rows.to("cpu", torch.int64, copy=True)

    def _labels(self, index: int) -> Int[Tensor, " n"] | None:
        if self._groups is None:
            return None
        labels, wanted = self._groups(index), self.ot_batch // self.share.world
        if tuple(labels.shape) != (wanted,) or labels.is_floating_point():
            raise ValueError(
                f"groups({index}) must return one integer label per data row, shape {(wanted,)}, got {labels.dtype} "
                f"of shape {tuple(labels.shape)}."
            )
        return labels.to("cpu", torch.int64, copy=True)


def is_on_gpu(table: Float[Tensor, "V D"]) -> bool:
    """Whether the embedding table is on a GPU, which workers do not use."""
    return table.device.type == "cuda"


def _matrix_coupling(coupling: Coupling) -> OptimalTransport | None:
    """The coupling if it only solves a cost matrix; None if it overrides `match` or `pair`, which see the rows."""
    if not isinstance(coupling, OptimalTransport):
        return None
    own = {name for kind in type(coupling).__mro__ for name in vars(kind) if kind not in OptimalTransport.__mro__}
    return None if own & {"match", "pair", "settle"} else coupling


def _check(
    batch: int, ot_batch: int, workers: int | None, ahead: int, depth: int | None, timeout: float, share: Share
) -> None:
    if batch < 1 or ot_batch % batch:
        raise ValueError(f"ot_batch must be a multiple of batch = {batch}, got {ot_batch}.")
    if batch % share.world:
        raise ValueError(f"batch must be a multiple of the {share.world} processes, got {batch}.")
    for name, value in (("workers", workers), ("ahead", ahead), ("depth", depth)):
        if value is not None and value < 0:
            raise ValueError(f"{name} must be ≥ 0, got {value}.")
    if not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout}.")
