"""How long a training step takes: as it is, with each optimisation left out, and as plain code; in one run."""

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..costs import SquaredEmbedding
from ..couplings import ExactOT, Independent
from ..flow import Flow
from ..models import Transformer
from ..models.sizes import Size
from ..training.settings import Settings
from ..training.shares import Share
from ..training.streams import stream
from ..training.tasks import FlowTask
from ..training.trainer import Trainer
from .memory import Peak
from .sample import finish, source

WARM = 8
"""Steps before the clock starts: a GPU that has rested is quicker by some per cent in the first five."""
TURNS = 6
"""Blocks of steps with and without couplings, whose slowdown is less than one run differs from the next."""
ROLL = 1 << 20
"""Tokens of which a batch takes pieces."""
MATRIX = 8192
"""Rows of the square bf16 product whose speed stands for what the device can do."""


@dataclass(frozen=True)
class Case:
    """What is trained: a new transformer on random tokens, which costs what text does."""

    batch: int = 16
    length: int = 64
    tokens: int = 2_000
    size: str = "tiny"
    sources: tuple[str, ...] = ("uniform", "multimask")
    """From a uniform source every position carries loss, from masks those that still hold one."""
    steps: int = 5
    seed: int = 0
    device: torch.device = torch.device("cpu")

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tokens < 2:
            raise ValueError(f"at least 2 tokens and 1 step are needed; got {self.tokens} and {self.steps}")

    @classmethod
    def on(cls, device: torch.device, **keys: Any) -> "Case":
        """What suits a device: a laptop's size on a CPU, the paper's on a GPU."""
        usual = {"batch": 512, "length": 128, "tokens": 50_257, "size": "small", "steps": 40}
        return cls(**{**({} if device.type == "cpu" else usual), **keys}, device=device)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": str(self.device)}


@dataclass(frozen=True)
class Variant:
    """A way to take a step; each optimisation can be left out."""

    name: str
    compile: bool = True
    kernels: bool = True
    rows: bool = True
    """The head only where a token is not certain to stay."""
    attention: bool = True
    """By kernels that hold a short sequence as a whole."""
    between: bool = True
    """What lies between products (norms, dropout, gates, gelu) in one pass each."""
    ahead: bool = True
    """The host does not wait for what a step came to."""
    ot_batch: int | None = None
    """Pairs by exact OT of so many batches in embedding space, with the table's average."""


BEST = Variant("as it is")
VARIANTS = (
    BEST,
    replace(BEST, name="not compiled", compile=False),
    replace(BEST, name="head at every position", rows=False),
    replace(BEST, name="head by torch", kernels=False),
    replace(BEST, name="attention by torch", attention=False),
    replace(BEST, name="norms and gelu by torch", between=False),
    replace(BEST, name="waits for every step", ahead=False),
    Variant("plain: eager, full logits", *[False] * 6),
    replace(BEST, name="exact OT of one batch", ot_batch=1),
    replace(BEST, name="exact OT of eight batches", ot_batch=8),
)
GPU_ONLY = ("head by torch", "attention by torch", "norms and gelu by torch", "waits for every step")
"""On a CPU there are no kernels, and nothing to run ahead of."""


@dataclass(frozen=True)
class Row:
    """One variant on one source: milliseconds of a step (mean, and half the range of the middle half)."""

    source: str
    variant: str
    ms: float
    ms_spread: float
    tokens_per_s: float
    tflop: float
    """Of the products that the step needs, six for every weight and row, and attention; the same for all variants."""
    tflop_per_s: float
    share_of_peak: float | None
    peak_bytes: int
    """All that tensors take on a GPU, weights included; elsewhere what the process grows by, a compiler included."""
    loss: float | None
    """None where steps with and without couplings took turns."""
    slowdown: float | None = None
    """Of a step by its couplings, a share: the same trainer with and without them. The median turn, and in it the
    median coupling's worth of steps: something else that has the host for a few outweighs all that couplings cost."""
    slowdown_spread: float | None = None
    uncoupled_ms: float | None = None
    """The mean of the steps without couplings, in the same turns: beside `ms` it shows what the medians leave out."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    case: Case, variants: tuple[Variant, ...] = VARIANTS, progress: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Every variant on every source, one after another in the same process."""
    peak, rows = matrix_peak(case.device), []
    for name in case.sources:
        for variant in variants:
            if case.device.type == "cpu" and variant.name in GPU_ONLY:
                continue
            progress(f"{name}: {variant.name}")
            rows.append(_row(case, name, variant, peak))
    return rows


def matrix_peak(device: torch.device) -> float | None:
    """TFLOP/s of a large bf16 product on random numbers; None on a CPU, where it says nothing."""
    if device.type != "cuda":
        return None
    a, b = torch.randn(2, MATRIX, MATRIX, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    seconds = statistics.median(_timed(lambda: a @ b, device) for _ in range(20))
    return 2 * MATRIX**3 / seconds / 1e12


def work(case: Case, source_name: str) -> float:
    """TFLOP of a step: half of the positions need a head where data tokens stay."""
    size = Size.of(case.size)
    tokens = case.batch * case.length
    layers = size.layers * 12 * size.width**2
    head = size.width * case.tokens * (0.5 if source_name in ("mask", "multimask") else 1.0)
    attention = 12 * size.layers * case.length * size.width
    return (6 * (layers + head) + attention) * tokens / 1e12


class RandomText:
    """Tokens without a text, as frequent as words are (1/rank): pieces of a long roll, as quick to find as text."""

    def __init__(self, case: Case) -> None:
        self.length, self.vocab_size = case.length, case.tokens
        chances = (1.0 / torch.arange(1, case.tokens + 1, dtype=torch.float64)).cumsum(0)
        u = torch.rand(ROLL, dtype=torch.float64, generator=stream(case.seed, "bench"))
        roll = torch.searchsorted(chances, u * chances[-1]).clamp(max=case.tokens - 1)
        self._windows = roll.unfold(0, case.length, 1)

    test: Int[Tensor, "n L"] = torch.empty(0, 1, dtype=torch.int64)
    test_keep: Bool[Tensor, "n L"] | None = None
    identity: dict[str, Any] = {}  # noqa: RUF012

    def batch(self, seed: int, start: int, count: int) -> Int[Tensor, "n L"]:
        places = torch.randint(len(self._windows), (count,), generator=stream(seed, "bench", start))
        return self._windows[places]

    def keep(self, seed: int, start: int, count: int) -> Bool[Tensor, "n L"] | None:
        return None

    def decode(self, tokens: Int[Tensor, " L"]) -> str:
        return " ".join(map(str, tokens.tolist()))


class _Whole(nn.Module):
    """A network as a plain callable: nobody sees that it has a head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        logits: Tensor = self.inner(xt, t)
        return logits


def _row(case: Case, name: str, variant: Variant, peak: float | None) -> Row:
    torch.compiler.reset()  # of one function it compiles eight forms and no more
    with without(variant), Peak(case.device) as memory, closing(_Run(case, name, variant)) as run:
        run.steps(0)  # the time that a compiler takes is not a step's
        each, alone, slowdowns, loss = [], [], [], None
        if not variant.ot_batch:
            each, loss = run.steps(case.steps), run.trainer.loss
        else:
            ways, span = [run.uncoupled, run.steps], variant.ot_batch
            for _ in range(TURNS):
                blocks = {way: way(-(-case.steps // span) * span) for way in ways}
                each += blocks[run.steps]
                alone += blocks[run.uncoupled]
                slowdowns.append(typical(blocks[run.steps], span) / typical(blocks[run.uncoupled], span) - 1)
                ways.reverse()  # what drifts slows both alike
    tflop, tokens, seconds = work(case, name), case.batch * case.length, statistics.fmean(each)
    speed = tflop / seconds
    return Row(
        source=name,
        variant=variant.name,
        ms=1e3 * seconds,
        ms_spread=1e3 * spread(each),
        tokens_per_s=tokens / seconds,
        tflop=tflop,
        tflop_per_s=speed,
        share_of_peak=None if peak is None else speed / peak,
        peak_bytes=memory.bytes,
        loss=loss,
        slowdown=statistics.median(slowdowns) if slowdowns else None,
        slowdown_spread=spread(slowdowns) if slowdowns else None,
        uncoupled_ms=1e3 * statistics.fmean(alone) if alone else None,
    )


def typical(each: list[float], span: int) -> float:
    """The median over runs of `span` steps, each of which has all of a coupling in it."""
    return statistics.median(statistics.fmean(each[at : at + span]) for at in range(0, len(each), span))


def spread(numbers: list[float]) -> float:
    """Half the range of the middle half."""
    low, _, high = statistics.quantiles(numbers, n=4) if len(numbers) > 1 else numbers * 3
    return (high - low) / 2


class _Run:
    """A trainer, and the step it is at."""

    def __init__(self, case: Case, name: str, variant: Variant) -> None:
        coupling = ExactOT(SquaredEmbedding()) if variant.ot_batch else Independent()
        flow = Flow(source(name, case.tokens), coupling=coupling)
        workers = min(4, variant.ot_batch or 0)
        settings = Settings(
            batch=case.batch,
            ot_batch=case.batch * (variant.ot_batch or 1),
            ot_ema=0.99999 if variant.ot_batch else 0.0,
            ahead=max(2, workers),
            workers=workers,
            steps=10**6,
            warmup=1,
            compile=variant.compile,
            device=str(case.device),
            weight_ema=0.9999,
            seed=case.seed,
        )
        torch.manual_seed(case.seed)
        model: nn.Module = Transformer(flow.vocab, case.size).to(case.device)
        if not (variant.kernels or variant.rows or variant.compile):
            model = _Whole(model)
        text = RandomText(case)
        self._task = FlowTask(model, flow, text, settings, Share())
        alone = replace(settings, ot_batch=case.batch, workers=0)
        self._plain = FlowTask(model, replace(flow, coupling=Independent()), text, alone, Share())
        self.trainer = Trainer(model, self._task, settings, case.device, Share())
        self._wait, self._at = not variant.ahead, 0
        # what was coupled before the clock starts is used up by then, and as much again: nothing is had for free
        self._lead = WARM if not variant.ot_batch else max(WARM, (settings.ahead + 2) * variant.ot_batch)
        self._task.wait_until_ready()

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next steps, from the end of the one before it to its own, where it is calculated.

        Some are taken before, which compile or let a host run ahead: what is measured is a run under way.
        """
        for _ in range(self._lead):
            self._step()
        ends = [_Mark(self.trainer.device)]
        for _ in range(count):
            self._step()
            ends.append(_Mark(self.trainer.device))
        self.trainer.settle()
        return [before.until(after) for before, after in itertools.pairwise(ends)]

    def uncoupled(self, count: int) -> list[float]:
        """The same of the same trainer, its weights and memory, after as many steps, on pairs as they come."""
        own = self.trainer.task, self.trainer.ot_average, self._at
        self.trainer.task, self.trainer.ot_average = self._plain, None
        each = self.steps(count)
        self.trainer.task, self.trainer.ot_average, self._at = own
        return each

    def _step(self) -> None:
        self.trainer.update(self._at)
        self._at += 1
        if self._wait:
            self.trainer.settle()

    def close(self) -> None:
        self._task.close()
        self._plain.close()


class _Mark:
    """The moment at which a device has done what it was given by now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))
        self._time = time.perf_counter()

    def until(self, later: "_Mark") -> float:
        """Seconds."""
        if self._event is None or later._event is None:
            return later._time - self._time
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1e3


def without(variant: Variant) -> ExitStack:
    """The parts of the library that a variant leaves out, put aside for a while."""
    stack = ExitStack()
    parts: dict[str, tuple[bool, Any]] = {
        "hopflow.scores.kernels": (variant.kernels, None),
        "hopflow.scores._open_rows": (variant.rows, None),
        "hopflow.models.attention.fits": (variant.attention, False),
        "hopflow.models.stream.fits": (variant.between, False),
        "hopflow.models.two_layers.fits": (variant.between, False),
    }
    for name, (stays, instead) in parts.items():
        if not stays:
            stack.enter_context(patch(name, lambda *_, instead=instead: instead))
    return stack


def _timed(what: Callable[[], Any], device: torch.device) -> float:
    finish(device)
    started = time.perf_counter()
    what()
    finish(device)
    return time.perf_counter() - started
