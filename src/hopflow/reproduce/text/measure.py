"""Train one cell of the text study and measure it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...bench.machine import machine
from ...bounds.estimate import known
from ...data import Corpus
from ...evaluation.evaluated_model import EvaluatedModel
from ...evaluation.transport import transport_costs
from ...recipes import Built
from ...runs.devices import choose_device
from ...runs.metrics import read as read_metrics
from ...system.progress import ProgressCallback
from .cell import SCHEMA, Cell, MeasuredValue
from .cell_bounds import measure_bounds
from .cell_samples import measure_samples
from .evaluation_sets import EvaluationSets
from .judges import NamedJudge
from .protocol import Protocol, StudyVariant
from .teacher import Training, without_folders
from .training_run import train


@dataclass
class Clock:
    """Seconds and peak GPU memory of each part of a cell."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start, on_gpu = time.perf_counter(), torch.cuda.is_available()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if on_gpu:
            self.peak_bytes[name] = float(torch.cuda.max_memory_allocated())


def run_cell(
    budget: str,
    variant: StudyVariant,
    seed: int,
    prepare: Callable[[], Sequence[NamedJudge]],
    texts: EvaluationSets,
    *,
    work: Path,
    device: str,
    commit: str | None,
) -> Cell:
    """Train the variant with this seed into a folder of `work`, sample it, and measure everything.

    A training that was killed or finished before goes on from its last checkpoint. The judges are prepared after it, so
    that another process can train one of them meanwhile.
    """
    protocol, clock, say = variant.protocol, Clock(), texts.say
    training = Training(budget, work, device, texts.offline, say)
    folder = training.folder(variant, seed)
    with clock.part("teacher" if variant.teacher else "training"):
        built = training.build(variant, seed)
    recipe = built.recipe
    with clock.part("training"):
        trained = _train(built, folder, say)
    clock.seconds["training"] = max(clock.seconds["training"], trained["seconds"] or 0.0)
    trained["peak_bytes"] = clock.peak_bytes.get("training")
    subject = EvaluatedModel.load(folder, device)
    with clock.part("bounds"):
        bounds = list(measure_bounds(protocol, subject, texts))
    judges = prepare()
    with clock.part("samples"):
        samples = list(measure_samples(protocol, subject, seed, judges, say))
    with clock.part("transport"):
        transport = _transport(protocol, subject, built.corpus, recipe.ot_batch or recipe.batch, folder, seed, say)
    return Cell(
        schema=SCHEMA,
        budget=budget,
        variant=variant.name,
        seed=seed,
        protocol=asdict(protocol),
        protocol_sha256=protocol.sha256,
        recipe=without_folders(recipe),
        recipe_hash=subject.recipe_hash or "",
        corpus=dict(built.corpus.identity),
        machine=machine(choose_device(device)),
        commit=commit,
        parameters=sum(p.numel() for p in built.model.parameters()),
        training_loss=[(row["step"] + 1, row["loss"]) for row in read_metrics(folder / "metrics.jsonl")],
        training=trained,
        bounds=bounds,
        samples=samples,
        transport=transport,
        judges={judge.name: judge.facts for judge in judges},
        seconds=clock.seconds,
        peak_bytes=clock.peak_bytes,
        x0_head=_x0_head(subject.model),
    )


def _x0_head(model: Any) -> str | None:
    """The class and the number of parameters of the head that predicts x0."""
    head = getattr(model, "x0_head", None)
    if head is None:
        return None
    return f"{type(head).__name__}, {sum(parameter.numel() for parameter in head.parameters()):,} parameters"


def _train(built: Built, folder: Path, say: ProgressCallback) -> dict[str, float | None]:
    """Train into the folder, and return time, tokens and OT costs, earlier parts of a resumed run included."""
    train(built, folder, say)
    rows = read_metrics(folder / "metrics.jsonl")
    seconds = float(rows[-1]["seconds"])
    tokens = built.recipe.steps * built.recipe.batch * built.recipe.length
    found: dict[str, float | None] = {
        "seconds": seconds,
        "tokens": float(tokens),
        "tokens_per_second": tokens / seconds,
    }
    late = rows[len(rows) // 2 :]  # the first steps compile
    for key in ("tokens_per_s", "ot_cost", "ot_independent_cost", "ot_seconds", "ot_wait_share"):
        values = [row[key] for row in late if row.get(key) is not None]
        found[LATE.get(key, key)] = sum(values) / len(values) if values else None
    return found


LATE = {"tokens_per_s": "late_tokens_per_second"}
"""Names in the cell of means over the second half of the training, where they differ from those of the metrics."""


def _transport(
    protocol: Protocol,
    subject: EvaluatedModel,
    corpus: Corpus,
    ot_batch: int,
    folder: Path,
    seed: int,
    say: ProgressCallback,
) -> dict[str, MeasuredValue]:
    """Hops and costs predicted from pairs of training text, and counted along samples of the few-hops sampler."""
    if subject.flow is None:
        return {}
    batches = max(2, protocol.ot_batches * protocol.batch // ot_batch)  # as many rows for every OT batch
    x1 = corpus.batch(seed, 0, batches * ot_batch)
    say("transport: hops and costs")
    found = transport_costs(
        subject.model,
        subject.flow,
        x1,
        n=min(256, protocol.samples),
        ot_batch=ot_batch,
        run=folder,
        steps=max(protocol.sampler_steps),
        seed=seed,
    )
    numbers = [found.jumps.per_sequence, *(number for cost in found.by_cost for number in cost)]
    numbers += [number for number in (found.jumps.predicted,) if number is not None]
    return {number.quantity: MeasuredValue(known(number.value), known(number.stderr)) for number in numbers}
