"""How long bounds take: as `nll_bound` is called by default, and in float32 with 64 sequences per call, in one run."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from ..bounds import kappa_bound, nll_bound
from ..estimate import Estimate
from ..flow import Flow
from ..models import Transformer
from .sample import finish, source

SOURCES = ("mask", "uniform")
VARIANTS: dict[str, dict[str, Any]] = {"float32": {"precision": "float32", "batch": 64}, "default": {}}


@dataclass(frozen=True)
class Case:
    """Which sequences, and of what network; a new one costs what a trained one does."""

    n: int = 32
    length: int = 64
    tokens: int = 1_000
    size: str = "tiny"
    draws: int = 8
    sources: tuple[str, ...] = SOURCES
    seed: int = 0
    device: torch.device = torch.device("cpu")

    @classmethod
    def on(cls, device: torch.device, **keys: Any) -> "Case":
        """What suits a device: a laptop's size on a CPU, the paper's on a GPU."""
        usual = {} if device.type == "cpu" else {"n": 1024, "length": 128, "tokens": 50_257, "size": "small"}
        return cls(**{**usual, **keys}, device=device)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": str(self.device)}


@dataclass(frozen=True)
class Row:
    """One bound in one variant, both on the same draws; `errors` is how many standard errors it is from float32."""

    source: str
    quantity: str
    variant: str
    dtype: str
    sequences_per_s: float
    ratio: float
    """As fast as float32."""
    nats: float
    stderr: float
    errors: float
    n: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(case: Case, progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Every bound of every source; the first 64 sequences are evaluated before, untimed."""
    rows: list[Row] = []
    for name in case.sources:
        flow = Flow(source(name, case.tokens))
        model = _network(case, flow)
        generator = torch.Generator().manual_seed(case.seed)
        x1 = torch.randint(case.tokens, (case.n, case.length), generator=generator).to(case.device)
        for quantity, bound in _bounds(flow).items():
            found: dict[str, tuple[Estimate, float]] = {}
            for variant, how in VARIANTS.items():
                progress(f"{name}: {quantity}, {variant}")
                found[variant] = _timed(case, partial(bound, model, flow, draws=case.draws, **how), x1)
            plain, slowest = found["float32"]
            for variant, (estimate, seconds) in found.items():
                off = abs(estimate.nats - plain.nats) / plain.stderr
                speed = case.n / seconds, slowest / seconds
                numbers = estimate.nats, estimate.stderr, off
                rows.append(Row(name, quantity, variant, estimate.dtype, *speed, *numbers, case.n))
    return rows


def _bounds(flow: Flow) -> dict[str, Callable[..., Estimate]]:
    found: dict[str, Callable[..., Estimate]] = {"b0": nll_bound}
    if not flow.source.disjoint:  # where b1 is b0
        found["b1"] = lambda *given, **how: nll_bound(*given, eta=1, **how)
    found["bn"] = lambda *given, **how: nll_bound(*given, steps=32, **how)
    if flow.source.full:
        found["bk"] = kappa_bound
    return found


def _timed(case: Case, bound: Callable[[torch.Tensor], Estimate], x1: torch.Tensor) -> tuple[Estimate, float]:
    bound(x1[:64])
    finish(case.device)
    started = time.perf_counter()
    estimate = bound(x1)
    return estimate, time.perf_counter() - started


def _network(case: Case, flow: Flow) -> Transformer:
    """With every weight random: in a new network blocks are shut, and bf16 would have nothing to round."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        model = Transformer(flow.vocab, case.size)
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embedding" not in name:
                torch.nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
    return model.to(case.device).eval()
