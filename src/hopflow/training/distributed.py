"""One coupling over the rows of all processes: gather token ids, solve once, share out.

The other way, a coupling per process over its own rows, is Pairing(…, share=Share.here()): no communication, but the
smaller batches transport less well, and the pairs depend on the number of processes.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from ..flow import Flow
from ..network import Network
from .pair_state import saved_index
from .pairs import Pairing, Table
from .problems import Report
from .settings import MOST
from .shares import Share

JOIN = "HOPFLOW_JOIN_SECONDS"
"""The environment variable with the seconds within which all processes of a run must have started."""
JOIN_SECONDS = 35.0
PATIENCE = timedelta(minutes=10)
"""How long a process waits for another one later on, which may evaluate or save meanwhile."""


@contextmanager
def launched(device: str) -> Iterator[None]:
    """Join the processes that torchrun started, if it did; without it there is one, and nothing to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _join("nccl" if gpus else "gloo")
    lost = False
    try:
        yield
    except RuntimeError as error:
        if not (lost := _is_lost(error)):
            raise
        raise ConnectionError(
            "another process of this run is gone; its own message says why. The same command goes on from the last "
            "checkpoint"
        ) from error
    finally:
        if not lost:  # to end the group would be to wait for who is gone
            dist.destroy_process_group()


def _join(backend: str) -> None:
    """Form the process group; ConnectionError if a process is missing when the time is up."""
    seconds = _join_seconds()
    end = time.monotonic() + seconds

    def left() -> timedelta:
        return timedelta(seconds=max(0.1, end - time.monotonic()))

    try:
        store, rank, world = next(rendezvous("env://", timeout=left()))
        store.set(f"joined/{rank}", "")
        store.wait([f"joined/{other}" for other in range(world)], left())  # NCCL alone would connect much later
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=left())
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise ConnectionError(
            f"not all {os.environ['WORLD_SIZE']} processes of this run have joined within {seconds:g} s: one has ended "
            f"or cannot reach the others; its own message says why. To wait longer: {JOIN}=600"
        ) from error
    store.set_timeout(PATIENCE)
    _set_pg_timeout(PATIENCE)


def _join_seconds() -> float:
    word = os.environ.get(JOIN, str(JOIN_SECONDS))
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST:
        raise ValueError(f"{JOIN} must be a number of seconds above 0, and at most {MOST:,}; got {word!r}")
    return seconds


def _is_lost(error: RuntimeError) -> bool:
    """gloo has no class for its errors; they name its source."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


class GlobalPairing:
    """A Pairing whose OT batches span all processes. Given the same table, the pairs do not depend on their number.

    Every process calls it with the same steps and gives its own rows: `batches(b)` is `Share.here().take(…)` of the
    global OT batch, and `groups(b)` the labels of these rows. Process 0 solves, with its table and its network; the
    network is called there alone, so hand over the module itself, not one that all processes must call together.
    `ot_batch` and `batch` count the rows of all processes. Token ids travel at the first step of an OT batch only, on
    the CPU.
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
            raise ValueError(f"a batch of {batch} cannot be shared by {self.share.world} processes: take a multiple")
        # NCCL moves GPU tensors only
        self._group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self._batches, self._groups, self._batch = batches, groups, batch
        self._length, self._rows = length, (ot_batch or batch) // self.share.world
        if self.share.rank != 0:  # the others only gather
            options |= {"workers": 0}
        options |= {"depth": 0}  # all processes gather together: the depth must not depend on the first one's workers
        if groups is not None:
            options |= {"groups": self._labels}
        self._pairing = Pairing(flow, self._whole, length=length, batch=batch, ot_batch=ot_batch, **options)
        self._mine: dict[int, Tensor] = {}
        self._gathered: dict[int, Tensor] = {}
        self._x0: tuple[int, Tensor] | None = None
        self._state: dict[str, Tensor] = {}

    def step(
        self, step: int, table: Table | None = None, network: Network | None = None
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
        """This process's part of the flow batch of a step; see Pairing.step."""
        current, within = divmod(step, self._pairing.updates)
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
        """On process 0, which solves."""
        return self._pairing.seconds_waited

    @property
    def workers(self) -> int:
        return self._pairing.workers

    def report(self, step: int) -> Report | None:
        """On process 0, which solves; None elsewhere."""
        return self._pairing.report(step) if self.share.rank == 0 else None

    def state_dict(self) -> dict[str, Tensor]:
        """On process 0, of the global OT batches: it loads under any number of processes. Empty elsewhere."""
        return self._pairing.state_dict() if self.share.rank == 0 else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """On every process; only the state of process 0 is used, at the next step, which gathers its rows again."""
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

    def _whole(self, index: int) -> Int[Tensor, "n L"]:
        return self._gathered[index][:, : self._length]

    def _labels(self, index: int) -> Int[Tensor, " n"]:
        return self._gathered[index][:, self._length]

    def _restore(self, window: range) -> None:
        if self._state:
            names = [(key, saved_index(key)) for key in self._state]
            self._pairing.load_state_dict({key: self._state[key] for key, index in names if index in window})
            self._state = {}

    def _gather(self, window: range) -> None:
        """The rows of all processes to process 0, for the OT batches that open now; the same ones everywhere."""
        for index in [i for i in self._mine if i not in window]:
            self._mine.pop(index)
            self._gathered.pop(index, None)
        for index in window:
            if index not in self._mine:
                self._mine[index] = self._batches(index).to("cpu", torch.int64, copy=True)
                sent = self._mine[index]
                if self._groups is not None:  # a label travels as one more column
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
        except Exception as error:  # the others wait for the pairs: they must hear of it
            return None, error

    def _scatter(self, index: int, x0: Tensor | None, error: Exception | None) -> Tensor:
        verdict = torch.tensor([int(error is None)])
        dist.broadcast(verdict, src=0, group=self._group)
        if error is not None:
            raise error
        if not bool(verdict):
            raise RuntimeError(f"process 0 could not pair OT batch {index}; its own message says why")
        mine = torch.empty(self._rows, self._length, dtype=torch.int64)
        parts = None if x0 is None else [part.contiguous() for part in self.share.split(x0, self._batch)]
        dist.scatter(mine, parts, src=0, group=self._group)
        return mine
