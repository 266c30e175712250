"""The number of CPU threads of a run, measured with a few passes before the first step.

Torch uses all cores by default. If other programs use them too, threads wait for each other, and a step can take
several times as long as with one thread. The number can change the last bits of a sum: it is stored in the run's
checkpoints and used again when the run is resumed.
"""

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..couplings import Independent
from ..flow import Flow
from ..network.precision import autocast, choose_precision
from ..runs import checkpoint
from ..runs.devices import cores
from ..runs.ot_batch import Share
from ..runs.weights import DamagedFile
from .settings import Settings
from .text import Text
from .trainer import task_for

log = logging.getLogger("hopflow")

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number."""
FASTER = 1.15
"""A larger number must be faster by this factor, because measurements are noisy."""
SHORT = 10.0
"""Expected seconds of a run below which nothing is measured."""
PART, LEAST, MOST = 0.02, 0.5, 5.0
"""The share of the expected run time that measuring may take, and its limits in seconds."""
ROUNDS, MOST_ROUNDS = 3, 9

Pass = Callable[[], object]


@dataclass(frozen=True)
class Threads:
    """A number of threads and the reason for it."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"{_count(self.number)} ({self.why})"


def choose_threads(
    model: nn.Module,
    flow: Flow | None,
    corpus: Text,
    settings: Settings,
    device: torch.device,
    share: Share,
    checkpoints: Path,
) -> Threads | None:
    """The number of CPU threads of a run: set, stored in its checkpoints, or measured. None on a GPU.

    Measures a copy of `model`.
    """
    if device.type != "cpu":
        return None
    if found := _set_or_stored(settings.threads, checkpoint.newest_facts(checkpoints), "as before"):
        return found
    # torch.set_num_threads is an upper limit
    most = max(1, min(cores() // _processes(share), torch.get_num_threads()))
    if most == 1:
        return Threads(1, "one core")
    if share.world > 1:
        return Threads(most, "the cores divided by the processes")
    try:
        seconds = ThreadBenchmark(model, flow, corpus, settings, device).measure(candidates(most))
    except Exception as error:  # the run itself reports what is wrong with the network or its flow
        log.debug("the number of threads was not measured: %r", error)
        return Threads(1, "not measured")
    if not seconds:
        return Threads(1, "a short run")
    return Threads(fastest(seconds), f"forward and backward: {_summary(seconds)}")


def choose_inference_threads(
    folder: Path, once: Pass, device: torch.device, asked: int | None = None
) -> Threads | None:
    """The number of CPU threads to sample or evaluate with: set, stored in the checkpoint, or measured by `once`.

    None on a GPU. `once` calls the network once. A stored number larger than this machine's cores is ignored.
    """
    if device.type != "cpu":
        return None
    try:
        facts = checkpoint.facts(folder)
    except DamagedFile:  # a saved network without facts
        facts = {}
    if found := _set_or_stored(asked, facts, "as in training"):
        return found
    most = max(1, min(cores(), torch.get_num_threads()))
    if most == 1:
        return Threads(1, "one core")
    try:
        once()  # the first call warms up
        seconds = interleaved(once, candidates(most), LEAST)
    except Exception as error:  # the command itself reports what is wrong with the network
        log.debug("the number of threads was not measured: %r", error)
        return Threads(1, "not measured")
    return Threads(fastest(seconds), f"one call of the network: {_summary(seconds)}")


def _set_or_stored(asked: int | None, facts: Mapping[str, Any], why: str) -> Threads | None:
    if asked is not None:
        return Threads(asked, "set by threads")
    if variable := next((name for name in VARIABLES if os.environ.get(name)), None):
        return Threads(torch.get_num_threads(), f"set by {variable}")
    stored = facts.get("threads")
    return Threads(stored, why) if isinstance(stored, int) and 1 <= stored <= cores() else None


def candidates(most: int) -> list[int]:
    """1, 2, 4, … and the largest number itself."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def fastest(seconds: dict[int, float]) -> int:
    """The smallest number that no larger one beats by the factor FASTER."""
    best = min(seconds)
    for number in sorted(seconds):
        if seconds[number] * FASTER <= seconds[best]:
            best = number
    return best


@contextmanager
def using(threads: Threads | None) -> Iterator[None]:
    """Let torch use this number of threads inside, then the previous number again; None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads.number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadBenchmark:
    """Forward and backward passes over the first sequences of a run, on a copy of its network.

    There is no optimizer, so that it needs no more memory than the run itself.
    """

    def __init__(
        self, model: nn.Module, flow: Flow | None, corpus: Text, settings: Settings, device: torch.device
    ) -> None:
        self.model = deepcopy(model).train()
        self.flow = None if flow is None else replace(flow, coupling=Independent())
        self.corpus, self.settings, self.device = corpus, settings, device

    def measure(self, numbers: Sequence[int]) -> dict[int, float]:
        """Median seconds of a pass for each number of threads; empty for a short run."""
        rows = max(1, self.settings.batch // self.settings.accumulate)
        with torch.random.fork_rng(devices=[]):
            with using(Threads(1, "")):
                one = self.passes(1)
                each = min(_timed(one) for _ in range(2))  # the first call warms up
            expected = each * self.settings.batch * self.settings.steps
            if expected < SHORT:
                return {}
            budget = min(MOST, max(LEAST, PART * expected))
            affordable = int(budget / (each * ROUNDS * len(numbers)))
            return interleaved(self.passes(max(1, min(rows, affordable))), numbers, budget)

    def passes(self, rows: int) -> Pass:
        """A function that runs one forward and backward pass of `rows` sequences."""
        small = replace(self.settings, batch=rows, accumulate=1, ot_batch=None, workers=0)
        task = task_for(self.model, self.flow, self.corpus, small, Share())
        batch = task.batch(0).map(lambda tensor: tensor.to(self.device))
        precision = choose_precision(self.settings.precision, self.device)

        def once() -> None:
            self.model.zero_grad(set_to_none=True)
            with autocast(precision, self.device):
                loss = task.loss(batch).sum()
            loss.backward()

        return once


def interleaved(once: Pass, numbers: Sequence[int], budget: float) -> dict[int, float]:
    """Median seconds of `once` for each number of threads, measured in turns: a busy moment affects all of them."""
    times: dict[int, list[float]] = {number: [] for number in numbers}
    started = time.perf_counter()
    for turn in range(MOST_ROUNDS):
        for number, found in times.items():
            if _may_win(found, times.values()):
                with using(Threads(number, "")):
                    found.append(_timed(once))
        if turn + 1 >= ROUNDS and time.perf_counter() - started > budget:
            break
    return {number: statistics.median(found) for number, found in times.items()}


def _may_win(found: Sequence[float], every: Iterable[Sequence[float]]) -> bool:
    """Whether to measure a number again: not if it was 4 times as slow as another once, or 2 times as slow twice."""
    best = min((min(times) for times in every if times), default=0.0)
    return not found or min(found) <= (4 if len(found) == 1 else 2) * best


def _processes(share: Share) -> int:
    """The number of this run's processes on this machine."""
    return 1 if share.world == 1 else max(1, int(os.environ.get("LOCAL_WORLD_SIZE", str(share.world))))


def _timed(once: Pass) -> float:
    started = time.perf_counter()
    once()
    return time.perf_counter() - started


def _summary(seconds: dict[int, float]) -> str:
    return ", ".join(f"{_count(number)} {_seconds(value)}" for number, value in seconds.items())


def _count(number: int) -> str:
    return f"{number} thread" if number == 1 else f"{number} threads"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"
