"""How long sampling takes: by events, in random order, and as a plain loop, in one run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..flow import Flow
from ..models import Transformer
from ..network import resting
from ..precision import computes_in, computing
from ..reader import GPU_TOKENS
from ..recipes.choices import kind_of
from ..samplers import Euler, RandomOrder, Sampler
from ..sampling import How, generate
from ..sources import Source
from .memory import Peak
from .plain import plain_euler

SOURCES = ("mask", "multimask", "bag_of_words", "uniform")
VARIANTS: dict[str, How] = {"compiled": {"compile": True}, "float32": {"precision": "float32"}}
"""Other ways to call `generate`, timed on a GPU."""
TIMED = 6
"""Steps of the plain loop that are timed, evenly spread over all of them."""
PLAIN = 1 << 30
"""Numbers of one of the plain loop's (B, L, V) tensors, of which it holds about ten: fewer sequences at a time then."""


@dataclass(frozen=True)
class Case:
    """What is sampled: n sequences of a new transformer, which costs what a trained one does."""

    n: int = 16
    length: int = 128
    tokens: int = 5_000
    size: str = "tiny"
    steps: tuple[int, ...] = (32, 128, 1024)
    sources: tuple[str, ...] = SOURCES
    seed: int = 0
    device: torch.device = torch.device("cpu")

    def __post_init__(self) -> None:
        if self.tokens < 2 or not self.steps or min(self.steps) < 1:
            raise ValueError(f"at least 2 tokens and 1 step are needed; got {self.tokens} and {self.steps}")

    @classmethod
    def on(cls, device: torch.device, **keys: Any) -> "Case":
        """What suits a device: a laptop's size on a CPU, the paper's on a GPU."""
        usual = {} if device.type == "cpu" else {"n": 2048, "tokens": 50_257, "size": "small"}
        return cls(**{**usual, **keys}, device=device)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": str(self.device)}


@dataclass(frozen=True)
class Row:
    """One sampler on one source; the plain loop's speed is that of `timed_steps` of its steps."""

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


def run(case: Case, progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Every sampler on every source and number of steps; RandomOrder where it exists, its steps are its calls."""
    rows: list[Row] = []
    for name in case.sources:
        flow = Flow(source(name, case.tokens))
        model = _network(case, flow)
        with resting(model):
            _events(case, model, flow, Euler(2), name)  # kernels and caches warm up
            for steps in case.steps:
                progress(f"{name}, {steps} steps: by events")
                rows.append(_events(case, model, flow, Euler(steps), name))
                for label in VARIANTS if case.device.type == "cuda" else ():
                    progress(f"{name}, {steps} steps: by events, {label}")
                    rows.append(_events(case, model, flow, Euler(steps), name, label))
                progress(f"{name}, {steps} steps: as a plain loop")
                with computing(model, case.device):
                    rows.append(_plain(case, model, flow, steps, name))
            if flow.prediction.stays(flow.source):
                progress(f"{name}, in random order")
                rows.append(_events(case, model, flow, RandomOrder(), name))
    return rows


def source(name: str, tokens: int) -> Source:
    """The source of this name; tokens are as frequent as words are, 1/rank."""
    counts = (1e9 / torch.arange(1, tokens + 1)).long()
    made: Source = kind_of("source", name).fit(counts)
    return made


def _network(case: Case, flow: Flow) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        model = Transformer(flow.vocab, case.size)
        torch.nn.init.normal_(model.head.weight, std=0.02)  # a new head predicts every token alike
    return model.to(case.device).eval()


def _events(case: Case, model: Transformer, flow: Flow, sampler: Sampler, name: str, variant: str = "") -> Row:
    """As anybody calls `generate`, or in a variant of that."""
    how: How = {"sampler": sampler, "seed": case.seed, **VARIANTS.get(variant, {})}
    if case.device.type == "cuda":  # not timed: what is compiled is so once, and kept
        generate(model, flow, n=max(1, min(case.n, GPU_TOKENS // case.length)), length=case.length, **how)
        finish(case.device)
    with Peak(case.device) as peak:
        started = time.perf_counter()
        out = generate(model, flow, n=case.n, length=case.length, **how)
        finish(case.device)
        seconds = time.perf_counter() - started
    calls, steps = float(out.calls.double().mean()), out.steps or case.length
    label = "euler" if isinstance(sampler, Euler) else "random_order"
    label += f", {variant}" if variant else ""
    return Row(name, steps, label, case.n / seconds, calls, peak.bytes, case.n, steps, out.precision)


def _plain(case: Case, model: Transformer, flow: Flow, steps: int, name: str) -> Row:
    generator = torch.Generator(case.device).manual_seed(case.seed)
    n = max(1, min(case.n, PLAIN // (case.length * flow.vocab.size)))
    xt = flow.source.sample(n, case.length, generator=generator, device=case.device)
    which = sorted({round(i) for i in torch.linspace(0, steps - 1, min(TIMED, steps)).tolist()})
    plain_euler(model, flow, xt, steps, which[:1], generator)
    with Peak(case.device) as peak:
        started = time.perf_counter()
        plain_euler(model, flow, xt, steps, which, generator)
        finish(case.device)
        seconds = (time.perf_counter() - started) / len(which) * steps
    precision = computes_in(model, case.device)
    return Row(name, steps, "plain_euler", n / seconds, float(steps), peak.bytes, n, len(which), precision)


def ratios(rows: list[Row]) -> Iterator[tuple[Row, float]]:
    """Every row that is by events or in random order, and how many times faster than the plain loop it is.

    Random order stands for continuous time and is set beside the plain loop with the most steps.
    """
    plain = {(row.source, row.steps): row for row in rows if row.sampler == "plain_euler"}
    for row in rows:
        if row.sampler != "plain_euler":
            steps = row.steps if row.sampler.startswith("euler") else max(s for name, s in plain if name == row.source)
            yield row, row.sequences_per_s / plain[row.source, steps].sequences_per_s


def finish(device: torch.device) -> None:
    """Wait until it has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
