"""Does a coupling hide behind the training step? The same steps with and without pairs, in one run."""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from ..costs import SquaredEmbedding
from ..couplings import Coupling, ExactOT
from ..estimate import known, mean_and_error
from ..flow import Flow
from ..sources import MultiMask
from ..training.ema import Ema
from ..training.pairs import Pairing
from ..training.streams import stream
from ..vocab import Vocab

Row = dict[str, str | int | float]


class Rest:
    """A step that leaves the CPU alone, as a GPU's does."""

    device = torch.device("cpu")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, *rows: Tensor) -> None:
        time.sleep(self.seconds)

    def finish(self) -> None:
        """Wait for what is still under way."""


class Load(Rest):
    """A step that is a matrix product of about so many seconds, on the CPU threads that torch has."""

    def __init__(self, seconds: float) -> None:
        self.square = torch.randn(1024, 1024)
        timings = []
        for _ in range(5):
            started = time.perf_counter()
            self.product()
            self.finish()
            timings.append(time.perf_counter() - started)
        self.repeats = max(1, round(seconds / statistics.median(timings)))

    def product(self) -> None:
        self.square @ self.square

    def step(self, *rows: Tensor) -> None:
        for _ in range(self.repeats):
            self.product()


class GpuLoad(Load):
    """The same on a GPU, in bfloat16: asked for and not waited for, as in training, at most one step ahead of it."""

    device = torch.device("cuda")

    def __init__(self, seconds: float) -> None:
        self.large = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        self.before: torch.cuda.Event | None = None
        for _ in range(20):  # until the clocks are up
            self.product()
        self.finish()
        super().__init__(seconds)

    def product(self) -> None:
        self.large @ self.large

    def step(self, *rows: Tensor) -> None:
        for x in rows:
            x.pin_memory().to(self.device, non_blocking=True)
        super().step()
        if self.before is not None:
            self.before.synchronize()
        self.before = torch.cuda.Event()
        self.before.record()

    def finish(self) -> None:
        torch.cuda.synchronize()


STEPS = {"rest": Rest, "load": Load, "gpu": GpuLoad}
EMBEDDED = ExactOT(SquaredEmbedding())
SHORT = 32
"""Steps of a short run: all four of its cases end within a minute."""
PAPER: tuple[dict[str, Any], ...] = (
    {"n": 512, "updates": 1, "steps": 100},
    # whole OT batches in each block, and more than are ahead: what was solved during the plain steps is soon used up
    {"n": 4096, "updates": 8, "steps": 144, "blocks": 3, "workers": 4, "ahead": 4},
)
"""The paper's two OT batches for steps of 512 rows: 50,257 tokens and as many masks, width 768."""


def run(progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """A coupling of n = 512 behind a step of 100 ms, for each step anew and for eight steps at once."""
    rows = []
    for coupling in (ExactOT(), EMBEDDED):
        for updates in (1, 8):
            progress(f"hiding {coupling}, {updates} updates per coupling")
            rows.append(hiding(coupling=coupling, updates=updates, steps=SHORT))
    for case in PAPER if torch.cuda.is_available() else ():
        progress(f"hiding {EMBEDDED}, n = {case['n']}, behind a GPU's step")
        rows.append(hiding("gpu", width=768, tokens=100_514, ot_ema=0.99999, **case))
    return rows


def hiding(
    kind: str = "rest",
    *,
    coupling: Coupling = EMBEDDED,
    n: int = 512,
    updates: int = 8,
    length: int = 128,
    width: int = 256,
    tokens: int = 5_000,
    step_seconds: float = 0.1,
    steps: int = 160,
    workers: int = 1,
    ahead: int = 2,
    ot_ema: float = 0.0,
    blocks: int = 4,
) -> Row:
    """Steps of `step_seconds`, alone and with pairs whose coupling of n rows serves `updates` steps.

    Plain and paired blocks take turns, so that what else the machine does falls on both. The workers are awake, and
    the first OT batches solved, before the clock starts. `slowdown` 0.01 is one per cent, with its standard error over
    blocks; `seconds_pairing` is the part of it spent in the trainer's own calls, the rest is what a busier machine
    does to a step. With `ot_ema` the paired steps also keep the average of the table, which their couplings read.
    """
    work = STEPS[kind](step_seconds)
    flow = Flow(MultiMask(Vocab(tokens // 2, tokens // 2)), coupling=coupling)
    table = torch.randn(tokens, width, generator=stream(0, "table")).to(work.device)
    average = Ema(table, ot_ema)
    # drawn beforehand: a step without pairs reads data, too
    data = [torch.randint(0, tokens // 2, (n, length), generator=stream(0, "data", i)) for i in range(8)]
    pairing = Pairing(
        flow,
        lambda index: data[index % len(data)],
        length=length,
        batch=n // updates,
        ot_batch=n,
        workers=workers,
        ahead=ahead,
    )
    times: list[tuple[float, float]] = []
    within = waited = 0.0
    solved: list[float] = []

    def paired_step(step: int) -> float:
        asked = time.perf_counter()
        x0, x1 = pairing.step(step, average)
        took = time.perf_counter() - asked
        work.step(x0, x1)
        if ot_ema:
            average.update(table, step)
        return took

    with closing(pairing):
        pairing.wait_until_ready()
        at = (ahead + 1) * updates
        for before in range(at):
            paired_step(before)
        work.finish()
        for block in range(blocks):
            count = steps * (block + 1) // blocks - steps * block // blocks
            x1 = data[0][: n // updates]
            started = time.perf_counter()
            for _ in range(count):
                work.step(x1, x1)
            work.finish()
            plain = time.perf_counter() - started
            started = time.perf_counter()
            for now in range(at, at + count):
                within += paired_step(now)
                if now % updates == 0:
                    report = pairing.report(now)
                    waited += report.seconds_waited
                    solved.append(report.seconds_solved)
            work.finish()
            times.append((plain, time.perf_counter() - started))
            at += count
    plain, paired = (sum(part) for part in zip(*times, strict=True))
    _, error = mean_and_error(torch.tensor([behind / alone - 1 for alone, behind in times], dtype=torch.float64))
    return {
        "what": f"{kind} of {step_seconds * 1000:.0f} ms, {coupling}, n = {n}, {updates} updates per coupling, "
        f"L = {length}, D = {width}, V = {tokens}, ot_ema = {ot_ema}, {workers} worker(s), {ahead} ahead",
        "kind": kind,
        "coupling": str(coupling),
        "n": n,
        "updates": updates,
        "workers": workers,
        "steps": steps,
        "blocks": blocks,
        "seconds_plain": plain,
        "seconds_paired": paired,
        "slowdown": paired / plain - 1,
        "slowdown_stderr": known(error),
        "seconds_pairing": within,
        "seconds_solved": statistics.median(solved),
        "seconds_waited": waited,
    }
