"""Speed of the bounds: `nll_bound` with its defaults against float32 with 64 sequences per call, in one run."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..bounds.estimate import Estimate
from ..bounds.nll import kappa_bound, nll_bound
from ..flow import Flow
from ..models import Transformer
from .case import SpeedCase, new_transformer, source_by_name, synchronize

SOURCES = ("mask", "uniform")
VARIANTS: dict[str, dict[str, Any]] = {"float32": {"precision": "float32", "batch": 64}, "default": {}}


@dataclass(frozen=True)
class BoundsCase(SpeedCase):
    """Bounds of n random sequences."""

    n: int = 32
    length: int = 64
    tokens: int = 1_000
    draws: int = 8
    sources: tuple[str, ...] = SOURCES

    GPU_DEFAULTS = {"n": 1024, "length": 128, "tokens": 50_257, "size": "small"}  # noqa: RUF012


@dataclass(frozen=True)
class BoundsSpeed:
    """One bound in one variant; all variants use the same draws."""

    source: str
    quantity: str
    variant: str
    dtype: str
    sequences_per_s: float
    ratio: float
    """Speed relative to float32."""
    nats: float
    stderr: float
    errors: float
    """Distance from the float32 value, in standard errors."""
    n: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(case: BoundsCase, progress: Callable[[str], None] = lambda text: None) -> list[BoundsSpeed]:
    """Every bound of every source. The first 64 sequences are evaluated once before, untimed."""
    rows: list[BoundsSpeed] = []
    for name in case.sources:
        flow = Flow(source_by_name(name, case.tokens))
        model = new_transformer(case, flow.source, randomize_weights)
        generator = torch.Generator().manual_seed(case.seed)
        x1 = torch.randint(case.tokens, (case.n, case.length), generator=generator).to(case.device)
        for quantity, bound in _bounds(flow).items():
            found: dict[str, tuple[Estimate, float]] = {}
            for variant, options in VARIANTS.items():
                progress(f"{name}: {quantity}, {variant}")
                found[variant] = _timed(case, partial(bound, model, flow, draws=case.draws, **options), x1)
            reference, slowest = found["float32"]
            for variant, (estimate, seconds) in found.items():
                distance = abs(estimate.nats - reference.nats) / reference.stderr
                speed = case.n / seconds, slowest / seconds
                numbers = estimate.nats, estimate.stderr, distance
                rows.append(BoundsSpeed(name, quantity, variant, estimate.dtype, *speed, *numbers, case.n))
    return rows


def _bounds(flow: Flow) -> dict[str, Callable[..., Estimate]]:
    found: dict[str, Callable[..., Estimate]] = {"b0": nll_bound}
    if not flow.source.disjoint:  # with a disjoint source b1 equals b0
        found["b1"] = lambda *inputs, **options: nll_bound(*inputs, eta=1, **options)
    found["bn"] = lambda *inputs, **options: nll_bound(*inputs, steps=32, **options)
    if flow.source.full:
        found["bk"] = kappa_bound
    return found


def _timed(case: BoundsCase, bound: Callable[[Tensor], Estimate], x1: Tensor) -> tuple[Estimate, float]:
    bound(x1[:64])
    synchronize(case.device)
    started = time.perf_counter()
    estimate = bound(x1)
    return estimate, time.perf_counter() - started


def randomize_weights(model: Transformer) -> None:
    """Random weights everywhere: the branches of a new network are zero, and bf16 would have nothing to round."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embedding" not in name:
            torch.nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
