"""train: from a network, a flow and a text to a run folder.

The same call goes on where the folder's last checkpoint was taken, to the bit on one machine's CPU.
"""

import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import atomic
from ..flow import Flow
from ..network import clock_dtype, resting
from ..pretrained import check_vocab, describe, sealed
from ..storage import to_plain
from . import checkpoint as checkpoints
from .callbacks import outliving
from .checkpoint import Checkpoint
from .devices import choose_device, memory_bytes
from .folder import CHECKPOINTS, RunFolder, next_free, recipe_hash
from .metrics import Metrics, Row, best, read
from .settings import Settings, is_learned
from .shares import Share
from .signals import Interrupted, Stop
from .tasks import Text, task_for
from .threads import choose_threads, using
from .trainer import NotFinite, Trainer

log = logging.getLogger("hopflow")

_TRAINING = threading.Lock()
"""Held while a training runs in this process."""

Logger = Callable[[Row], None]


@dataclass(frozen=True)
class Run:
    """A folder with a trained network, and what training said last."""

    path: Path
    step: int
    recipe_hash: str
    last: Mapping[str, Any]
    """The newest value of every metric."""


def train(
    model: nn.Module,
    flow: Flow | None,
    corpus: Text,
    *,
    out: Path | str,
    settings: Settings | None = None,
    fresh: bool = False,
    logger: Logger | None = None,
    progress: Callable[[int, int], None] | None = None,
    **keys: Any,
) -> Run:
    """Train `model` on `flow` and `corpus` into the folder `out`, by `settings` or by keys of `Settings`.

    A `Causal` model needs no flow (None). If `out` holds this very run it goes on; with `fresh` a new folder beside it
    is taken. `logger` is called with every row of metrics, by the first process only; `progress` with the steps done
    and their number, by every process, before the first step of this call and after each.
    Neither ends the run when its terminal, pipe or server is gone (OSError, or a closed file).
    Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU finish the step, save and raise `Interrupted`; the last three only
    where the program neither ignores nor handles them.
    One training at a time runs in a process: a second one, in another thread, is refused with a ValueError.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"train(model, flow, corpus) takes a network first; got {type(model).__name__}")
    if isinstance(corpus, str | Path):
        raise ValueError(f"a corpus is what hf.data.load({str(corpus)!r}) gives, not its name")
    if settings is not None and keys:
        raise ValueError(f"pass settings, or keys such as {next(iter(keys))}=, not both")
    settings = settings or Settings.of(keys)
    share, device = Share.here(), choose_device(settings.device)
    path = next_free(Path(out)) if fresh else Path(out)
    model.to(device)
    wait_for_all()  # every process has found the same free folder before the first one makes it
    with ExitStack() as stack:
        stack.enter_context(_one_training())
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(_repeatable(settings.deterministic))
        # before the workers start, whose imports would keep a core busy
        threads = choose_threads(model, flow, corpus, settings, device, share, path / CHECKPOINTS)
        stack.enter_context(using(threads))
        if threads is not None and share.rank == 0:
            log.info("%s", threads)
        task = stack.enter_context(closing(task_for(model, flow, corpus, settings, share)))
        trainer = Trainer(model, task, settings, device, share)
        if flow is not None:
            _ask_once(trainer, flow)
        identity = identify(model, flow, corpus, settings)
        if share.rank == 0:  # only now, so that no mistake so far has left a folder that says what the run is
            folder = stack.enter_context(RunFolder(path))
            longer = {"steps"} if settings.rate == "constant" else set()
            folder.settle(identity, asdict(settings), longer)
        wait_for_all()
        course = _Course(trainer, path, corpus, flow, recipe_hash(identity), logger, progress)
        start = course.resume()
        if share.rank == 0:  # only now: a run that cannot go on is left as it is
            course.folder = folder
            folder.write(identity, asdict(settings))
        return course.run(start)


def _ask_once(trainer: Trainer, flow: Flow) -> None:
    """Refuse a network that does not fit its flow, by what it says of one row."""
    model = trainer.model
    check_vocab(model, flow)
    last = flow.vocab.size - 1
    xt = torch.full((1, trainer.task.corpus.length), last, device=trainer.device)
    try:
        with resting(model), trainer.autocast():
            flow.vocab.check_logits(model(xt, torch.zeros(1, dtype=clock_dtype(model), device=trainer.device)))
    except IndexError as error:
        raise ValueError(
            f"the flow has {flow.vocab.size} tokens, and {type(model).__name__} fails on the last one, {last}: {error}"
        ) from error


class _Course:
    """The steps of one call of `train`: updates, and between them logs, looks and checkpoints."""

    def __init__(
        self,
        trainer: Trainer,
        path: Path,
        corpus: Text,
        flow: Flow | None,
        digest: str,
        logger: Logger | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.trainer, self.path, self.corpus, self.flow = trainer, path, corpus, flow
        self.logger, self.progress = logger and outliving(logger), progress and outliving(progress)
        self.settings, self.task, self.first = trainer.settings, trainer.task, trainer.share.rank == 0
        self.digest = digest
        self.folder: RunFolder | None = None
        self.metrics: Metrics | None = None
        self.last: dict[str, Any] = {}
        self.seconds = 0.0
        self._clock, self._tokens = time.perf_counter(), 0
        self._saved = time.monotonic()

    def run(self, start: int) -> Run:
        with ExitStack() as stack:
            stop = stack.enter_context(Stop())
            self.metrics = metrics = stack.enter_context(Metrics(self.path, start)) if self.first else None
            self._tell(start)
            self._clock, self._saved = time.perf_counter(), time.monotonic()
            for step in range(start, self.settings.steps):
                self._update(step, stop)
                self._tell(step + 1)
                with self._sound():
                    row = self._row(step)
                if row and metrics:
                    metrics.add(row)
                    self.last |= row
                    if self.logger:
                        self.logger(row)
                # a look may take long; several processes must agree, and do so at the next step
                self.trainer.stop |= self.trainer.share.world == 1 and stop.asked is not None
                self._save_if_due(step + 1)
        return Run(self.path, self.settings.steps, self.digest, self.last)

    def _tell(self, done: int) -> None:
        if self.progress:
            self.progress(done, self.settings.steps)

    def resume(self) -> int:
        """Load the newest whole checkpoint, or write the first one; the step to go on with."""
        home = self.path / CHECKPOINTS
        found = checkpoints.latest(home)
        if found is None:
            if rows := read(self.path / "metrics.jsonl"):
                raise ValueError(
                    f"{self.path} has metrics up to step {rows[-1]['step']} and no checkpoint to go on from: were they "
                    f"deleted? To begin again beside it: --fresh, or fresh=True"
                )
            self.save(0)
            return 0
        if found.step > self.settings.steps:
            raise ValueError(f"{self.path} has taken {found.step} steps already, more than steps={self.settings.steps}")
        self.trainer.load(found)
        self.seconds = float(found.facts.get("seconds", 0.0))
        for row in read(self.path / "metrics.jsonl"):
            self.last |= row
        return found.step

    def save(self, step: int) -> None:
        """One checkpoint of all processes, written by the first."""
        groups = self.trainer.state()
        _refuse_not_finite(groups, step)
        if self.first:
            self._write(step, groups)
        # who started the processes may end all of them once the first one leaves: none leaves before it is written
        wait_for_all()
        self._saved, self.trainer.due = time.monotonic(), False

    def _write(self, step: int, groups: dict[str, dict[str, Tensor]]) -> None:
        seconds = self.seconds + time.perf_counter() - self._clock  # with what has passed since the last row
        facts = {"seconds": seconds, "recipe_hash": self.digest, "torch": str(torch.__version__)}
        if self.trainer.device.type == "cpu":
            facts["threads"] = torch.get_num_threads()
        tokenizer = getattr(self.corpus, "tokenizer", None)
        config = describe(self.trainer.model, self.flow, tokenizer=tokenizer, recipe=asdict(self.settings))
        whole = Checkpoint(step, groups, facts, partial(sealed, config, "model.safetensors"))
        try:
            self._follow()
            checkpoints.save(self.path / CHECKPOINTS, whole)
        except FileNotFoundError:  # the folder was renamed or deleted meanwhile
            self._follow()
            checkpoints.save(self.path / CHECKPOINTS, whole)
        home = self.path / CHECKPOINTS
        checkpoints.set_aside(home, step)
        lowest = best(read(self.path / "metrics.jsonl"), checkpoints.steps(home))
        checkpoints.prune(home, self.settings.keep, None if lowest is None else lowest["step"] + 1)

    def _follow(self) -> None:
        """Stay with a folder that was renamed, replace one that was deleted, and make all rows so far durable."""
        if self.folder is not None:
            self.folder.follow()
            self.path = self.folder.path
        if self.metrics is not None:
            self.metrics.sync(self.path)

    def _update(self, step: int, stop: Stop) -> None:
        with self._sound():
            self.trainer.update(step, asked=lambda: stop.asked is not None, due=self._unsaved_for_long)
        self._tokens += self.task.tokens(step)

    def _unsaved_for_long(self) -> bool:
        minutes = self.settings.save_minutes
        return minutes > 0 and time.monotonic() - self._saved >= 60 * minutes

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """A step that failed, whenever that is noticed, is kept for who wants to know why, with the weights before."""
        try:
            yield
        except NotFinite as error:
            if error.outcome is None:
                raise
            self._follow()
            dumped = self.trainer.dump(error.outcome, self.path)
            self.save(error.outcome.step)
            raise NotFinite(f"{error}. The batch is in {dumped}") from None

    def _save_if_due(self, done: int) -> None:
        final = done == self.settings.steps
        if final or done % self.settings.save_every == 0 or self.trainer.stop or self.trainer.due:
            with self._sound():
                self.trainer.settle()
            self.save(done)
        if self.trainer.stop and not final:
            raise Interrupted(
                f"stopped at step {done} of {self.settings.steps} and saved in {self.path}; "
                f"the same command goes on from there"
            )

    def _row(self, step: int) -> dict[str, Any] | None:
        """What there is to report after a step, if anything; a look at held-out text never stands without a loss."""
        done, every = step + 1, self.settings.eval_every
        final = done == self.settings.steps
        looks = final or (every > 0 and done % every == 0)
        # after the first step and every `log_every` of them: the rows of evaluations, at such steps, are among these
        if not looks and step and done % self.settings.log_every:
            return None
        row = {"step": step, **self._numbers(step)}
        return row | self._examine(step) if looks else row

    def _numbers(self, step: int) -> dict[str, Any]:
        """The step's own numbers, and the speed since the last ones."""
        self.trainer.settle()
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.seconds += passed
        numbers = self.task.numbers(step)
        waited = numbers.pop("ot_waited", None)
        row = {
            "loss": self.trainer.loss,
            "grad_norm": self.trainer.grad_norm,
            "lr": self.settings.rate_at(step),
            "tokens_per_s": self._tokens / max(passed, 1e-9),
            "seconds": self.seconds,
            "memory_bytes": memory_bytes(self.trainer.device),
            **numbers,
        }
        if waited is not None:
            row["ot_wait_share"] = min(1.0, waited / max(passed, 1e-9))
        self._tokens = 0
        return row

    def _examine(self, step: int) -> dict[str, Any]:
        """A look at held-out text, while the clock of the steps stands still."""
        if not self.first:
            return {}
        started = time.perf_counter()
        with self.trainer.worn(), resting(self.trainer.model), self.trainer.autocast():
            look = self.task.examine(step, self.trainer.device)
        if look.texts:
            self._follow()
            lines = [json.dumps({"step": step, "text": text}, ensure_ascii=False) for text in look.texts]
            atomic.write(self.path / "samples.jsonl", "".join(f"{line}\n" for line in lines).encode())
        self._clock += time.perf_counter() - started
        bad = [name for name, value in look.numbers.items() if value is not None and not math.isfinite(value)]
        if bad:  # the weights are sound and the run shall go on; what is not a number is not reported
            log.warning("step %d: %s not finite, not reported", step + 1, ", ".join(bad))
        sound = {name: value for name, value in look.numbers.items() if name not in bad}
        return {**sound, "precision": self.trainer.precision, "recipe_hash": self.digest} if sound else {}


def identify(model: nn.Module, flow: Flow | None, corpus: Text, settings: Settings) -> dict[str, Any]:
    """Everything that decides what is learned, as flat keys and short values."""
    shapes = "".join(f"{name}{tuple(p.shape)}" for name, p in model.named_parameters())
    parts = {
        "model": {"kind": type(model).__name__, "weights": hashlib.sha256(shapes.encode()).hexdigest()},
        "flow": {} if flow is None else to_plain(flow),
        "data": dict(corpus.identity),
    }
    learned = {f.name: getattr(settings, f.name) for f in fields(settings) if is_learned(f)}
    return {**learned, **_flat("", parts)}


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for name, part in value.items() for key, leaf in _flat(f"{prefix}.{name}", part).items()}
    if isinstance(value, list | tuple) and len(value) > 16:
        value = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    return {prefix.removeprefix("."): value}


def _refuse_not_finite(groups: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
    """Weights may overflow under a finite gradient, and would be the last ones a run goes on with."""
    for group in groups.keys() - {"pairs"}:
        for name, tensor in groups[group].items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise NotFinite(
                    f"{name} ({group}) is no longer a number after step {step - 1}: not saved, the checkpoint before "
                    f"it is intact. Lower lr or weight_decay, in a new folder (--fresh, or fresh=True)"
                )


def wait_for_all() -> None:
    if Share.here().world > 1:
        dist.barrier()


@contextmanager
def _one_training() -> Iterator[None]:
    """Dropout draws from torch's global generator, and the number of threads is global, too: both decide the result."""
    if not _TRAINING.acquire(blocking=False):
        raise ValueError(
            "another training is running in this process, and the seed would no longer determine the result: "
            "wait for it, or train in a separate process"
        )
    try:
        yield
    finally:
        _TRAINING.release()


@contextmanager
def _repeatable(wanted: bool) -> Iterator[None]:
    """Only operations that give the same bits every time, where that is asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:  # what cuBLAS asks for; read when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
