"""train: from a network, a flow and a text to a run folder.

The same call resumes from the last checkpoint of the folder, equal to the bit on one machine's CPU.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..flow import Flow
from ..runs.custom_network import check_call
from ..runs.devices import choose_device
from ..runs.identity import flatten, recipe_hash, with_defaults
from ..runs.ot_batch import Share
from ..runs.pretrained import check_vocab, from_pretrained
from ..runs.run_folder import CHECKPOINTS, RunFolder, next_free
from ..runs.storage import to_plain
from .distributed import wait_for_all
from .loop import Logger, TrainingLoop
from .settings import Settings, is_learned
from .text import Text
from .threads import choose_threads, using
from .trainer import Trainer, task_for

log = logging.getLogger("hopflow")

_TRAINING = threading.Lock()
"""Held while a training runs in this process."""


@dataclass(frozen=True)
class Run:
    """The folder of a trained network, and its last metrics."""

    path: Path
    step: int
    recipe_hash: str
    last: Mapping[str, Any]
    """The newest value of every metric."""

    def __str__(self) -> str:
        shown = ("loss", "b0_ppl", "bn_ppl", "nll", "jumps")
        names = {"b0_ppl": "perplexity bound b0", "bn_ppl": "perplexity bound bn", "nll": "nll (nats per token)"}
        names["jumps"] = "hops per sample"
        lines = [f"run in {self.path}", f"  steps taken  {self.step:,}", f"  recipe hash  {self.recipe_hash}"]
        for key in shown:
            if isinstance(value := self.last.get(key), int | float):
                error = self.last.get(f"{key.removesuffix('_ppl')}_se")
                lines.append(f"  {names.get(key, key)}  {value:.4g}" + (f" ± {error:.2g}" if error else ""))
        lines.append(f"  load it with hf.from_pretrained({str(self.path)!r})")
        return "\n".join(lines)

    def push_to_hub(self, name: str, *, private: bool | None = None, license: str | None = None) -> str:
        """Upload the newest checkpoint as `user/name` to the Hugging Face hub; returns `user/name@COMMIT`.

        The model card has the recipe and the rows that `hopflow eval` has stored for this checkpoint.
        """
        return from_pretrained(self.path).push_to_hub(name, private=private, license=license)


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
    """Train `model` on `flow` and `corpus`, and write checkpoints and metrics to the folder `out`.

    Pass `settings`, or the fields of `Settings` as keywords. A `Causal` model needs no flow (None). If `out` contains
    the same run, it is resumed; `fresh=True` starts in a new folder next to it.

    `logger` is called with every row of metrics, in the first process only. `progress` is called with the number of
    steps taken and their total, in every process, before the first step and after each. A lost terminal, pipe or server
    (OSError, or a closed file) in one of them does not end the run.

    Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU finish the step, save and raise `Interrupted`; the last three only if
    the program neither ignores nor handles them. Only one training may run in a process at a time; a second one in
    another thread raises a ValueError.
    """
    _check_arguments(model, flow, corpus, out, settings, keys)
    _check_callbacks(logger, progress)
    settings = settings or Settings.of(keys)
    share, device = Share.here(), choose_device(settings.device)
    path = next_free(Path(out)) if fresh else Path(out)
    model.to(device)
    wait_for_all()  # every process must find the same free folder before the first one creates it
    with ExitStack() as stack:
        stack.enter_context(_single_training())
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(_deterministic(settings.deterministic))
        # before the workers start, whose imports use the cores
        threads = choose_threads(model, flow, corpus, settings, device, share, path / CHECKPOINTS)
        stack.enter_context(using(threads))
        if threads is not None and share.rank == 0:
            log.info("%s", threads)
        task = stack.enter_context(closing(task_for(model, flow, corpus, settings, share)))
        trainer = Trainer(model, task, settings, device, share)
        if flow is not None:
            _check_network(trainer, flow)
        identity = identify(model, flow, corpus, settings)
        if task.stored_pairs is not None:
            task.stored_pairs.agree(device)
            identity |= task.stored_pairs.identity(identity)
            if share.rank == 0:
                log.info("%s", task.stored_pairs)
        if share.rank == 0:  # after all checks, so that a mistake leaves no folder
            folder = stack.enter_context(RunFolder(path))
            identity = _settle(folder, identity, settings, flow)
        wait_for_all()
        loop = TrainingLoop(trainer, path, corpus, flow, recipe_hash(identity), logger, progress)
        start = loop.resume()
        if share.rank == 0:  # after resume(): a run that cannot be resumed stays unchanged
            loop.folder = folder
            folder.write(identity, asdict(settings))
        loop.run(start)
        return Run(loop.path, settings.steps, loop.recipe_hash, loop.last)


def _check_callbacks(*callbacks: object) -> None:
    for callback in callbacks:
        if callback is not None and not callable(callback):
            raise ValueError(f"logger and progress must be functions, got {type(callback).__name__}.")


def _settle(folder: RunFolder, identity: dict[str, Any], settings: Settings, flow: Flow | None) -> dict[str, Any]:
    """Check that the folder is free or has the same run; returns the identity of the run."""
    longer = {"steps"} if settings.rate == "constant" else set()
    return folder.settle(
        identity,
        asdict(settings),
        longer,
        lambda saved: with_defaults(saved, _defaults(settings), {"flow": flow}),
    )


def _check_arguments(
    model: object, flow: object, corpus: object, out: object, settings: object, keys: Mapping[str, Any]
) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model must be a torch.nn.Module, got {type(model).__name__}. Call train(model, flow, corpus)."
        )
    if isinstance(corpus, str | Path):
        raise ValueError(
            f"corpus must be loaded first, got the file name {str(corpus)!r}. Pass hf.data.load({str(corpus)!r})."
        )
    if not isinstance(flow, Flow | None):
        raise ValueError(f"flow must be a Flow, or None, got {type(flow).__name__}. Call train(model, flow, corpus).")
    if missing := [name for name in ("vocab_size", "length", "identity") if not hasattr(corpus, name)]:
        raise ValueError(
            f"corpus must be the result of hf.data.load or hf.data.rows, got {type(corpus).__name__}, which has no "
            f"{missing[0]}."
        )
    if not isinstance(out, str | os.PathLike):
        raise ValueError(f"out must be the path of a folder, got {out!r}.")
    if not isinstance(settings, Settings | None):
        raise ValueError(f"settings must be Settings(…), got {type(settings).__name__}. Or pass keywords: steps=1000.")
    if settings is not None and keys:
        raise ValueError(f"pass either settings or keywords such as {next(iter(keys))}=, not both.")


def _check_network(trainer: Trainer, flow: Flow) -> None:
    """Raise a ValueError if the network does not fit its flow, by calling it on one row."""
    model = trainer.model
    check_vocab(model, flow)
    with trainer.autocast():
        check_call(model, flow, trainer.task.corpus.length, trainer.device)


def identify(model: nn.Module, flow: Flow | None, corpus: Text, settings: Settings) -> dict[str, Any]:
    """Everything that decides what is learned, as flat keys with short values (`runs.identity`)."""
    shapes = "".join(f"{name}{tuple(p.shape)}" for name, p in model.named_parameters())
    parts = {
        "model": {"kind": type(model).__name__, "weights": hashlib.sha256(shapes.encode()).hexdigest()},
        "flow": {} if flow is None else to_plain(flow),
        "data": dict(corpus.identity),
    }
    learned = {f.name: getattr(settings, f.name) for f in fields(settings) if is_learned(f)}
    return {**learned, **flatten("", parts)}


def _defaults(settings: Settings) -> dict[str, Any]:
    """The default of every setting that decides what is learned: its value in a run that is older than the setting."""
    return {f.name: f.default for f in fields(settings) if is_learned(f)}


@contextmanager
def _single_training() -> Iterator[None]:
    """Allow one training at a time: the random generator of dropout and the number of threads are global in torch."""
    if not _TRAINING.acquire(blocking=False):
        raise ValueError(
            "another training is running in this process; with two, the seed would not determine the result. "
            "Wait for it, or train in a separate process."
        )
    try:
        yield
    finally:
        _TRAINING.release()


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Let torch use deterministic algorithms only, if wanted."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:  # cuBLAS reads this when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
