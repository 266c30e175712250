"""One coupling over the rows of all processes: gather token ids, solve once, scatter the pairs.

The alternative, a coupling per process over its own rows, is Pairing(…, share=Share.here()): it needs no
communication, but smaller OT batches save less, and the pairs depend on the number of processes.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from ...flow import Flow
from ...network.network import Network
from ...runs.ot_batch import Share
from .pairs import Pairing, Table
from .saved_pairs import saved_index
from .shared_jobs import CouplingReport


class GlobalPairing:
    """A Pairing whose OT batches span all processes. For equal tables, the pairs do not depend on their number.

    Every process calls it with the same steps and passes its own rows: `batches(b)` is `Share.here().take(…)` of the
    global OT batch, and `groups(b)` the labels of these rows. Process 0 solves, with its table and its network. Only
    process 0 calls the network, so pass the module itself, not a DistributedDataParallel. `ot_batch` and `batch` count
    the rows of all processes. Token ids are sent at the first step of an OT batch only, on the CPU.
    """

    def __init__(
        self,
        flow: Flow,
        batches: Callable[[int], Int[Tensor, "n L"]],
        *,
        length: int,
        batch: int,
        ot_batch: int | None = None,
        groups: Callable[[int], Int[Tensor, " n"]] | None = None,
        **options: Any,
    ) -> None:
        self.share = Share.here()
        if batch % self.share.world:
            raise ValueError(f"batch must be a multiple of the {self.share.world} processes, got {batch}.")
        # NCCL sends GPU tensors only
        self._group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self._batches, self._groups, self._batch = batches, groups, batch
        self._length, self._rows = length, (ot_batch or batch) // self.share.world
        if self.share.rank != 0:  # the other processes do not solve
            options |= {"workers": 0}
        options |= {"depth": 0}  # all processes gather together: the depth must not depend on the workers of one
        if groups is not None:
            options |= {"groups": self._global_labels}
        self._pairing = Pairing(flow, self._global_rows, length=length, batch=batch, ot_batch=ot_batch, **options)
        self._mine: dict[int, Tensor] = {}
        self._gathered: dict[int, Tensor] = {}
        self._x0: tuple[int, Tensor] | None = None
        self._state: dict[str, Tensor] = {}

    def step(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
        """This process's part of the flow batch of a step; see Pairing.step."""
        current, within = divmod(step, self._pairing.steps_per_ot_batch)
        window = range(current, current + self._pairing.ahead + 1)
        self._gather(window)
        self._restore(window)
        solved, error = self._solve(step, table, network)
        if self._x0 is None or self._x0[0] != current:
            self._x0 = current, self._scatter(current, solved, error)
        elif error is not None:
            raise error
        each = self._batch // self.share.world
        at = slice(within * each, (within + 1) * each)
        return self._x0[1][at], self._mine[current][at]

    @property
    def seconds_waited(self) -> float:
        """Time that steps waited on process 0, which solves."""
        return self._pairing.seconds_waited

    @property
    def workers(self) -> int:
        return self._pairing.workers

    def report(self, step: int) -> CouplingReport | None:
        """The report of process 0, which solves; None on the others."""
        return self._pairing.report(step) if self.share.rank == 0 else None

    def wait_until_ready(self) -> None:
        """Return at once: steps of all processes run together, and none of them waits for workers to start."""

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the global OT batches on process 0, valid for any number of processes; empty on the others."""
        return self._pairing.state_dict() if self.share.rank == 0 else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Call it on every process. Only the state of process 0 is used, at the next step, which gathers the rows."""
        self._mine.clear()
        self._gathered.clear()
        self._x0, self._state = None, dict(state) if self.share.rank == 0 else {}

    def close(self) -> None:
        self._pairing.close()

    def __enter__(self) -> "GlobalPairing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _global_rows(self, index: int) -> Int[Tensor, "n L"]:
        return self._gathered[index][:, : self._length]

    def _global_labels(self, index: int) -> Int[Tensor, " n"]:
        return self._gathered[index][:, self._length]

    def _restore(self, window: range) -> None:
        if self._state:
            names = [(key, saved_index(key)) for key in self._state]
            self._pairing.load_state_dict({key: self._state[key] for key, index in names if index in window})
            self._state = {}

    def _gather(self, window: range) -> None:
        """Gather the rows of new OT batches on process 0; all processes agree on which are new."""
        for index in [i for i in self._mine if i not in window]:
            self._mine.pop(index)
            self._gathered.pop(index, None)
        for index in window:
            if index not in self._mine:
                self._mine[index] = self._batches(index).to("cpu", torch.int64, copy=True)
                sent = self._mine[index]
                if self._groups is not None:  # the label is sent as one more column
                    sent = torch.cat([sent, self._groups(index).to(sent)[:, None]], 1)
                parts = [torch.empty_like(sent) for _ in range(self.share.world)] if self.share.rank == 0 else None
                dist.gather(sent, parts, dst=0, group=self._group)
                if parts is not None:
                    self._gathered[index] = self.share.join(parts, self._batch)

    def _solve(self, step: int, table: Table | None, network: Network | None) -> tuple[Tensor | None, Exception | None]:
        if self.share.rank != 0:
            return None, None
        try:
            return self._pairing.ot_pairs(step, table, network)[0], None
        except Exception as error:  # raised after the other processes, which wait for the pairs, are informed
            return None, error

    def _scatter(self, index: int, x0: Tensor | None, error: Exception | None) -> Tensor:
        solved = torch.tensor([int(error is None)])
        dist.broadcast(solved, src=0, group=self._group)
        if error is not None:
            raise error
        if not bool(solved):
            raise RuntimeError(f"process 0 could not pair OT batch {index}; see its error message.")
        mine = torch.empty(self._rows, self._length, dtype=torch.int64)
        parts = None if x0 is None else [part.contiguous() for part in self.share.split(x0, self._batch)]
        dist.scatter(mine, parts, src=0, group=self._group)
        return mine
