"""TimedTraining: a trainer whose steps are timed one by one."""

import itertools
import time
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..costs import SquaredEmbedding
from ..couplings import ExactOT, Independent
from ..flow import Flow
from ..kernels import Kernels
from ..models import Transformer
from ..runs.ot_batch import Share
from ..training.settings import Settings
from ..training.tasks import FlowLoss, FlowTask
from ..training.trainer import Trainer
from .case import SpeedCase, source_by_name
from .random_text import RandomText

WARMUP_STEPS = 8
"""Untimed steps: an idle GPU is some per cent faster in its first five steps."""


@dataclass(frozen=True)
class TrainingCase(SpeedCase):
    """Training steps on random text."""

    batch: int = 16
    length: int = 64
    tokens: int = 2_000
    sources: tuple[str, ...] = ("uniform", "multimask")
    """With a uniform source every position has a loss, with masks only those that are still masked."""
    steps: int = 5

    GPU_DEFAULTS = {"batch": 512, "length": 128, "tokens": 50_257, "size": "small", "steps": 40}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ValueError(f"steps must be an integer ≥ 1, got {self.steps}")


@dataclass(frozen=True)
class Variant:
    """A way to train, with some optimizations left out."""

    name: str
    compile: bool = True
    kernels: Kernels = field(default_factory=Kernels)
    noisy_positions: bool = True
    """Run the head only where a token may change."""
    separate_head: bool = True
    """Use the network's features and head; otherwise its full logits."""
    run_ahead: bool = True
    """The host does not wait for the result of a step."""
    ot_batch: int | None = None
    """Exact OT over this many batches in embedding space, with an average of the embedding table; None: no coupling."""


class TimedTraining:
    """A new transformer, its trainer, and the time of each step."""

    def __init__(self, case: TrainingCase, source_name: str, variant: Variant) -> None:
        coupling = ExactOT(SquaredEmbedding()) if variant.ot_batch else Independent()
        flow = Flow(source_by_name(source_name, case.tokens), coupling=coupling)
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
        if not variant.separate_head:
            model = _WithoutHead(model)
        text = RandomText(case.tokens, case.length, case.seed)
        self._task = FlowTask(model, flow, text, settings, Share())
        uncoupled = replace(settings, ot_batch=case.batch, workers=0)
        self._uncoupled = FlowTask(model, replace(flow, coupling=Independent()), text, uncoupled, Share())
        for task in (self._task, self._uncoupled):
            assert isinstance(task.loss, FlowLoss)
            task.loss.caller.all_positions = not variant.noisy_positions
        self.trainer = Trainer(model, self._task, settings, case.device, Share())
        self._wait, self._step_number = not variant.run_ahead, 0
        # as many steps as have couplings computed ahead, and as many again, so that the timed steps use no stock
        ahead = (settings.ahead + 2) * (variant.ot_batch or 0)
        self._warmup = max(WARMUP_STEPS, ahead)
        self._task.wait_until_ready()

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next `count` steps, after warm-up steps in which the host runs ahead again."""
        for _ in range(self._warmup):
            self._step()
        ends = [_TimePoint(self.trainer.device)]
        for _ in range(count):
            self._step()
            ends.append(_TimePoint(self.trainer.device))
        self.trainer.settle()
        return [before.seconds_until(after) for before, after in itertools.pairwise(ends)]

    def steps_without_coupling(self, count: int) -> list[float]:
        """The same with the same trainer, weights and memory, on independent pairs."""
        saved = self.trainer.task, self.trainer.ot_average, self._step_number
        self.trainer.task, self.trainer.ot_average = self._uncoupled, None
        each = self.steps(count)
        self.trainer.task, self.trainer.ot_average, self._step_number = saved
        return each

    def _step(self) -> None:
        self.trainer.update(self._step_number)
        self._step_number += 1
        if self._wait:
            self.trainer.settle()

    def close(self) -> None:
        self._task.close()
        self._uncoupled.close()


class _WithoutHead(nn.Module):
    """A network as a plain callable, without separate features and head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        logits: Tensor = self.inner(xt, t)
        return logits


class _TimePoint:
    """The moment at which a device has finished all work submitted so far."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))
        self._time = time.perf_counter()

    def seconds_until(self, later: "_TimePoint") -> float:
        if self._event is None or later._event is None:
            return later._time - self._time
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1e3
