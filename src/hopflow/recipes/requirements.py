"""Requirements of a recipe: parameters, memory and time, measured without training."""

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..bounds.estimate import mean_and_error
from ..couplings import Independent
from ..network.network import embedding_table
from ..runs.devices import choose_device, most_workers
from ..runs.ot_batch import Share, one_thread
from ..runs.run_folder import CHECKPOINTS
from ..training.labels import RowLabels
from ..training.pairing.pairs import Pairing
from ..training.threads import choose_threads, using
from ..training.trainer import NotFinite, Trainer, task_for
from .build import Built
from .recipe import Recipe

OT_BATCHES = 8
TRIED = 4
"""Sequences of the step that is timed on a CPU, where time is proportional to the batch. A GPU is timed with complete
batches: there a few sequences take as long as many."""
REPEATS = 8
"""Steps that are timed on a GPU."""
TIMED, LARGE = 1024, 20_000_000
"""Tokens of a step that is timed before a run on a CPU, and the number of weights above which it is not timed."""


@dataclass(frozen=True)
class Requirements:
    """The parameters, memory, time and coupling gain of a run."""

    parameters: int
    memory_bytes: int
    checkpoint_bytes: int
    tokens: int
    epochs: float
    seconds: float
    threads: int | None
    """CPU threads of the steps that were timed; None on a GPU."""
    ot_gain: float | None
    """Fraction of the independent cost that the coupling saves, over OT_BATCHES OT batches."""
    ot_gain_stderr: float | None
    ot_seconds: float | None
    """Seconds of one coupling, in one thread."""


def requirements(built: Built, progress: Callable[[str], None] = lambda text: None) -> Requirements:
    """The requirements of a run: parameters are counted, two short steps are timed, a few batches are coupled."""
    recipe, model = built.recipe, built.model
    device, share = choose_device(recipe.device), Share.here()
    model.to(device)
    parameters = sum(p.numel() for p in model.parameters())
    table = embedding_table(model)
    averages = parameters * bool(recipe.weight_ema) + (table.numel() if table is not None and recipe.ot_ema else 0)
    progress("coupling a few batches")
    gain, error, ot_seconds = _gain(built)
    progress("timing a step")
    threads = choose_threads(model, built.flow, built.corpus, recipe, device, share, built.folder / CHECKPOINTS)
    part = max(1, recipe.batch // recipe.accumulate)
    with using(threads):
        tried, seconds, activations = _timed(built, min(part, TRIED) if device.type == "cpu" else part)
    tokens = recipe.steps * recipe.batch * recipe.length
    return Requirements(
        parameters,
        4 * (4 * parameters + averages) + activations * part // tried,  # weights, gradients, two moments of AdamW
        4 * (3 * parameters + averages),
        tokens,
        recipe.steps * recipe.batch / max(1, built.corpus.rows),
        recipe.steps * pace(recipe, seconds * recipe.batch / tried, ot_seconds or 0.0),
        None if threads is None else threads.number,
        gain,
        error,
        ot_seconds,
    )


def seconds_per_step(built: Built) -> float | None:
    """Seconds of a training step, measured with a copy of the network; on a CPU with one thread.

    None for a large network on a CPU, and if the step fails: training then reports the error. The network and torch's
    random state do not change.
    """
    recipe, device = built.recipe, choose_device(built.recipe.device)
    on_cpu = device.type == "cpu"
    if on_cpu and sum(p.numel() for p in built.model.parameters()) > LARGE:
        return None
    copied = replace(built, model=deepcopy(built.model).to(device))
    part = max(1, recipe.batch // recipe.accumulate)
    with torch.random.fork_rng(), one_thread() if on_cpu else nullcontext():
        try:
            tried, seconds, _ = _timed(copied, min(recipe.batch, max(1, TIMED // recipe.length)) if on_cpu else part)
        except (NotFinite, torch.OutOfMemoryError):
            return None
    return seconds * recipe.batch / tried


def _gain(built: Built) -> tuple[float | None, float | None, float | None]:
    recipe, flow = built.recipe, built.flow
    if flow is None or not flow.couples or flow.coupling.pair_store is not None:
        return None, None, None
    size = recipe.ot_batch or recipe.batch
    labelled = RowLabels.of(built.model, flow, built.corpus, replace(recipe, ot_batch=size, batch=size), Share())
    pairing = Pairing(
        flow,
        lambda index: built.corpus.batch(recipe.seed, index * size, size),
        groups=None if labelled is None else labelled.of_ot_batch,
        length=recipe.length,
        batch=size,
        seed=recipe.seed,
        workers=0,
        ahead=0,
    )
    gains, seconds = [], []
    with closing(pairing):
        for step in range(OT_BATCHES):
            pairing.step(step, embedding_table(built.model), built.model)
            report = pairing.report(step)
            gains.append(1 - report.cost / report.independent_cost if report.independent_cost else 0.0)
            seconds.append(report.seconds)
    return *mean_and_error(torch.tensor(gains, dtype=torch.float64)), sum(seconds) / OT_BATCHES


def pace(recipe: Recipe, step: float, coupling: float) -> float:
    """Seconds of a step, with its share of a coupling: workers solve it in parallel unless they are slower than steps.

    At most `ahead` workers are busy.
    """
    coupling *= recipe.batch / (recipe.ot_batch or recipe.batch)
    workers = most_workers(choose_device(recipe.device)) if recipe.workers is None else recipe.workers
    busy = min(workers, recipe.ahead)
    return max(step, coupling / busy) if busy else step + coupling


def _timed(built: Built, tried: int) -> tuple[int, float, int]:
    """The number of sequences of the timed step, its seconds, and the bytes that autograd keeps for it.

    The number of sequences is halved until the step fits into the device's memory.
    """
    while True:
        try:
            return tried, *_try(built, tried)
        except torch.OutOfMemoryError:
            if tried == 1:
                raise
        torch.cuda.empty_cache()
        tried //= 2


def _try(built: Built, tried: int) -> tuple[float, int]:
    """Seconds of a step with this number of sequences, and the bytes that autograd keeps for it."""
    small: Recipe = replace(built.recipe, batch=tried, accumulate=1, ot_batch=None, workers=0, compile=False)
    flow = built.flow and replace(built.flow, coupling=Independent())
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with closing(task_for(built.model, flow, built.corpus, small, Share())) as task:
        trainer = Trainer(built.model, task, small, choose_device(small.device), Share())
        with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            trainer.update(0)
        trainer.settle()  # waits for a GPU
        repeats = 1 if trainer.device.type == "cpu" else REPEATS
        started = time.perf_counter()
        for step in range(1, 1 + repeats):
            trainer.update(step)
        trainer.settle()
        seconds = (time.perf_counter() - started) / repeats
    weights = sum(kept.get(p.untyped_storage().data_ptr(), 0) for p in built.model.parameters())
    return seconds, sum(kept.values()) - weights
