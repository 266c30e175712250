"""What each kernel part of hopflow contributes: speed and memory with the part on and off, in one process.

    python tools/kernel_parts.py --out parts.json                              # every part, every workload
    python tools/kernel_parts.py --workloads train --parts short_attention gelu_mlp
    python tools/kernel_parts.py --parts short_attention+embedding             # both off together
    python tools/kernel_parts.py --workloads sample --size mini --n 256        # a small network
    python tools/kernel_parts.py --tiny --seconds 60                           # a test on a CPU

Workloads, by default at the paper's size (12 layers × 768, L = 128, V = 50,257):

- train: a compiled training step of 512 sequences, from multimask (loss at noisy positions) and uniform (at all)
- sample: 1,024 Euler steps from a mask
- bounds: b1 of a uniform source
- ot: the transport cost of 512 sequences in embedding space, and the average of the embedding table

Blocks with the part on and off alternate. Each row of the table has the mean and its standard error over blocks, and
the relative cost of switching the part off, from pairs of neighboring blocks. The JSON is written after every row.
"""

import argparse
import gc
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hopflow import kernels
from hopflow.bench.bounds import BoundsCase, randomize_weights
from hopflow.bench.case import new_transformer, seconds_of, source_by_name
from hopflow.bench.machine import machine
from hopflow.bench.memory import PeakMemory
from hopflow.bench.sample import SamplingCase, sampling_transformer
from hopflow.bench.training_run import TimedTraining, TrainingCase, Variant
from hopflow.bounds.nll import nll_bound
from hopflow.costs import SquaredEmbedding
from hopflow.flow import Flow
from hopflow.kernels.switch import PARTS
from hopflow.network.network import GPU_TOKENS
from hopflow.sampling.generate import generate
from hopflow.training.averages import Ema

RELEVANT = {
    "train": ("fused_head", "short_attention", "residual_norm", "gelu_mlp", "async_copy"),
    "sample": (
        *("bf16x3_head", "draw_tokens", "short_attention", "residual_norm", "gelu_mlp", "cuda_graph", "async_copy"),
    ),
    "bounds": ("bf16x3_head", "short_attention", "residual_norm", "gelu_mlp", "divergence"),
    "ot": ("embedding",),
}
"""Parts that a workload uses."""
GIB = 1 << 30


@dataclass
class Measurement:
    """One part on one workload. Times in `unit`; memory in bytes, weights included on a GPU."""

    workload: str
    part: str
    unit: str
    on: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    on_bytes: int = 0
    off_bytes: int = 0
    error: str | None = None

    @property
    def cost(self) -> tuple[float, float]:
        """Relative cost of switching the part off, and its standard error: 0.05 is five per cent slower."""
        ratios = [off / on - 1 for on, off in zip(self.on, self.off, strict=False)]
        return mean_and_error(ratios)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = asdict(self)
        if self.on and self.off:
            for name, (mean, error) in {
                "on": mean_and_error(self.on),
                "off": mean_and_error(self.off),
                "cost": self.cost,
            }.items():
                found |= {f"{name}_mean": mean, f"{name}_stderr": error if math.isfinite(error) else None}
            found["memory_cost"] = self.off_bytes / self.on_bytes - 1 if self.on_bytes else None
        return found

    def __str__(self) -> str:
        if not (self.on and self.off):
            return f"{self.workload:<17} {self.part:<32} {self.error or 'no blocks'}"
        (on, on_error), (off, off_error), (cost, cost_error) = (
            mean_and_error(self.on),
            mean_and_error(self.off),
            self.cost,
        )
        memory = f"{self.on_bytes / GIB:8.2f} {self.off_bytes / GIB:8.2f}"
        return (
            f"{self.workload:<17} {self.part:<32} {on:9.3f} ± {on_error:<7.3f} {off:9.3f} ± {off_error:<7.3f} "
            f"{self.unit:<5}"
            f"{100 * cost:8.2f} ± {100 * cost_error:<6.2f}% {memory}  {len(self.off)} blocks"
        )


HEADER = (
    f"{'workload':<17} {'part':<32} {'on':>9}   {'s.e.':<7} {'off':>9}   {'s.e.':<7} {'':<5}{'cost of off':>8}       "
    f"   GiB on  GiB off"
)


class Workload:
    """Something to time: `prepare` under each setting of the switch, then `block` for the time of one block."""

    name = unit = ""

    def prepare(self) -> None:
        """Untimed work under the current setting of the switch: compile, warm up."""

    def block(self) -> float:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Training(Workload):
    unit = "ms"

    def __init__(self, case: TrainingCase, source: str, compiled: bool) -> None:
        self.name, self.count = f"train {source}", case.steps
        self.run = TimedTraining(case, source, Variant("kernel parts", compile=compiled))

    def prepare(self) -> None:
        self.run.steps(0)

    def block(self) -> float:
        return 1e3 * statistics.fmean(self.run.steps(self.count))

    def close(self) -> None:
        self.run.close()


class Sampling(Workload):
    name, unit = "sample mask", "s"

    def __init__(self, case: SamplingCase, compiled: bool) -> None:
        self.case, self.compiled = case, compiled
        self.flow = Flow(source_by_name("mask", case.tokens))
        self.model = sampling_transformer(case, self.flow)

    def prepare(self) -> None:
        self._generate(max(1, min(self.case.n, GPU_TOKENS // self.case.length)))

    def block(self) -> float:
        return seconds_of(lambda: self._generate(self.case.n), self.case.device)

    def _generate(self, n: int) -> None:
        options: dict[str, Any] = {"compile": True} if self.compiled else {}
        steps = self.case.steps[0]
        generate(self.model, self.flow, n=n, length=self.case.length, steps=steps, seed=self.case.seed, **options)


class Bounds(Workload):
    name, unit = "bounds uniform", "s"

    def __init__(self, case: BoundsCase) -> None:
        self.case = case
        self.flow = Flow(source_by_name("uniform", case.tokens))
        self.model = new_transformer(case, self.flow.source, randomize_weights)
        generator = torch.Generator().manual_seed(case.seed)
        self.x1 = torch.randint(case.tokens, (case.n, case.length), generator=generator).to(case.device)

    def prepare(self) -> None:
        nll_bound(self.model, self.flow, self.x1[:64], eta=1, draws=self.case.draws)

    def block(self) -> float:
        bound = lambda: nll_bound(self.model, self.flow, self.x1, eta=1, draws=self.case.draws)  # noqa: E731
        return seconds_of(bound, self.case.device)


class TransportCost(Workload):
    """Once per OT batch and once per step of training, both outside of the network."""

    name, unit, repeats = "ot cost, average", "ms", 20

    def __init__(self, tokens: int, width: int, n: int, length: int, device: torch.device) -> None:
        self.device = device
        self.table = torch.randn(2 * tokens, width, device=device)
        self.x0, self.x1 = torch.randint(tokens, (2, n, length), device=device)
        self.average = Ema(self.table, 0.99999)

    def prepare(self) -> None:
        self._once()

    def block(self) -> float:
        return 1e3 * seconds_of(self._repeat, self.device) / self.repeats

    def _repeat(self) -> None:
        for _ in range(self.repeats):
            self._once()

    def _once(self) -> None:
        SquaredEmbedding().matrix(self.x0, self.x1, self.table)
        self.average.update(self.table, 100)


class Session:
    """Measures, prints and writes, within a time budget."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        self.started, self.found = time.perf_counter(), list[Measurement]()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def over(self) -> bool:
        return self.seconds > self.options.seconds

    def measure_all(self, workload: Workload, parts: tuple[str, ...]) -> None:
        with switched("", on=True):
            say(f"[{self.seconds:.0f} s] {workload.name}: warming up")
            workload.prepare()
        for part in parts:
            row = Measurement(workload.name, part, workload.unit)
            if self.over:
                row.error = f"skipped: --seconds {self.options.seconds:g} is used up"
            else:
                try:
                    self.measure(workload, row)
                except Exception as error:  # one part that fails must not end the others
                    row.error = f"{type(error).__name__}: {error}"
                    say(traceback.format_exc())
            self.found.append(row)
            say(f"[{self.seconds:.0f} s] {row}")
            self.write()

    def measure(self, workload: Workload, row: Measurement) -> None:
        with switched(row.part, on=False):
            workload.prepare()
        for number in range(self.options.blocks):
            order = (True, False) if number % 2 == 0 else (False, True)
            for on in order:  # alternating, so that a drift of the clock speed slows both equally
                with switched(row.part, on):
                    value, peak = self.block(workload)
                (row.on if on else row.off).append(value)
                row.on_bytes, row.off_bytes = (
                    (max(row.on_bytes, peak), row.off_bytes) if on else (row.on_bytes, max(row.off_bytes, peak))
                )
            if number >= 1 and self.over:
                row.error = "fewer blocks: the time is used up"
                return

    def block(self, workload: Workload) -> tuple[float, int]:
        """The time of a block, and its peak memory, with what was allocated before."""
        gc.collect()
        before = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0
        with PeakMemory(self.device) as peak:
            value = workload.block()
        return value, before + peak.bytes

    def write(self) -> None:
        settings = {name: str(value) for name, value in vars(self.options).items()}
        rows = [row.as_json() for row in self.found]
        text = json.dumps({"machine": machine(self.device), "settings": settings, "rows": rows}, indent=1)
        self.options.out.write_text(text + "\n", encoding="utf-8")


def switched(part: str, on: bool) -> AbstractContextManager[object]:
    """The switch with a part, or several joined by +, on or off; all others are on."""
    return kernels.using(**dict.fromkeys(filter(None, part.split("+")), on))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error; NaN for a single value."""
    if not values:
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def say(text: str) -> None:
    print(text, flush=True)


def workloads(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, Callable[[], Workload]]]:
    """Name and constructor of each workload that was chosen."""
    tiny = options.tiny
    sizes: dict[str, Any] = {"tokens": 50_257, "size": options.size, "length": 128}
    if tiny:
        sizes = {"tokens": 300, "size": "micro", "length": 16}
    compiled = not (options.eager or tiny)
    if "train" in options.workloads:
        case = TrainingCase(**sizes, batch=4 if tiny else 512, steps=2 if tiny else options.steps, device=device)
        for source in options.sources:
            yield "train", lambda source=source: Training(case, source, compiled)  # type: ignore[misc]
    if "sample" in options.workloads:
        sampled = SamplingCase(**sizes, n=4 if tiny else options.n, steps=(8 if tiny else 1024,), device=device)
        yield "sample", lambda: Sampling(sampled, options.compile_sampling)
    if "bounds" in options.workloads:
        bounded = BoundsCase(**sizes, n=4 if tiny else 512, draws=2 if tiny else 8, device=device)
        yield "bounds", lambda: Bounds(bounded)
    if "ot" in options.workloads:
        yield "ot", lambda: TransportCost(*((300, 16, 8, 16) if tiny else (50_257, 768, 512, 128)), device=device)


def chosen_parts(options: argparse.Namespace, kind: str) -> tuple[str, ...]:
    """The parts to measure on a workload: those named, if the workload uses one of them."""
    if not options.parts:
        return RELEVANT[kind]
    return tuple(part for part in options.parts if set(part.split("+")) & set(RELEVANT[kind]))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=RELEVANT, default=list(RELEVANT))
    parser.add_argument("--parts", nargs="+", default=[], help=f"of {', '.join(PARTS)}; a+b switches both off together")
    parser.add_argument("--sources", nargs="+", choices=("multimask", "uniform"), default=["multimask", "uniform"])
    parser.add_argument("--seconds", type=float, default=440, help="start no measurement after this time")
    parser.add_argument("--blocks", type=int, default=5, help="blocks with a part on and off, each")
    parser.add_argument("--steps", type=int, default=12, help="timed training steps per block, after 8 untimed ones")
    parser.add_argument("--size", default="small", help="size of the network; in a small one the host limits sampling")
    parser.add_argument("--n", type=int, default=1024, help="sampled sequences per block")
    parser.add_argument("--eager", action="store_true", help="do not compile the training step")
    parser.add_argument("--compile-sampling", action="store_true", help="sample with compile=True")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to test this script")
    parser.add_argument("--out", type=Path, default=Path("kernel_parts.json"))
    options = parser.parse_args(arguments)
    if unknown := {name for part in options.parts for name in part.split("+")} - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    return options


def main(arguments: list[str] | None = None) -> list[Measurement]:
    options = parse(arguments)
    device = torch.device(options.device)
    for limit in ("recompile_limit", "cache_size_limit"):  # each part that is off is another compiled version
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 64)
    session = Session(options, device)
    for kind, build in workloads(options, device):
        parts = chosen_parts(options, kind)
        if not parts or session.over:
            say(f"[{session.seconds:.0f} s] {kind}: skipped, {'the time is used up' if parts else 'uses none of them'}")
            continue
        try:
            with closing(build()) as workload:
                session.measure_all(workload, parts)
        except Exception:
            say(f"{kind} failed:\n{traceback.format_exc()}")
        workload = None  # type: ignore[assignment]
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    session.write()
    say("\n" + HEADER)
    for row in session.found:
        say(str(row))
    return session.found


if __name__ == "__main__":
    main()
