"""SamplingRun: the events of many sequences, executed in full batches.

A sampler draws the events of each sequence up front. They wait in a queue; the sequences with the most steps left form
the next batch, each with its own time. The network's features run once per batch, its head only at the positions that
move. Random numbers belong to sequences, so that the batch size does not change the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import count
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ..flow import Flow
from ..kernels.async_copy import AsyncCopy, to_device
from ..network.network import NetworkCaller, check_labels
from ..network.network_reader import BatchLogits, NetworkReader
from ..velocities import still_noise
from .event_queue import Events, Indices, Logits
from .filters import Filter
from .generation import HOLE, Generation, Hops
from .options import SamplingOptions
from .random_draws import RandomStreams, categorical
from .samplers import Euler, Sampler

Turn = tuple["SequencePool", Indices, bool]
"""A pool, those of its sequences that took a step, and whether the network was called for it."""
POOL = 4
"""Batches of sequences in a pool; with a few, nearly all batches are full."""
REDRAW, PROPOSAL, FREE_PROPOSAL = 0, 1, 2
"""Kinds of events; a free proposal needs no network to be accepted or not."""
MOST_FIRST = 1 << 62
"""Limit of `first`, so that the indices of all sequences fit into an integer."""
CHECK_EVERY = 64
"""Calls between two checks for NaN; the result is read one check later, so that no GPU waits."""
CHUNK, GPU_CHUNK = 1 << 22, 1 << 27
"""Largest (rows × V) that is held at once on a CPU and on a GPU, which is idle between small pieces."""


class SamplingRun:
    """One call of `infill`: the options, the network, and the results so far."""

    def __init__(
        self,
        caller: NetworkCaller,
        flow: Flow,
        options: SamplingOptions,
        prompts: Sequence[Tensor] | Tensor,
        device: torch.device,
        precision: str,
    ) -> None:
        if "steps" in options and "sampler" in options:
            raise ValueError(
                f"pass either steps={options['steps']}, which means Euler, or sampler={options['sampler']}, not both."
            )
        self.flow, self.eta, self.seed = flow, options.get("eta", 0.0), options.get("seed", 0)
        self.first = options.get("first", 0)
        if not isinstance(options.get("sampler", Euler()), Sampler):
            raise ValueError(f"sampler must be a Sampler, e.g. Euler(32), got {options['sampler']!r}.")
        self.sampler = options["sampler"] if "sampler" in options else Euler(options.get("steps", 32))
        self.filter = Filter(
            options.get("temperature", 1.0), options.get("top_k"), options.get("top_p"), options.get("min_p")
        )
        self.draw, self.batch = options.get("draw", categorical), options.get("batch")
        self.unfiltered = self.draw is categorical and self.filter == Filter()
        """Whether tokens are drawn from the prediction itself."""
        self.device, self.precision = device, precision
        self.reader = NetworkReader(caller, options.get("guidance", 1.0), options.get("compile", "auto"))
        self.model, self.time_dtype = caller.model, caller.time_dtype
        self.labels, self.keep_hops = options.get("labels"), options.get("trajectory", False)
        self.progress = options.get("progress", lambda done, count: None)
        for prompt in [prompts] if isinstance(prompts, Tensor) else prompts:
            flow.vocab.check_ids(prompt, "(n, L)" if isinstance(prompts, Tensor) else "(L)")
        self.prompts = prompts.cpu() if isinstance(prompts, Tensor) else [prompt.cpu() for prompt in prompts]
        self.lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._check()
        shape = (len(prompts), int(self.lengths.max()))
        self.tokens, self.x0 = (torch.full(shape, HOLE) for _ in range(2))
        self.fixed = torch.zeros(shape, dtype=torch.bool)
        self.redraws, self.changes = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        self.calls = torch.zeros(len(prompts), dtype=torch.int64)
        self.in_flight: SequencePool | None = None
        """A pool whose calls were all issued, and on which a GPU may still be working."""
        self.finished: dict[int, tuple[Tensor, list[tuple[Tensor, ...]]]] = {}
        """Rows and hops of finished pools, by their first row, so that none is stored twice."""
        self.done = 0

    def fill(self, rows: Int[Tensor, " m"]) -> None:
        """Draw all sequences of one length, pool by pool."""
        for _ in self.turns(rows):
            pass

    def turns(self, rows: Int[Tensor, " m"]) -> Iterator[Turn]:
        """`fill` in parts: each new pool, then every step of its sequences."""
        length = int(self.lengths[rows[0]])
        batch = self.batch or self.reader.batch_size(length, self.device)
        for some in rows.split(POOL * batch):
            # events are drawn while a GPU still works on the previous pool
            pool = SequencePool(self, some, torch.stack([self.prompts[row] for row in some.tolist()]))
            if some[0] == rows[0]:  # the other pools need about as many calls as the first
                self.reader.expect_calls(int(pool.queue.most_calls.mean() * len(rows) / min(batch, len(rows))))
            self._store_pool()
            yield pool, np.arange(len(some)), False
            yield from pool.turns(batch)
            self.done += len(some)
            self.in_flight = pool
            self.progress(self.done, len(self.lengths))  # a planner may need fewer calls than expected
        self._store_pool()

    def _store_pool(self) -> None:
        """Wait for the pool in flight and store its sequences."""
        if self.in_flight is None:
            return
        pool = self.in_flight
        some, length = pool.rows.cpu(), pool.tokens.shape[1]
        pool.check_finite(pool.copy_finite())
        for name in ("x0", "fixed", "tokens", "redraws", "changes"):
            getattr(self, name)[some, :length] = getattr(pool, name).cpu()
        self.calls[some] = torch.from_numpy(pool.queue.calls) * self.reader.calls
        self.finished[int(some[0])] = some, pool.hops
        self.in_flight = None

    def result(self) -> tuple[Generation, Int[Tensor, " m"]]:
        """The complete sequences and their indices."""
        self._store_pool()
        none = torch.empty(0, dtype=torch.int64)
        rows = torch.cat([none, *(some for some, _ in self.finished.values())]).sort().values
        names = ("tokens", "x0", "fixed", "lengths", "calls", "redraws", "changes")
        out = Generation(
            **{name: getattr(self, name)[rows].to(self.device) for name in names},
            sampler=self.sampler,
            eta=self.eta,
            filter=self.filter,
            draw=getattr(self.draw, "__name__", repr(self.draw)),
            hops=self._hops(rows) if self.keep_hops else None,
            precision=self.precision,
        )
        return out, rows

    def _hops(self, rows: Int[Tensor, " m"]) -> Hops:
        """The hops of these sequences in the order of time."""
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        hops = [hop for _, some in self.finished.values() for hop in some] or [(none, none.float(), none, none, none)]
        row, t, position, before, after = (torch.cat(parts) for parts in zip(*hops, strict=True))
        real = (before != after).nonzero()[:, 0]
        order = real[t[real].argsort(stable=True)]
        place = torch.searchsorted(rows.to(row.device), row[order])
        return Hops(place, t[order], position[order], before[order], after[order])

    def _check(self) -> None:
        if not len(self.lengths) or int(self.lengths.min()) < 1:
            raise ValueError("pass at least one prompt; each must contain at least one token or hole, got none.")
        if self.batch is not None and not (isinstance(self.batch, Integral) and self.batch >= 1):
            raise ValueError(f"batch must be an integer ≥ 1, got {self.batch!r}.")
        if not (isinstance(self.first, Integral) and 0 <= self.first < MOST_FIRST):
            raise ValueError(
                f"first, the index of a sequence, must be an integer from 0 to 2^62 - 1, got {self.first!r}."
            )
        holes = 0
        for prompt in [self.prompts] if isinstance(self.prompts, Tensor) else self.prompts:
            self.flow.vocab.check_data(prompt.clamp(min=0))
            if int(prompt.min()) < HOLE:
                raise ValueError(f"a prompt must contain data tokens or {HOLE} for a hole, got {int(prompt.min())}.")
            holes += int((prompt == HOLE).sum())
        if not holes:
            raise ValueError(f"there is nothing to draw: no prompt contains a hole ({HOLE}).")
        check_labels(self.model, self.labels, len(self.lengths))
        if self.reader.calls > 1 and self.labels is None and holes == int(self.lengths.sum()):
            raise ValueError("guidance needs labels or prompts: pass labels=…, or call infill.")


class SequencePool:
    """Sequences of one length from which batches are filled: their tokens, and the events that are left."""

    def __init__(self, run: SamplingRun, rows: Int[Tensor, " W"], prompt: Int[Tensor, "W L"]) -> None:
        self.run, flow = run, run.flow
        streams = RandomStreams(run.seed, (run.first + rows).tolist())
        source, fixed = flow.source.at(streams.uniform(prompt.shape[1])), prompt != HOLE
        events = run.sampler.events(flow, run.eta, ~fixed, streams)
        # where data tokens stay, the corrector replaces masks only, and needs no network to know that they are noise
        data_stays = flow.prediction.kept_positions(flow.source).expand(prompt.shape[1])[events.position]
        no_network = events.is_corrector & (data_stays | (events.accept < 0))
        self.queue = run.sampler.queue(events, ~fixed, no_network)
        self.kind = (events.is_corrector.long() + no_network)[self.queue.order].numpy()
        self.events = Events(*(self._column(f.name, getattr(events, f.name)) for f in fields(Events)))
        self.rows, self.fixed, self.source = (x.to(run.device) for x in (rows, fixed, source))
        self.x0 = torch.where(self.fixed, prompt.to(run.device), self.source)
        self.tokens, self.redraws, self.changes = self.x0.clone(), torch.zeros_like(self.x0), torch.zeros_like(self.x0)
        self.labels = None if run.labels is None else run.labels.to(run.device)[self.rows]
        self.hops: list[tuple[Tensor, ...]] = []
        self.finite = torch.ones((), dtype=torch.bool, device=run.device)
        self.last_check = self.copy_finite()

    def turns(self, batch: int) -> Iterator[Turn]:
        """Execute all events, at most `batch` sequences per network call."""
        asked, total = 0, int(self.queue.most_calls.sum())
        for call in count():
            while len(rows := self.queue.without_network()):
                self._step(rows, with_network=False)
                yield self, rows, False
            if not len(rows := self.queue.longest(batch)):
                break
            self._step(rows, with_network=True)
            asked += len(rows)
            self.run.progress(self.run.done + len(self.rows) * asked // total, len(self.run.lengths))
            if call % CHECK_EVERY == 0:
                before, self.last_check = self.last_check, self.copy_finite()
                self.check_finite(before)
            yield self, rows, True

    def copy_finite(self) -> Tensor | AsyncCopy:
        """Whether all logits so far are numbers; on a GPU the host need not wait for it."""
        return AsyncCopy(self.finite) if self.finite.is_cuda else self.finite.clone()

    def check_finite(self, finite: Tensor | AsyncCopy) -> None:
        """Raise ValueError if the network has returned NaN."""
        if not finite.tolist():
            raise ValueError("the network returned NaN: check its weights and its inputs.")

    def _step(self, rows: Indices, with_network: bool) -> None:
        """Execute the next step of these sequences."""
        t = self.queue.times(rows)
        read = self._call_network(rows, t) if with_network else None
        events, place = self.queue.take(rows, None if read is None else self._logits(read), self._at_once)
        for kind in (REDRAW, PROPOSAL, FREE_PROPOSAL):
            for part in self._parts(np.flatnonzero(self.kind[events] == kind)):
                e, at = self._events(events[part]), self._to_device(torch.from_numpy(place[part]))
                before = self.tokens[e.row, e.position]
                if read is None or kind == FREE_PROPOSAL:
                    after, moved = self._propose(None, before, e)
                elif kind == PROPOSAL:
                    after, moved = self._propose(self._log_p(read.logits(at, e.position), before, e), before, e)
                else:
                    after, moved = self._redraw(read, at, before, e), torch.ones_like(before, dtype=torch.bool)
                self.tokens[e.row, e.position] = after
                self.redraws[e.row, e.position] += moved
                self.changes[e.row, e.position] += after != before
                if self.run.keep_hops:
                    now = torch.from_numpy(t[place[part]]).to(e.t.dtype)
                    self.hops.append((self.rows[e.row], self._to_device(now), e.position, before, after))

    def _call_network(self, rows: Indices, t: NDArray[np.float64]) -> BatchLogits:
        """Run the network on these sequences, each at its own time."""
        at = self._to_device(torch.from_numpy(rows))
        labels = None if self.labels is None else self.labels[at]
        tokens, time = self.tokens[at], self._to_device(torch.from_numpy(t).to(self.run.time_dtype))
        unprompted = torch.where(self.fixed[at], self.source[at], tokens) if self.run.reader.calls > 1 else tokens
        return self.run.reader.read(tokens, time, unprompted, labels)

    def _logits(self, read: BatchLogits) -> Logits:
        """The logits of a batch, by indices on any device."""
        return lambda place, position: read.logits(self._to_device(place), self._to_device(position))

    def _log_p(self, logits: Float[Tensor, "m Vd"], xt: Int[Tensor, " m"], e: Events) -> Float[Tensor, "m Vd"]:
        """log P with the filter applied to the logits, before the evidence of xt is added.  theory.md §6"""
        source = self.run.flow.source.of_rows(e.position)
        log_p = self.run.flow.prediction.log_probs(self.run.filter(logits), xt, e.rest, source)
        self.finite &= ~torch.isnan(log_p[:, 0]).any()  # one NaN makes all of its row NaN
        return log_p

    def _redraw(self, read: BatchLogits, at: Tensor, before: Tensor, e: Events) -> Tensor:
        """Tokens drawn from the prediction."""
        if self.run.unfiltered:
            shift = self.run.flow.prediction.shift(before, e.rest, self.run.flow.source.of_rows(e.position))
            certain = torch.isinf(shift)
            drawn = read.draw(at, e.position, before, torch.where(certain, 0.0, shift), e.token)
            if drawn is not None:
                self.finite &= drawn[1]
                return torch.where(certain, before, drawn[0])
        return self.run.draw(self._log_p(read.logits(at, e.position), before, e), e.token)

    def _propose(self, log_p: Tensor | None, before: Tensor, e: Events) -> tuple[Tensor, Tensor]:
        """Tokens drawn from the source, and whether they are accepted, with probability 1 - ρP(xt).  theory.md (F_N)"""
        source = self.run.flow.source.of_rows(e.position)
        fresh = source.at(e.token).to(before.device)
        if log_p is None:  # xt is a mask, so that P(xt) = 0, or it is refreshed whatever it is
            return fresh, torch.ones_like(before, dtype=torch.bool)
        column = before.clamp(max=source.vocab.data - 1)[:, None]
        pt = torch.where(source.vocab.is_data(before), log_p.gather(1, column)[:, 0].exp().to(e.rest), 0.0)
        rho, _ = still_noise(1 - e.rest, e.rest, source.probs(before, e.rest.dtype))
        accepted = e.accept < 1 - rho * pt
        return torch.where(accepted, fresh, before), accepted

    def _parts(self, chosen: Indices) -> Iterator[Indices]:
        """The events in chunks that fit in memory."""
        for start in range(0, len(chosen), self._at_once):
            yield chosen[start : start + self._at_once]

    @property
    def _at_once(self) -> int:
        """Positions whose logits fit in memory."""
        size = (CHUNK if self.run.device.type == "cpu" else GPU_CHUNK) // self.run.flow.vocab.data
        return max(1, size)

    def _column(self, name: str, values: Tensor) -> Tensor:
        """A field of the events on the device, in the order of the queue.

        mps has no float64; the numbers that decide tokens stay on the CPU then, because float32 is too coarse.
        """
        ordered, no_float64 = values[self.queue.order], self.run.device.type == "mps"
        if no_float64 and name == "token":
            return ordered
        return (ordered.float() if no_float64 and ordered.is_floating_point() else ordered).to(self.run.device)

    def _events(self, which: Indices) -> Events:
        at = self._to_device(torch.from_numpy(which))
        columns = (getattr(self.events, f.name) for f in fields(Events))
        return Events(*(column[at.to(column.device)] for column in columns))

    def _to_device(self, x: Tensor) -> Tensor:
        """A copy on the device; from pinned memory the host does not wait for a GPU."""
        return to_device(x, self.run.device) if self.run.device.type == "cuda" else x.to(self.run.device)
