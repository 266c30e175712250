"""Hops per sequence: counted in samples that are drawn for the report, and predicted from the coupling alone.

The prediction: a perfect network with η = 0 changes position i at the rate k̇/(1-k)·P(x1 ≠ xt), and xt differs from x1
where the path has not moved yet (probability 1-k) and the pair differs at i. So the expected hops of position i between
two times are (k' - k)·P(x0 ≠ x1 at i): the schedule k decides when, the coupling where and how often. This holds in
continuous time, for any coupling whose source rows follow the source. Euler steps are O(1/N) above it, since positions
that change in the same step do not see each other; the first step is exact. Theorem 3.1 [theorem1], theory.md §2
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds.estimate import mean_and_error
from ..evaluation.rows import SAMPLES, TRANSPORT, Row
from ..network.network import Network, NetworkCaller
from ..sampling.generate import SamplingOptions, generate
from ..sampling.generation import Generation
from ..sampling.samplers import Euler
from ..schedules import Schedule
from .animation import animation_data
from .numbers import BINS, Means, StandardError, ValueWithError, bin_width, binned, format_value, standard_error
from .run_data import RunData
from .trained_run import TrainedRun, Unavailable, cached, error_text

STEPS, FEWER_STEPS, SEED = 32, 8, 0
"""Euler steps, Euler steps for a slow network, and the seed."""
MAX_SEQUENCES, SECONDS, MAX_SECONDS = 64, 2.0, 20.0
"""Sequences at most, seconds for drawing all of them, and seconds that the first one may take."""
MAX_BATCHES = 16
"""OT batches of a prediction at most."""
TRIAL_ROWS, MAX_COUPLING_SECONDS = 512, 60.0
"""Rows of a batch that is coupled to measure the time, and seconds that coupling two OT batches may take."""


# -- counted -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountedHops:
    """Hops of n sampled sequences, η = 0. The field names are those of the cache file."""

    n: int
    length: int
    sampler: str
    dtype: str
    jumps: tuple[float, StandardError]
    """Mean hops per sequence and their standard error."""
    times: tuple[float, ...]
    """Start of every sampling step, and the end of the last one."""
    by_step: Means
    """Hops per sequence in each sampling step."""
    positions: tuple[float, ...]
    """Centers of the bins of positions, counted from 1."""
    bin: int
    """Positions per bin."""
    by_position: Means
    """Hops per sequence at one position."""
    animation: dict[str, Any]
    """The first sequences, for the animation."""

    @classmethod
    def of(
        cls, out: Generation, times: Float[Tensor, " N1"], tokenizer: Any, data_tokens: int, dtype: str
    ) -> "CountedHops":
        """From a generation of equally long sequences with their hops, by steps between these times."""
        length = out.tokens.shape[1]
        return cls(
            len(out.tokens),
            length,
            out.sampler.label,
            dtype,
            mean_and_error(out.jumps),
            tuple(times.tolist()),
            Means.of(hops_by_step(out, times)),
            tuple(binned(torch.arange(1.0, length + 1)[None])[0].tolist()),
            bin_width(length),
            Means.of(binned(out.changes.cpu().double())),
            animation_data(out, tokenizer, data_tokens),
        )


def count_hops(trained: TrainedRun) -> CountedHops:
    """Sample sequences of the training length, as many as the time limit allows, and count their hops."""
    few = trained.flow.source.sample(4, trained.length, generator=torch.Generator().manual_seed(SEED))
    n, steps = affordable(trained.model, few)
    euler = Euler(steps)
    how: SamplingOptions = {"sampler": euler, "trajectory": True, "seed": SEED, "labels": trained.labels(SEED, 0, n)}
    out = generate(trained.model, trained.flow, n=n, length=trained.length, **how)
    return CountedHops.of(out, euler.grid.times(steps), trained.tokenizer, trained.flow.vocab.data, trained.dtype)


def hops_by_step(out: Generation, times: Float[Tensor, " N1"]) -> Float[Tensor, "n N"]:
    """Hops of each sequence between one of these times and the next."""
    assert out.hops is not None
    step = torch.searchsorted(times, out.hops.t.cpu().to(times), right=True) - 1
    counts = torch.zeros(len(out.tokens), len(times) - 1, dtype=torch.float64)
    return counts.index_put((out.hops.row.cpu(), step), torch.ones((), dtype=torch.float64), accumulate=True)


def affordable(model: Network, rows: Int[Tensor, "n L"]) -> tuple[int, int]:
    """How many sequences to draw and in how many steps, from the time of a network call on these rows."""
    caller = NetworkCaller(model)
    rows, t = rows.to(caller.device), torch.full((len(rows),), 0.5, device=caller.device)
    call = _seconds(lambda: float(caller.logits(rows[:1], t[:1]).sum()))
    if call * STEPS < MAX_SECONDS:  # the first call is slower than later ones
        call = min(_seconds(lambda: float(caller.logits(rows, t).sum())) for _ in range(3)) / len(rows)
    for steps in (STEPS, FEWER_STEPS):
        if call * steps <= MAX_SECONDS:
            return max(1, min(MAX_SEQUENCES, int(SECONDS / (call * steps)))), steps
    raise Unavailable(f"sampling one sequence would take about {call * FEWER_STEPS:.0f} s on this machine")


# -- predicted ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairDifferences:
    """Share of pairs that differ at each position, per batch.

    The pairs of a batch depend on each other: the unit of every error is a batch.
    """

    differ: Float[Tensor, "batches L"]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]) -> "PairDifferences":
        """From batches of coupled source and data rows."""
        return cls(torch.stack([(x0 != x1).double().mean(0) for x0, x1 in pairs]))

    @classmethod
    def everywhere(cls, length: int, batches: int = 1) -> "PairDifferences":
        """For a disjoint source: every pair differs at every position."""
        return cls(torch.ones(batches, length, dtype=torch.float64))

    def total(self) -> Float[Tensor, " batches"]:
        """Expected hops per sequence: E d_H(x0, x1). Cor. 3.2 [coro1]"""
        return self.differ.sum(1)

    def by_step(self, schedule: Schedule, times: Float[Tensor, " N1"]) -> Float[Tensor, "batches N"]:
        """Expected hops per sequence between one of these times and the next."""
        rest = schedule.rest(times[:, None])  # (N+1, 1) or (N+1, L)
        gain = (rest[:-1] - rest[1:]).expand(-1, self.differ.shape[1])
        return self.differ @ gain.T


@dataclass(frozen=True)
class HopPrediction:
    """Expected hops by step and by position. The field names are those of the cache file."""

    jumps: tuple[float, StandardError]
    by_step: Means
    by_position: Means
    batches: int
    """OT batches that it is computed from; 0 if it is exact without any pairs."""
    rows: int
    """Rows of an OT batch, as in the training: with more rows to choose from, a coupling saves more hops."""

    @classmethod
    def of(
        cls, pairs: PairDifferences, schedule: Schedule, times: Sequence[float], batches: int, rows: int
    ) -> "HopPrediction":
        by_step = pairs.by_step(schedule, torch.tensor(times, dtype=torch.float64))
        jumps = mean_and_error(pairs.total())
        return cls(jumps, Means.of(by_step), Means.of(binned(pairs.differ)), batches, rows)


def predict_hops(trained: TrainedRun, times: Sequence[float]) -> HopPrediction:
    """Expected hops between these times, from pairs of the training text; a disjoint source needs no pairs."""
    schedule, rows = trained.flow.schedule, trained.ot_batch
    if trained.flow.source.disjoint:  # exact: two equal batches have an error of 0, one would have an unknown error
        return HopPrediction.of(PairDifferences.everywhere(trained.length, 2), schedule, times, 0, rows)
    pairs = _coupled_batches(trained, rows)
    return HopPrediction.of(PairDifferences.of(pairs), schedule, times, len(pairs), rows)


def check_coupling_time(trained: TrainedRun, rows: int) -> None:
    """Raise Unavailable if coupling two OT batches of this size would take too long on this machine."""
    if rows <= TRIAL_ROWS:
        return
    trial = trained.pairs(TRIAL_ROWS)
    next(trial)  # the first batch also loads the text
    seconds = 2 * _seconds(lambda: next(trial)) * (rows / TRIAL_ROWS) ** 2
    if seconds > MAX_COUPLING_SECONDS:
        raise Unavailable(f"coupling two OT batches of {rows:,} rows would take about {seconds:.0f} s on this machine")


def _coupled_batches(trained: TrainedRun, rows: int) -> list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
    """The first OT batches, at least two: one has no standard error."""
    check_coupling_time(trained, rows)
    found: list[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]] = []
    started = time.perf_counter()
    for pairs in islice(trained.pairs(rows), MAX_BATCHES):
        found.append(pairs)
        if len(found) > 1 and time.perf_counter() - started > SECONDS:
            break
    return found


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# -- of a run ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def run_hops(run: RunData) -> tuple[CountedHops, HopPrediction | None, str]:
    """Counted and predicted hops, computed or from the cache; if there is no prediction, the reason."""
    trained = TrainedRun.load(run)
    key = {"weights": trained.weights, "steps": STEPS, "seed": SEED, "bins": BINS}
    counted = cached(run.folder, "hops", key, CountedHops, lambda: count_hops(trained))
    key |= {"steps": len(counted.times) - 1, "rows": trained.ot_batch}
    try:
        predicted = cached(run.folder, "expected", key, HopPrediction, lambda: predict_hops(trained, counted.times))
    except (ValueError, OSError) as error:
        return counted, None, error_text(error)
    return counted, predicted, ""


@dataclass(frozen=True)
class PredictedTotal:
    """Expected hops per sequence of a perfect network, and the pairs that they are computed from."""

    value: float
    stderr: float | None
    batches: int
    """OT batches; 0 if every pair differs at every position."""
    rows: int
    """Rows of an OT batch."""
    length: int

    @property
    def number(self) -> ValueWithError:
        return ValueWithError(self.value, self.stderr)

    def __str__(self) -> str:
        if not self.batches:
            return f"{self.value:,g} (exact)"
        return f"{format_value(self.value, self.stderr)} (n = {self.batches} OT batches of {self.rows:,})"


def predicted_total(run: RunData) -> PredictedTotal | None:
    """From the checkpoint and the training text, or from `hopflow eval` if its OT batches have the training size."""
    try:
        counted, predicted, _ = run_hops(run)
        if predicted is not None:
            return PredictedTotal(*predicted.jumps, predicted.batches, predicted.rows, counted.length)
    except (ValueError, OSError):
        pass  # the section on hops says why
    for row in run.rows:
        if (row.set, row.quantity) == (TRANSPORT, "predicted_jumps") and has_training_ot_batch(row):
            ot_n, length = int(row.more.get("ot_n") or 0), int(row.more.get("length") or 0)
            return PredictedTotal(row.value, standard_error(row.stderr, row.n), row.n, ot_n, length)
    return None


def has_training_ot_batch(row: Row) -> bool:
    """Whether a result on pairs is for the OT batch of the training; the size is irrelevant for independent pairs."""
    more = row.more
    return more.get("ot_n") == more.get("trained_ot_n") or str(more.get("coupling")).startswith("Independent")


def counted_totals(runs: Sequence[RunData]) -> tuple[dict[RunData, ValueWithError], str]:
    """Hops per sequence of every run with the same sampler, η = 0, and this sampler; empty if they share none."""
    by_steps = [
        {
            (row.more.get("steps"), row.more.get("length"), row.more.get("sampler_label")): row
            for row in run.rows
            if (row.set, row.quantity, row.eta) == (SAMPLES, "jumps", 0.0)
            and row.more.get("temperature", 1.0) in (None, 1.0)
        }
        for run in runs
    ]
    if common := set.intersection(*(set(rows) for rows in by_steps)):
        most = max(common, key=lambda place: (place[0] or 0, place[2] is None))  # plain Euler steps first
        rows = [found[most] for found in by_steps]
        values = [ValueWithError(row.value, standard_error(row.stderr, row.n)) for row in rows]
        return dict(zip(runs, values, strict=True)), str(rows[0].more.get("sampler", "η = 0"))
    try:
        counted = [run_hops(run)[0] for run in runs]
    except (ValueError, OSError):
        return {}, ""
    if len({(one.sampler, one.length) for one in counted}) > 1:
        return {}, ""
    values = [ValueWithError(one.jumps[0], standard_error(one.jumps[1], one.n)) for one in counted]
    return dict(zip(runs, values, strict=True)), f"η = 0, {counted[0].sampler}"
