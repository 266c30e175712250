"""The trainer: takes optimizer steps, and holds everything that the next step depends on."""

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..flow import Flow
from ..kernels.async_copy import AsyncCopy, to_device
from ..models.causal import Causal
from ..network.network import embedding_table, is_autoregressive
from ..network.precision import autocast, choose_precision
from ..runs.checkpoint import Checkpoint, restore
from ..runs.ot_batch import Share, one_thread
from ..runs.rng import stream_seed
from ..system import atomic
from . import optimizer_state
from .averages import Ema, WeightEma
from .causal_task import CausalTask
from .settings import Settings
from .tasks import FlowTask, Task
from .text import Text


class Outcome:
    """The numbers of a step, copied from the device in the background: loss, gradient norm, whether to stop or save."""

    def __init__(self, step: int, tokens: int, numbers: Tensor) -> None:
        self.step, self._tokens = step, tokens
        self._numbers = AsyncCopy(numbers) if numbers.is_cuda else numbers

    @property
    def loss(self) -> float:
        """Loss in nats per token."""
        return self._read()[0] / self._tokens

    @property
    def grad_norm(self) -> float:
        return self._read()[1]

    @property
    def stop(self) -> bool:
        return self._read()[2] > 0

    @property
    def due(self) -> bool:
        return self._read()[3] > 0

    def _read(self) -> list[float]:
        numbers: list[float] = self._numbers.tolist()
        return numbers


class NotFinite(ValueError):
    """The loss or the gradient is not finite; the weights are those before the step."""

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class Trainer:
    """The weights, their averages, the optimizer and the task; `update(step)` takes one training step.

    A step depends on this state and on (seed, step) only: dropout is seeded at every step, so that no state of a random
    generator has to be saved.
    """

    def __init__(self, model: nn.Module, task: Task, settings: Settings, device: torch.device, share: Share) -> None:
        self.model, self.task, self.settings, self.device, self.share = model, task, settings, device, share
        self.stop = False
        """Some process has received a stop signal."""
        self.due = False
        """Some process found that a checkpoint is due; reset when it is saved."""
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=device.type == "cuda",
        )
        self._last: Outcome | None = None
        # on a GPU: 1 until a step is not finite, then 0
        self._finite = torch.ones((), dtype=torch.float32, device=device) if device.type == "cuda" else None
        self.average = WeightEma(model, settings.weight_ema) if settings.weight_ema else None
        self.ot_average = self._ot_average()
        if settings.compile:
            task.loss.compile()
        self._loss: nn.Module = task.loss
        if share.world > 1:
            self._loss = DistributedDataParallel(task.loss, device_ids=[device] if device.type == "cuda" else None)

    @property
    def loss(self) -> float:
        """Loss of the last step in nats per token."""
        return self._settled().loss

    @property
    def grad_norm(self) -> float:
        """Gradient norm of the last step before clipping."""
        return self._settled().grad_norm

    def update(
        self, step: int, stop: Callable[[], bool] = lambda: False, due: Callable[[], bool] = lambda: False
    ) -> None:
        """Take one step; raises NotFinite, with unchanged weights, if its loss or gradient is not finite.

        `stop` returns whether this process has received a stop signal, `due` whether a checkpoint is due by its clock.
        On a GPU the host runs ahead: the numbers of a step are read after the next one is launched, unless `settle` is
        called. A step that is not finite changes no weights, and neither does any later one.
        """
        torch.manual_seed(stream_seed(self.settings.seed, "dropout", step, self.share.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, step)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        with one_thread():  # 16 threads took 140 ms where one takes 15, because worker processes use the cores too
            batch, tokens = self.task.batch(step, self.ot_average), self.task.tokens(step)
        nats = torch.zeros((), device=self.device)
        parts = batch.parts(self.settings.accumulate)
        for number, part in enumerate(parts, 1):
            with self._gradient_sync(last=number == len(parts)), self.autocast():
                loss = self._loss(part.map(self._to_device)).sum()
            # DistributedDataParallel averages the gradients of the processes, whose shares are equal
            (loss * (self.share.world / tokens)).backward()
            nats += loss.detach()
        norm = self._clip()
        numbers = self._reduced(nats, norm, stop(), due())
        before, self._last = self._last, Outcome(step, tokens, numbers)
        if self._finite is None:
            self._settled()
        else:
            self._finite *= torch.isfinite(numbers).all()
            # AdamW's fused kernel reads this and skips its update
            self.optimizer.found_inf = 1 - self._finite  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.average:
            self.average.update(self.model, step, self._finite)
        table = embedding_table(self.model)
        if self.ot_average and table is not None:
            self.ot_average.update(table, step, self._finite)
        if before is not None:
            self._check(before)

    def settle(self) -> None:
        """Wait for the last step; raises NotFinite if it is not finite."""
        if self._last is not None:
            self._settled()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything that the next step depends on, as groups of tensors; `model` has the weights to sample with."""
        own = dict(self.model.state_dict())
        groups = {"model": own}
        if self.average:
            groups = {"model": {**own, **self.average.named(self.model)}, "train": own}
        groups["optimizer"] = {
            f"{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        if self.ot_average:
            groups["ot_ema"] = self.ot_average.state_dict()
        groups["pairs"] = self.task.state_dict()
        return groups

    def load(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of `state`."""
        groups = checkpoint.groups
        needed = {"model", "optimizer", "pairs"}
        needed |= {"train"} if self.average else set()
        needed |= {"ot_ema"} if self.ot_average else set()
        if missing := needed - groups.keys():
            raise ValueError(f"the checkpoint of step {checkpoint.step} lacks {', '.join(sorted(missing))}.")
        restore(self.model.state_dict(), groups["train" if self.average else "model"], "the network")
        if self.average:
            weights = {name: tensor for name, tensor in groups["model"].items() if name in self.average.weights}
            restore(self.average.weights, weights, "the average of the weights")
        optimizer_state.load(self.optimizer, dict(self.model.named_parameters()), groups["optimizer"], checkpoint.step)
        if self.ot_average:
            self.ot_average.load_state_dict(dict(groups["ot_ema"]))
        self.task.load_state_dict(dict(groups["pairs"]))

    def averaged_weights(self) -> AbstractContextManager[None]:
        """A context in which the network has its averaged weights, if there is an average."""
        return self.average.swapped_in(self.model) if self.average else nullcontext()

    @property
    def precision(self) -> str:
        """The precision of the network: bf16 or float32."""
        return choose_precision(self.settings.precision, self.device)

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.precision, self.device)

    def dump(self, outcome: Outcome, folder: Path) -> Path:
        """Write the sequences and numbers of a failed step to a file; returns its path."""
        step, size = outcome.step, self.settings.batch
        facts = {
            "step": step,
            "seed": self.settings.seed,
            "samples": [step * size, (step + 1) * size],
            "rank": self.share.rank,
            "loss": repr(outcome.loss),
            "grad_norm": repr(outcome.grad_norm),
            "x1": self.task.data(step).tolist(),
        }
        file = folder / (f"not-finite-{step}-{self.share.rank}.json" if self.share.rank else f"not-finite-{step}.json")
        atomic.write(file, json.dumps(facts).encode())
        return file

    def _clip(self) -> Tensor:
        """Clip the gradient and return its norm. An x0 head is clipped separately: it must not change other weights."""
        x0_head = getattr(self.model, "x0_head", None)
        if x0_head is None:
            return nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        separate = list(x0_head.parameters())  # in a fixed order, in which their norms are summed
        known = set(separate)
        others = [parameter for parameter in self.model.parameters() if parameter not in known]
        norm = nn.utils.clip_grad_norm_(others, self.settings.clip)
        return norm + 0 * nn.utils.clip_grad_norm_(separate, self.settings.clip)  # NaN if that is not finite

    def _ot_average(self) -> Ema | None:
        """The average of the embedding table that the OT cost reads; None if ot_ema is 0 or there is no flow."""
        if not self.settings.ot_ema or self.task.flow is None:
            return None
        table = embedding_table(self.model)
        if table is None:
            raise ValueError(
                f"ot_ema averages the network's embedding table, and {type(self.model).__name__} has none; add a "
                f"property `table` (V, D) to it, or set ot_ema=0."
            )
        return Ema(table, self.settings.ot_ema)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """A context in which processes exchange gradients only at the last part of a batch."""
        if isinstance(self._loss, DistributedDataParallel) and not last:
            return self._loss.no_sync()
        return nullcontext()

    def _reduced(self, nats: Tensor, norm: Tensor, stop: bool, due: bool) -> Tensor:
        """The nats of all processes, the gradient norm, and the number of processes that want to stop and to save."""
        sums = torch.stack([nats, torch.full_like(nats, float(stop)), torch.full_like(nats, float(due))])
        if self.share.world > 1:
            dist.all_reduce(sums)
        return torch.stack([sums[0], norm.to(sums), sums[1], sums[2]])

    def _settled(self) -> "Outcome":
        assert self._last is not None, "no step was taken yet"
        self._check(self._last)
        return self._last

    def _check(self, outcome: "Outcome") -> None:
        self.stop |= outcome.stop
        self.due |= outcome.due
        if not (math.isfinite(outcome.loss) and math.isfinite(outcome.grad_norm)):
            self._last = None
            raise NotFinite(
                f"the loss is {outcome.loss:g} and the gradient norm {outcome.grad_norm:g} at step "
                f"{outcome.step + 1}; the weights were not updated. Lower lr or raise warmup, in a new folder "
                "(--fresh; in Python: fresh=True)",
                outcome,
            )

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self.device.type == "mps" and tensor.dtype == torch.float64:
            tensor = tensor.float()
        return to_device(tensor, self.device) if self.device.type == "cuda" else tensor.to(self.device)


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 0: a linear warmup, then constant or a cosine down to a tenth."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.rate == "constant":
        return settings.lr
    part = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.lr * (0.55 + 0.45 * math.cos(math.pi * min(part, 1.0)))


def task_for(model: nn.Module, flow: Flow | None, corpus: Text, settings: Settings, share: Share) -> Task:
    """The task that learns a flow, or, without a flow, the next token."""
    if flow is not None:
        return FlowTask(model, flow, corpus, settings, share)
    if not is_autoregressive(model):
        raise ValueError(
            f"{type(model).__name__} needs a flow: train(model, flow, corpus). Only a Causal network trains without."
        )
    return CausalTask(cast(Causal, model), corpus, settings, share)
