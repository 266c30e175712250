"""Speed of a training step: with all optimizations, with each of them left out, and as plain code; in one run."""

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..kernels import Kernels, using
from ..models.sizes import Size
from .case import seconds_of
from .memory import PeakMemory
from .training_run import TimedTraining, TrainingCase, Variant

BLOCKS = 6
"""Alternating blocks of steps with and without couplings: the slowdown is smaller than the noise between runs."""
MATRIX = 8192
"""Rows of the square bf16 matrix product whose speed is used as the peak of the device."""

BEST = Variant("as it is")
PLAIN = Kernels(fused_head=False, short_attention=False, residual_norm=False, gelu_mlp=False)
VARIANTS = (
    BEST,
    replace(BEST, name="not compiled", compile=False),
    replace(BEST, name="head at every position", noisy_positions=False),
    replace(BEST, name="head by torch", kernels=Kernels(fused_head=False)),
    replace(BEST, name="attention by torch", kernels=Kernels(short_attention=False)),
    replace(BEST, name="norms and gelu by torch", kernels=Kernels(residual_norm=False, gelu_mlp=False)),
    replace(BEST, name="waits for every step", run_ahead=False),
    Variant("plain: eager, full logits", False, PLAIN, False, False, False),
    replace(BEST, name="exact OT of one batch", ot_batch=1),
    replace(BEST, name="exact OT of eight batches", ot_batch=8),
)
GPU_ONLY = ("head by torch", "attention by torch", "norms and gelu by torch", "waits for every step")
"""Variants that change nothing on a CPU."""


@dataclass(frozen=True)
class TrainingSpeed:
    """One variant on one source."""

    source: str
    variant: str
    ms: float
    """Mean milliseconds per step."""
    ms_spread: float
    """Half the interquartile range."""
    tokens_per_s: float
    tflop: float
    """Of the matrix products that a step needs: six per weight and row, and attention. The same for all variants."""
    tflop_per_s: float
    share_of_peak: float | None
    peak_bytes: int
    """On a GPU all tensors, weights included; on a CPU the growth of the process, compiler included."""
    loss: float | None
    """None if blocks with and without couplings alternate."""
    slowdown: float | None = None
    """Relative cost of the couplings, for the same trainer with and without them: the median over blocks of the ratio
    of median times. Means would show other load of the host more than the couplings."""
    slowdown_spread: float | None = None
    uncoupled_ms: float | None = None
    """Mean milliseconds per step without couplings, in the alternating blocks."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    case: TrainingCase, variants: tuple[Variant, ...] = VARIANTS, progress: Callable[[str], None] = lambda text: None
) -> list[TrainingSpeed]:
    """Every variant on every source, one after another in the same process."""
    peak, rows = matrix_peak(case.device), []
    for name in case.sources:
        for variant in variants:
            if case.device.type == "cpu" and variant.name in GPU_ONLY:
                continue
            progress(f"{name}: {variant.name}")
            rows.append(_measure(case, name, variant, peak))
    return rows


def matrix_peak(device: torch.device) -> float | None:
    """TFLOP/s of a large bf16 matrix product; None on a CPU."""
    if device.type != "cuda":
        return None
    a, b = torch.randn(2, MATRIX, MATRIX, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    seconds = statistics.median(seconds_of(lambda: a @ b, device) for _ in range(20))
    return 2 * MATRIX**3 / seconds / 1e12


def step_tflop(case: TrainingCase, source_name: str) -> float:
    """TFLOP of a step. With masks, half of the positions need the head."""
    size = Size.of(case.size)
    tokens = case.batch * case.length
    layers = size.layers * 12 * size.width**2
    head = size.width * case.tokens * (0.5 if source_name in ("mask", "multimask") else 1.0)
    attention = 12 * size.layers * case.length * size.width
    return (6 * (layers + head) + attention) * tokens / 1e12


def _measure(case: TrainingCase, name: str, variant: Variant, peak: float | None) -> TrainingSpeed:
    torch.compiler.reset()  # torch compiles at most eight versions of a function
    switched = using(**asdict(variant.kernels))
    with switched, PeakMemory(case.device) as memory, closing(TimedTraining(case, name, variant)) as run:
        run.steps(0)  # compiles, untimed
        each, uncoupled, slowdowns, loss = [], [], [], None
        if not variant.ot_batch:
            each, loss = run.steps(case.steps), run.trainer.loss
        else:
            order, span = [run.steps_without_coupling, run.steps], variant.ot_batch
            for _ in range(BLOCKS):
                blocks = {steps: steps(-(-case.steps // span) * span) for steps in order}
                each += blocks[run.steps]
                uncoupled += blocks[run.steps_without_coupling]
                ways = run.steps, run.steps_without_coupling
                coupled, alone = (median_of_spans(blocks[steps], span) for steps in ways)
                slowdowns.append(coupled / alone - 1)
                order.reverse()  # so that a drift slows both equally
    tflop, tokens, seconds = step_tflop(case, name), case.batch * case.length, statistics.fmean(each)
    return TrainingSpeed(
        source=name,
        variant=variant.name,
        ms=1e3 * seconds,
        ms_spread=1e3 * spread(each),
        tokens_per_s=tokens / seconds,
        tflop=tflop,
        tflop_per_s=tflop / seconds,
        share_of_peak=None if peak is None else tflop / seconds / peak,
        peak_bytes=memory.bytes,
        loss=loss,
        slowdown=statistics.median(slowdowns) if slowdowns else None,
        slowdown_spread=spread(slowdowns) if slowdowns else None,
        uncoupled_ms=1e3 * statistics.fmean(uncoupled) if uncoupled else None,
    )


def median_of_spans(each: list[float], span: int) -> float:
    """The median of the means over `span` consecutive steps, each of which includes one coupling."""
    return statistics.median(statistics.fmean(each[at : at + span]) for at in range(0, len(each), span))


def spread(numbers: list[float]) -> float:
    """Half the interquartile range."""
    low, _, high = statistics.quantiles(numbers, n=4) if len(numbers) > 1 else numbers * 3
    return (high - low) / 2
