"""The trainer: one update after another, and everything that the next one depends on."""

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import atomic
from ..later import Later
from ..precision import autocast, choose_precision
from . import optimizer_state
from .checkpoint import Checkpoint, restore
from .ema import Ema, WeightEma
from .problems import one_thread
from .settings import Settings
from .shares import Share
from .streams import stream_seed
from .tasks import FlowTask, Task, embedding_table


class Outcome:
    """The results of a step, on their way from the device: nats, the gradient's norm, whether to stop, to save."""

    def __init__(self, step: int, tokens: int, numbers: Tensor) -> None:
        self.step, self._tokens, self._numbers = step, tokens, Later(numbers)

    @property
    def loss(self) -> float:
        """Nats per token."""
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
        return self._numbers.read().tolist()


class NotFinite(ValueError):
    """A loss or a gradient that is not a number; the weights are those of before."""

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class Trainer:
    """Weights, their averages, the optimizer and the task; `update(step)` moves all of them by one step.

    What a step does depends on this state and on (seed, step): dropout is seeded anew at every step, so that there is
    no state of a random generator to lose.
    """

    def __init__(self, model: nn.Module, task: Task, settings: Settings, device: torch.device, share: Share) -> None:
        self.model, self.task, self.settings, self.device, self.share = model, task, settings, device, share
        self.stop = False
        """Some process was asked to stop."""
        self.due = False
        """Some process found that a checkpoint is due; reset by whoever saves it."""
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=device.type == "cuda",
        )
        self._last: Outcome | None = None
        # on a GPU: 1 until a step fails, then 0
        self._sound = torch.ones((), dtype=torch.float32, device=device) if device.type == "cuda" else None
        self.average = WeightEma(model, settings.weight_ema) if settings.weight_ema else None
        self.ot_average = self._ot_average()
        if settings.compile:
            task.loss.compile()
        self._loss: nn.Module = task.loss
        if share.world > 1:
            self._loss = DistributedDataParallel(task.loss, device_ids=[device] if device.type == "cuda" else None)

    @property
    def loss(self) -> float:
        """Nats per token of the last step."""
        return self._settled().loss

    @property
    def grad_norm(self) -> float:
        """Of the last step, before clipping."""
        return self._settled().grad_norm

    def update(
        self, step: int, asked: Callable[[], bool] = lambda: False, due: Callable[[], bool] = lambda: False
    ) -> None:
        """One step; NotFinite, with the weights of before, if its loss or gradient is no number.

        `asked`: was this process asked to stop by now? `due`: is a checkpoint due by its clock? On a GPU the host runs
        ahead: what a step came to is read after the next one has been handed over, unless somebody asks. A step that
        failed leaves all weights as they are, and so does every later one.
        """
        torch.manual_seed(stream_seed(self.settings.seed, "dropout", step, self.share.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate_at(step)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        with one_thread():  # sixteen that wait for each other, beside a worker, took 140 ms for what one does in 15
            batch, tokens = self.task.batch(step), self.task.tokens(step)
        nats = torch.zeros((), device=self.device)
        pieces = list(batch.parts(self.settings.accumulate))
        for number, piece in enumerate(pieces, 1):
            with self._together(number == len(pieces)), self.autocast():
                loss = self._loss(*piece.read(self._here)).sum()
            # processes average their gradients; each holds an equal share of the rows
            (loss * (self.share.world / tokens)).backward()
            nats += loss.detach()
        norm = self._clip()
        numbers = self._agreed(nats, norm, asked(), due())
        before, self._last = self._last, Outcome(step, tokens, numbers)
        if self._sound is None:
            self._settled()
        else:
            self._sound *= torch.isfinite(numbers).all()
            # read by AdamW's fused kernel, which then leaves the weights as they are
            self.optimizer.found_inf = 1 - self._sound  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.average:
            self.average.update(self.model, step, self._sound)
        table = embedding_table(self.model)
        if self.ot_average and table is not None:
            self.ot_average.update(table, step, self._sound)
        if before is not None:
            self._check(before)

    def settle(self) -> None:
        """Wait for the last step; NotFinite if it failed."""
        if self._last is not None:
            self._settled()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """All that the next step depends on, as groups of named tensors; `model` is what is to be sampled."""
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
        """Go on where `state` was taken."""
        groups = checkpoint.groups
        needed = {"model", "optimizer", "pairs"}
        needed |= {"train"} if self.average else set()
        needed |= {"ot_ema"} if self.ot_average else set()
        if missing := needed - groups.keys():
            raise ValueError(f"the checkpoint of step {checkpoint.step} lacks {', '.join(sorted(missing))}")
        restore(self.model.state_dict(), groups["train" if self.average else "model"], "the network")
        if self.average:
            weights = {name: tensor for name, tensor in groups["model"].items() if name in self.average.weights}
            restore(self.average.weights, weights, "the average of the weights")
        optimizer_state.load(self.optimizer, dict(self.model.named_parameters()), groups["optimizer"], checkpoint.step)
        if self.ot_average:
            self.ot_average.load_state_dict(dict(groups["ot_ema"]))
        self.task.load_state_dict(dict(groups["pairs"]))

    def worn(self) -> AbstractContextManager[None]:
        """The network as it is to be sampled: with averaged weights, where there is an average."""
        return self.average.worn(self.model) if self.average else nullcontext()

    @property
    def precision(self) -> str:
        """What the network calculates in: bf16 or float32."""
        return choose_precision(self.settings.precision, self.device)

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.precision, self.device)

    def dump(self, outcome: Outcome, folder: Path) -> Path:
        """Which sequences a step was given, for whoever wants to know why it failed."""
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
        """Clip the gradient; its norm. A head for x0 is clipped by itself, so that it changes no other weight."""
        x0_head = getattr(self.model, "x0_head", None)
        if x0_head is None:
            return nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        apart = set(x0_head.parameters())
        others = [parameter for parameter in self.model.parameters() if parameter not in apart]
        norm = nn.utils.clip_grad_norm_(others, self.settings.clip)
        return norm + 0 * nn.utils.clip_grad_norm_(apart, self.settings.clip)  # NaN where that one is not finite

    def _ot_average(self) -> Ema | None:
        if not self.settings.ot_ema or not isinstance(self.task, FlowTask):
            return None  # without a flow there is no coupling that would read it
        table = embedding_table(self.model)
        if table is None:
            raise ValueError(
                f"ot_ema averages the embedding table of a flow's network, and {type(self.model).__name__} offers "
                f"none: give it a property `table` (V, D), or leave ot_ema out"
            )
        self.task.average = Ema(table, self.settings.ot_ema)
        return self.task.average

    def _together(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self._loss, DistributedDataParallel) and not last:
            return self._loss.no_sync()
        return nullcontext()

    def _agreed(self, nats: Tensor, norm: Tensor, asked: bool, due: bool) -> Tensor:
        """The nats of all processes, the gradient's norm, and how many processes want to stop and to save."""
        sums = torch.stack([nats, torch.full_like(nats, float(asked)), torch.full_like(nats, float(due))])
        if self.share.world > 1:
            dist.all_reduce(sums)
        return torch.stack([sums[0], norm.to(sums), sums[1], sums[2]])

    def _settled(self) -> "Outcome":
        assert self._last is not None, "no step was taken"
        self._check(self._last)
        return self._last

    def _check(self, outcome: "Outcome") -> None:
        self.stop |= outcome.stop
        self.due |= outcome.due
        if not (math.isfinite(outcome.loss) and math.isfinite(outcome.grad_norm)):
            self._last = None
            raise NotFinite(
                f"the loss is {outcome.loss:g} and the gradient's norm {outcome.grad_norm:g} at step {outcome.step}: "
                f"stopped before the update, the weights are intact. Lower lr, or raise warmup, "
                f"in a new folder (--fresh, or fresh=True)",
                outcome,
            )

    def _here(self, tensor: Tensor) -> Tensor:
        if self.device.type == "mps" and tensor.dtype == torch.float64:
            tensor = tensor.float()
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # only from there the host need not wait for the copy
        return tensor.to(self.device, non_blocking=True)
