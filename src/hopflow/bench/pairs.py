"""Cost of computing OT pairs in parallel with training steps: the same steps with and without pairs, in one run."""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..bounds.estimate import known, mean_and_error
from ..costs import SquaredEmbedding
from ..couplings import Coupling, ExactOT
from ..flow import Flow
from ..kernels.async_copy import to_device
from ..runs.rng import stream
from ..sources import MultiMask
from ..training.averages import Ema
from ..training.pairing.pairs import Pairing
from ..vocab import Vocab

PairingCost = dict[str, str | int | float]
"""One measurement: settings, seconds of plain and paired steps, and the slowdown."""


class SleepingStep:
    """A step that leaves the CPU idle, as a GPU's step does."""

    device = torch.device("cpu")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, *rows: Tensor) -> None:
        time.sleep(self.seconds)

    def synchronize(self) -> None:
        """Wait until all steps are finished."""


class CpuStep(SleepingStep):
    """A step of matrix products that take about `seconds`, on the CPU threads of torch."""

    def __init__(self, seconds: float) -> None:
        self.square = torch.randn(1024, 1024)
        timings = []
        for _ in range(5):
            started = time.perf_counter()
            self.product()
            self.synchronize()
            timings.append(time.perf_counter() - started)
        self.repeats = max(1, round(seconds / statistics.median(timings)))

    def product(self) -> None:
        self.square @ self.square

    def step(self, *rows: Tensor) -> None:
        for _ in range(self.repeats):
            self.product()


class GpuStep(CpuStep):
    """The same on a GPU in bfloat16. As in training, the host runs at most one step ahead."""

    device = torch.device("cuda")

    def __init__(self, seconds: float) -> None:
        self.large = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        self.before: torch.cuda.Event | None = None
        for _ in range(20):  # until the GPU runs at full clock speed
            self.product()
        self.synchronize()
        super().__init__(seconds)

    def product(self) -> None:
        self.large @ self.large

    def step(self, *rows: Tensor) -> None:
        for x in rows:
            to_device(x, self.device)
        super().step()
        if self.before is not None:
            self.before.synchronize()
        self.before = torch.cuda.Event()
        self.before.record()

    def synchronize(self) -> None:
        torch.cuda.synchronize()


STEPS = {"rest": SleepingStep, "load": CpuStep, "gpu": GpuStep}
EMBEDDED = ExactOT(SquaredEmbedding())
SHORT_RUN = 32
"""Steps of a short run: its four cases take less than a minute."""
PAPER: tuple[dict[str, Any], ...] = (
    {"n": 512, "updates": 1, "steps": 100},
    # each block has complete OT batches, more than are computed ahead: those solved in plain steps are soon used up
    {"n": 4096, "updates": 8, "steps": 144, "blocks": 3, "workers": 4, "ahead": 4},
)
"""The paper's two OT batches for steps of 512 rows: 50,257 tokens and as many masks, width 768."""


def run(progress: Callable[[str], None] = lambda text: None) -> list[PairingCost]:
    """Couplings of n = 512 during steps of 100 ms, for every step and for eight steps at once."""
    rows = []
    for coupling in (ExactOT(), EMBEDDED):
        for updates in (1, 8):
            progress(f"pairing by {coupling}, {updates} updates per coupling")
            rows.append(pairing_cost(coupling=coupling, updates=updates, steps=SHORT_RUN))
    for case in PAPER if torch.cuda.is_available() else ():
        progress(f"pairing by {EMBEDDED}, n = {case['n']}, with steps on a GPU")
        rows.append(pairing_cost("gpu", width=768, tokens=100_514, ot_ema=0.99999, **case))
    return rows


@dataclass(frozen=True)
class PairingCase:
    """Steps of `step_seconds`, and OT pairs of n rows that serve `updates` steps."""

    kind: str = "rest"
    """rest: the step sleeps; load: it computes on the CPU; gpu: on a GPU."""
    coupling: Coupling = EMBEDDED
    n: int = 512
    updates: int = 8
    length: int = 128
    width: int = 256
    tokens: int = 5_000
    step_seconds: float = 0.1
    steps: int = 160
    workers: int = 1
    ahead: int = 2
    ot_ema: float = 0.0
    """Decay of the average of the embedding table that the couplings read; 0 for no average."""
    blocks: int = 4

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.step_seconds * 1000:.0f} ms, {self.coupling}, n = {self.n}, "
            f"{self.updates} updates per coupling, L = {self.length}, D = {self.width}, V = {self.tokens}, "
            f"ot_ema = {self.ot_ema}, {self.workers} worker(s), {self.ahead} ahead"
        )


def pairing_cost(kind: str = "rest", **settings: Any) -> PairingCost:
    """The settings of `PairingCase`, and the time of its steps with and without pairs.

    Plain and paired blocks alternate, so that other load of the machine falls on both. The workers are started, and the
    first OT batches solved, before the timing starts. `slowdown` 0.01 is one per cent, with its standard error over
    blocks; `seconds_pairing` is the part of it spent in the trainer's own calls, the rest is what a busier machine does
    to a step.
    """
    case = PairingCase(kind, **settings)
    with closing(_PairedSteps(case)) as run:
        run.warm_up()
        for block in range(case.blocks):
            run.block(case.steps * (block + 1) // case.blocks - case.steps * block // case.blocks)
    plain, paired = (sum(part) for part in zip(*run.times, strict=True))
    slowdowns = torch.tensor([together / alone - 1 for alone, together in run.times], dtype=torch.float64)
    return {
        "what": str(case),
        "kind": case.kind,
        "coupling": str(case.coupling),
        "n": case.n,
        "updates": case.updates,
        "workers": case.workers,
        "steps": case.steps,
        "blocks": case.blocks,
        "seconds_plain": plain,
        "seconds_paired": paired,
        "slowdown": paired / plain - 1,
        "slowdown_stderr": known(mean_and_error(slowdowns)[1]),
        "seconds_pairing": run.seconds_pairing,
        "seconds_solved": statistics.median(run.seconds_solved),
        "seconds_waited": run.seconds_waited,
    }


@dataclass
class _PairedSteps:
    """Steps with and without pairs, and how long they took."""

    case: PairingCase
    times: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of each block without and with pairs."""
    seconds_pairing: float = 0.0
    seconds_waited: float = 0.0
    seconds_solved: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        self.work = STEPS[case.kind](case.step_seconds)
        flow = Flow(MultiMask(Vocab(case.tokens // 2, case.tokens // 2)), coupling=case.coupling)
        self.table = torch.randn(case.tokens, case.width, generator=stream(0, "table")).to(self.work.device)
        self.average = Ema(self.table, case.ot_ema)
        # drawn before: a step without pairs reads data, too
        shape = case.n, case.length
        data = [torch.randint(0, case.tokens // 2, shape, generator=stream(0, "data", i)) for i in range(8)]
        self.rows = data[0][: case.n // case.updates]
        self.pairing = Pairing(
            flow,
            lambda index: data[index % len(data)],
            length=case.length,
            batch=case.n // case.updates,
            ot_batch=case.n,
            workers=case.workers,
            ahead=case.ahead,
        )
        self.next_step = 0

    def warm_up(self) -> None:
        """Start the workers, and use up the couplings that were computed ahead."""
        self.pairing.wait_until_ready()
        for _ in range((self.case.ahead + 1) * self.case.updates):
            self._paired_step()
        self.work.synchronize()

    def block(self, count: int) -> None:
        """`count` steps without pairs, then as many with pairs."""
        started = time.perf_counter()
        for _ in range(count):
            self.work.step(self.rows, self.rows)
        self.work.synchronize()
        plain = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(count):
            self.seconds_pairing += self._paired_step()
            if (self.next_step - 1) % self.case.updates == 0:
                report = self.pairing.report(self.next_step - 1)
                self.seconds_waited += report.seconds_waited
                self.seconds_solved.append(report.seconds)
        self.work.synchronize()
        self.times.append((plain, time.perf_counter() - started))

    def _paired_step(self) -> float:
        """Seconds that the pairs of a step take in the trainer's process."""
        started = time.perf_counter()
        x0, x1 = self.pairing.step(self.next_step, self.average)
        seconds = time.perf_counter() - started
        self.work.step(x0, x1)
        if self.case.ot_ema:
            self.average.update(self.table, self.next_step)
        self.next_step += 1
        return seconds

    def close(self) -> None:
        self.pairing.close()
