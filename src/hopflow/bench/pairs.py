"""Does a coupling hide behind the training step? The same steps with and without pairs, in one run."""

import statistics
import time
from collections.abc import Callable
from contextlib import closing

import torch

from ..costs import SquaredEmbedding
from ..couplings import Coupling, ExactOT
from ..flow import Flow
from ..sources import MultiMask
from ..training.pairs import Pairing
from ..training.streams import stream
from ..vocab import Vocab

Row = dict[str, str | int | float]


def rest(seconds: float) -> Callable[[], None]:
    """A step that leaves the CPU alone, as a GPU's does."""
    return lambda: time.sleep(seconds)


def load(seconds: float) -> Callable[[], None]:
    """A step that is a matrix product of about so many seconds, on the CPU threads that torch has."""
    square = torch.randn(1024, 1024)
    timings = []
    for _ in range(5):
        started = time.perf_counter()
        square @ square
        timings.append(time.perf_counter() - started)
    repeats = max(1, round(seconds / statistics.median(timings)))

    def step() -> None:
        for _ in range(repeats):
            square @ square

    return step


STEPS = {"rest": rest, "load": load}
EMBEDDED = ExactOT(SquaredEmbedding())
SHORT = 32
"""Steps of a short run: all four of its cases end within a minute."""


def run(progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """A coupling of n = 512 behind a step of 100 ms, for each step anew and for eight steps at once."""
    rows = []
    for coupling in (ExactOT(), EMBEDDED):
        for updates in (1, 8):
            progress(f"hiding {coupling}, {updates} updates per coupling")
            rows.append(hiding(coupling=coupling, updates=updates, steps=SHORT))
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
    blocks: int = 4,
) -> Row:
    """Steps of `step_seconds`, alone and with pairs whose coupling of n rows serves `updates` steps.

    Plain and paired blocks take turns, so that what else the machine does falls on both. The workers are awake, and
    the first OT batches solved, before the clock starts. `slowdown` 0.01 is one per cent;
    `seconds_pairing` is the part of it spent in the trainer's own calls, the rest is what a busier machine does to a
    step.
    """
    step = STEPS[kind](step_seconds)
    flow = Flow(MultiMask(Vocab(tokens // 2, tokens // 2)), coupling=coupling)
    table = torch.randn(tokens, width, generator=stream(0, "table"))
    # drawn beforehand: a step without pairs reads data, too
    data = [torch.randint(0, tokens // 2, (n, length), generator=stream(0, "data", i)) for i in range(8)]
    pairing = Pairing(
        flow, lambda index: data[index % len(data)], length=length, batch=n // updates, ot_batch=n, workers=workers
    )
    plain = paired = within = waited = 0.0
    solved: list[float] = []
    with closing(pairing):
        pairing.wait_until_ready()
        at = 2 * updates
        for before in range(at):
            pairing.step(before, table)
            step()
        for block in range(blocks):
            count = steps * (block + 1) // blocks - steps * block // blocks
            started = time.perf_counter()
            for _ in range(count):
                step()
            plain += time.perf_counter() - started
            started = time.perf_counter()
            for now in range(at, at + count):
                asked = time.perf_counter()
                pairing.step(now, table)
                within += time.perf_counter() - asked
                step()
                if now % updates == 0:
                    report = pairing.report(now)
                    waited += report.seconds_waited
                    solved.append(report.seconds_solved)
            paired += time.perf_counter() - started
            at += count
    return {
        "what": f"{kind} of {step_seconds * 1000:.0f} ms, {coupling}, n = {n}, {updates} updates per coupling, "
        f"L = {length}, D = {width}, V = {tokens}, {workers} worker(s)",
        "coupling": str(coupling),
        "n": n,
        "updates": updates,
        "steps": steps,
        "seconds_plain": plain,
        "seconds_paired": paired,
        "slowdown": paired / plain - 1,
        "seconds_pairing": within,
        "seconds_solved": statistics.median(solved),
        "seconds_waited": waited,
    }
