"""The training loop: the steps of a run, and logging, evaluations and checkpoints between them."""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..flow import Flow
from ..network.network import evaluation_mode, label_count
from ..runs import checkpoint as checkpoints
from ..runs.checkpoint import Checkpoint
from ..runs.devices import memory_bytes
from ..runs.metrics import Metrics, MetricsRow, best, read
from ..runs.pretrained import describe, sealed
from ..runs.run_folder import CHECKPOINTS, RunFolder
from ..system import atomic
from .callbacks import ignoring_lost_streams
from .distributed import wait_for_all
from .signals import Interrupted, StopSignals
from .text import Text
from .trainer import NotFinite, Trainer, learning_rate

log = logging.getLogger("hopflow")

Logger = Callable[[MetricsRow], None]


class TrainingLoop:
    """The steps of one call of `train`, with logging, evaluations and checkpoints between them."""

    def __init__(
        self,
        trainer: Trainer,
        path: Path,
        corpus: Text,
        flow: Flow | None,
        recipe_hash: str,
        logger: Logger | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.trainer, self.path, self.corpus, self.flow = trainer, path, corpus, flow
        self.logger, self.progress = (
            logger and ignoring_lost_streams(logger),
            progress and ignoring_lost_streams(progress),
        )
        self.settings, self.task, self.first = trainer.settings, trainer.task, trainer.share.rank == 0
        self.recipe_hash = recipe_hash
        self.folder: RunFolder | None = None
        self.metrics: Metrics | None = None
        self.last: dict[str, Any] = {}
        self.seconds = 0.0
        self._clock, self._tokens = time.perf_counter(), 0
        self._saved = time.monotonic()

    def run(self, start: int) -> None:
        """Take the steps from `start` on; raises Interrupted after a stop signal."""
        with ExitStack() as stack:
            stop = stack.enter_context(StopSignals())
            self.metrics = metrics = stack.enter_context(Metrics(self.path, start)) if self.first else None
            self._report_progress(start)
            self._clock, self._saved = time.perf_counter(), time.monotonic()
            for step in range(start, self.settings.steps):
                self._update(step, stop)
                self._report_progress(step + 1)
                with self._saving_failures():
                    row = self._row(step)
                if row and metrics:
                    metrics.add(row)
                    self.last |= row
                    if self.logger:
                        self.logger(row)
                # an evaluation may take long; several processes must agree, and do so at the next step
                self.trainer.stop |= self.trainer.share.world == 1 and stop.received is not None
                self._save_if_due(step + 1)

    def _report_progress(self, done: int) -> None:
        if self.progress:
            self.progress(done, self.settings.steps)

    def resume(self) -> int:
        """Load the newest valid checkpoint, or write the first one; returns the step to continue with."""
        home = self.path / CHECKPOINTS
        found = checkpoints.latest(home)
        if found is None:
            if rows := read(self.path / "metrics.jsonl"):
                raise ValueError(
                    f"{self.path} has metrics up to step {rows[-1]['step']} but no checkpoint to resume from. "
                    "To start again in a new folder: --fresh (in Python: hf.train(…, fresh=True))"
                )
            self.save(0)
            return 0
        if found.step > self.settings.steps:
            raise ValueError(
                f"steps must be at least {found.step}, the steps that {self.path} has taken, got {self.settings.steps}."
            )
        self.trainer.load(found)
        self.seconds = float(found.facts.get("seconds", 0.0))
        for row in read(self.path / "metrics.jsonl"):
            self.last |= row
        return found.step

    def save(self, step: int) -> None:
        """Write a checkpoint of all processes, by the first one."""
        groups = self.trainer.state()
        _check_finite(groups, step)
        if self.first:
            self._write(step, groups)
        # a launcher may end all processes once the first one ends: none may end before the checkpoint is written
        wait_for_all()
        self._saved, self.trainer.due = time.monotonic(), False

    def _write(self, step: int, groups: dict[str, dict[str, Tensor]]) -> None:
        seconds = self.seconds + time.perf_counter() - self._clock  # including the time since the last row
        facts = {"seconds": seconds, "recipe_hash": self.recipe_hash, "torch": str(torch.__version__)}
        if self.trainer.device.type == "cpu":
            facts["threads"] = torch.get_num_threads()
        tokenizer = getattr(self.corpus, "tokenizer", None)
        model, recipe = self.trainer.model, asdict(self.settings)
        names = getattr(self.corpus, "label_names", ()) if label_count(model) else ()
        config = describe(model, self.flow, tokenizer=tokenizer, recipe=recipe, label_names=names)
        checkpoint = Checkpoint(step, groups, facts, partial(sealed, config, "model.safetensors"))
        try:
            self._follow_folder()
            checkpoints.save(self.path / CHECKPOINTS, checkpoint)
        except FileNotFoundError:  # the folder was renamed or deleted
            self._follow_folder()
            checkpoints.save(self.path / CHECKPOINTS, checkpoint)
        home = self.path / CHECKPOINTS
        checkpoints.set_aside(home, step)
        lowest = best(read(self.path / "metrics.jsonl"), checkpoints.steps(home))
        checkpoints.prune(home, self.settings.keep, None if lowest is None else lowest["step"] + 1)

    def _follow_folder(self) -> None:
        """Find a renamed folder, create a deleted one again, and flush the metrics to disk."""
        if self.folder is not None:
            self.folder.follow()
            self.path = self.folder.path
        if self.metrics is not None:
            self.metrics.sync(self.path)

    def _update(self, step: int, stop: StopSignals) -> None:
        with self._saving_failures():
            self.trainer.update(step, stop=lambda: stop.received is not None, due=self._save_time_is_up)
        self._tokens += self.task.tokens(step)

    def _save_time_is_up(self) -> bool:
        minutes = self.settings.save_minutes
        return minutes > 0 and time.monotonic() - self._saved >= 60 * minutes

    @contextmanager
    def _saving_failures(self) -> Iterator[None]:
        """If a step turns out not to be finite, save its batch and the weights before it, then raise."""
        try:
            yield
        except NotFinite as error:
            if error.outcome is None:
                raise
            self._follow_folder()
            dumped = self.trainer.dump(error.outcome, self.path)
            self.save(error.outcome.step)
            raise NotFinite(f"{error}. The batch was written to {dumped}") from None

    def _save_if_due(self, done: int) -> None:
        final = done == self.settings.steps
        if final or done % self.settings.save_every == 0 or self.trainer.stop or self.trainer.due:
            with self._saving_failures():
                self.trainer.settle()
            self.save(done)
        if self.trainer.stop and not final:
            raise Interrupted(
                f"stopped at step {done} of {self.settings.steps} and saved in {self.path}; the same command resumes it"
            )

    def _row(self, step: int) -> dict[str, Any] | None:
        """The metrics after a step, or None; a row with an evaluation also has the loss."""
        done, every = step + 1, self.settings.eval_every
        final = done == self.settings.steps
        evaluates = final or (every > 0 and done % every == 0)
        # rows after the first step, every `log_every` steps, and at evaluations
        if not evaluates and step and done % self.settings.log_every:
            return None
        row = {"step": step, **self._numbers(step)}
        return row | self._evaluate(step) if evaluates else row

    def _numbers(self, step: int) -> dict[str, Any]:
        """The numbers of the step, and the speed since the last row."""
        self.trainer.settle()
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.seconds += passed
        numbers = self.task.numbers(step)
        waited = numbers.pop("ot_waited", None)
        row = {
            "loss": self.trainer.loss,
            "grad_norm": self.trainer.grad_norm,
            "lr": learning_rate(self.settings, step),
            "tokens_per_s": self._tokens / max(passed, 1e-9),
            "seconds": self.seconds,
            "memory_bytes": memory_bytes(self.trainer.device),
            **numbers,
        }
        if waited is not None:
            row["ot_wait_share"] = min(1.0, waited / max(passed, 1e-9))
        self._tokens = 0
        return row

    def _evaluate(self, step: int) -> dict[str, Any]:
        """Evaluate on held-out text; its time does not count for the speed of the steps."""
        if not self.first:
            return {}
        started = time.perf_counter()
        with self.trainer.averaged_weights(), evaluation_mode(self.trainer.model), self.trainer.autocast():
            found = self.task.evaluate(step, self.trainer.device)
        if found.texts:
            self._follow_folder()
            lines = [json.dumps({"step": step, "text": text}, ensure_ascii=False) for text in found.texts]
            atomic.write(self.path / "samples.jsonl", "".join(f"{line}\n" for line in lines).encode())
        self._clock += time.perf_counter() - started
        bad = [name for name, value in found.numbers.items() if value is not None and not math.isfinite(value)]
        if bad:  # the weights are finite and the run continues; such a number is not reported
            log.warning("step %d: not finite and therefore not logged: %s", step + 1, ", ".join(bad))
        finite = {name: value for name, value in found.numbers.items() if name not in bad}
        return {**finite, "precision": self.trainer.precision, "recipe_hash": self.recipe_hash} if finite else {}


def _check_finite(groups: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
    """Raise NotFinite if a weight is not finite: it can overflow under a finite gradient, and must not be saved."""
    for group in groups.keys() - {"pairs"}:
        for name, tensor in groups[group].items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise NotFinite(
                    f"{name} ({group}) is not finite after step {step}; it was not saved, and the previous checkpoint "
                    "is unchanged. Lower lr or weight_decay, in a new folder (--fresh; in Python: fresh=True)"
                )
