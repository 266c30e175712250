"""Speed of sampling: hopflow's samplers against a plain Euler loop, in one run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..flow import Flow
from ..models import Transformer
from ..network.network import GPU_TOKENS, NetworkCaller
from ..sampling.generate import SamplingOptions, generate
from ..sampling.samplers import Euler, RandomOrder, Sampler
from .case import SpeedCase, new_transformer, source_by_name, synchronize
from .memory import PeakMemory
from .plain import plain_euler

SOURCES = ("mask", "multimask", "bag_of_words", "uniform")
VARIANTS: dict[str, SamplingOptions] = {"compiled": {"compile": True}, "float32": {"precision": "float32"}}
"""Other options of `generate`, timed on a GPU."""
TIMED_STEPS = 6
"""Steps of the plain loop that are timed, evenly spread over all of them."""
PLAIN_NUMBERS = 1 << 30
"""Numbers of one (B, L, V) tensor of the plain loop, which holds about ten of them; limits its batch."""


@dataclass(frozen=True)
class SamplingCase(SpeedCase):
    """Sampling of n sequences."""

    n: int = 16
    steps: tuple[int, ...] = (32, 128, 1024)
    sources: tuple[str, ...] = SOURCES

    GPU_DEFAULTS = {"n": 2048, "tokens": 50_257, "size": "small"}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps or min(self.steps) < 1:
            raise ValueError(f"steps must be integers ≥ 1, got {self.steps}")


@dataclass(frozen=True)
class SamplingSpeed:
    """One sampler on one source. The plain loop's speed is extrapolated from `timed_steps` of its steps."""

    source: str
    steps: int
    sampler: str
    sequences_per_s: float
    calls_per_sequence: float
    peak_bytes: int
    n: int
    timed_steps: int
    precision: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(case: SamplingCase, progress: Callable[[str], None] = lambda text: None) -> list[SamplingSpeed]:
    """Every sampler on every source and number of steps; RandomOrder, where it applies, has no number of steps."""
    rows: list[SamplingSpeed] = []
    for name in case.sources:
        flow = Flow(source_by_name(name, case.tokens))
        model = sampling_transformer(case, flow)
        caller = NetworkCaller(model, flow.vocab.data, precision="auto")
        with caller.evaluation_mode():
            timed_generate(case, model, flow, Euler(2), name)  # warms up kernels and caches
            for steps in case.steps:
                progress(f"{name}, {steps} steps: euler")
                rows.append(timed_generate(case, model, flow, Euler(steps), name))
                for label in VARIANTS if case.device.type == "cuda" else ():
                    progress(f"{name}, {steps} steps: euler, {label}")
                    rows.append(timed_generate(case, model, flow, Euler(steps), name, label))
                progress(f"{name}, {steps} steps: plain loop")
                with caller.use_precision(case.device) as precision:
                    rows.append(_timed_plain(case, model, flow, steps, name, precision))
            if flow.prediction.keeps_data_tokens(flow.source):
                progress(f"{name}, random order")
                rows.append(timed_generate(case, model, flow, RandomOrder(), name))
    return rows


def sampling_transformer(case: SpeedCase, flow: Flow) -> Transformer:
    """A new transformer whose head is random: with a zero head every token is equally likely."""
    return new_transformer(case, flow.source, lambda model: torch.nn.init.normal_(model.head.weight, std=0.02))


def timed_generate(
    case: SamplingCase, model: Transformer, flow: Flow, sampler: Sampler, name: str, variant: str = ""
) -> SamplingSpeed:
    """One call of `generate`, by default or in a variant."""
    options: SamplingOptions = {"sampler": sampler, "seed": case.seed, **VARIANTS.get(variant, {})}
    if case.device.type == "cuda":  # untimed: compiles once
        generate(model, flow, n=max(1, min(case.n, GPU_TOKENS // case.length)), length=case.length, **options)
        synchronize(case.device)
    with PeakMemory(case.device) as peak:
        started = time.perf_counter()
        out = generate(model, flow, n=case.n, length=case.length, **options)
        synchronize(case.device)
        seconds = time.perf_counter() - started
    calls, steps = float(out.calls.double().mean()), out.steps or case.length
    label = "random_order" if out.steps is None else "euler"
    label += f", {variant}" if variant else ""
    return SamplingSpeed(name, steps, label, case.n / seconds, calls, peak.bytes, case.n, steps, out.precision)


def _timed_plain(
    case: SamplingCase, model: Transformer, flow: Flow, steps: int, name: str, precision: str
) -> SamplingSpeed:
    generator = torch.Generator(case.device).manual_seed(case.seed)
    n = max(1, min(case.n, PLAIN_NUMBERS // (case.length * flow.vocab.size)))
    xt = flow.source.sample(n, case.length, generator=generator, device=case.device)
    which = sorted({round(i) for i in torch.linspace(0, steps - 1, min(TIMED_STEPS, steps)).tolist()})
    plain_euler(model, flow, xt, steps, which[:1], generator)
    with PeakMemory(case.device) as peak:
        started = time.perf_counter()
        plain_euler(model, flow, xt, steps, which, generator)
        synchronize(case.device)
        seconds = (time.perf_counter() - started) / len(which) * steps
    return SamplingSpeed(name, steps, "plain_euler", n / seconds, float(steps), peak.bytes, n, len(which), precision)


def ratios(rows: list[SamplingSpeed]) -> Iterator[tuple[SamplingSpeed, float]]:
    """Every row but those of the plain loop, with its speed relative to the plain loop.

    Random order samples in continuous time; it is compared with the plain loop of the most steps.
    """
    plain = {(row.source, row.steps): row for row in rows if row.sampler == "plain_euler"}
    for row in rows:
        if row.sampler != "plain_euler":
            steps = row.steps if row.sampler.startswith("euler") else max(s for name, s in plain if name == row.source)
            yield row, row.sequences_per_s / plain[row.source, steps].sequences_per_s
