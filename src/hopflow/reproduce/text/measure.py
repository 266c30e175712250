"""Train one cell of the text study and measure it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...bench.machine import machine
from ...bounds.estimate import Estimate, known, mean_and_error
from ...bounds.nll import kappa_bound, nll_bound
from ...bounds.reversal import reversal_bound
from ...couplings import Independent
from ...data import Corpus
from ...evaluation import sets
from ...evaluation.evaluated_model import EvaluatedModel
from ...evaluation.metrics import Samples, metric
from ...evaluation.transport import transport_costs
from ...flow import Flow
from ...network.network import device_of
from ...recipes import Built, build
from ...runs.devices import choose_device
from ...runs.metrics import read as read_metrics
from ...runs.rng import stream
from ...sampling.generate import generate
from .cell import SCHEMA, BoundValues, Cell, MeasuredValue, SamplePoint
from .judges import NamedJudge, first_rows, test_set, training_lines
from .protocol import Protocol, Say, StudyVariant

TEXTS = 4
BATCH = 64
"""Sequences per call of a causal network."""


@dataclass
class Clock:
    """Seconds that each part of a cell took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def run_cell(
    budget: str,
    variant: StudyVariant,
    seed: int,
    judges: list[NamedJudge],
    *,
    work: Path,
    device: str,
    commit: str | None,
    offline: bool,
    say: Say,
) -> Cell:
    """Train the variant with this seed into a folder of `work`, sample it, and measure everything."""
    protocol, clock = variant.protocol, Clock()
    where = choose_device(device)
    recipe = replace(variant.resolved(seed), device=device, compile=where.type == "cuda")
    folder = work / f"{budget}-{variant.name}-seed{seed}"
    with clock.part("training"):
        built = build(recipe, offline=offline, progress=say)
        trained = _train(built, folder, say)
    subject = EvaluatedModel.load(folder, device)
    with clock.part("bounds"):
        bounds = list(_bounds(protocol, subject, offline, say))
    with clock.part("samples"):
        samples = list(_samples(protocol, subject, seed, judges, say))
    with clock.part("transport"):
        transport = _transport(protocol, subject, built.corpus, recipe.ot_batch or recipe.batch, folder, seed, say)
    return Cell(
        schema=SCHEMA,
        budget=budget,
        variant=variant.name,
        seed=seed,
        protocol=asdict(protocol),
        protocol_sha256=protocol.sha256,
        recipe=asdict(recipe),
        recipe_hash=subject.recipe_hash or "",
        corpus=dict(built.corpus.identity),
        machine=machine(where),
        commit=commit,
        parameters=sum(p.numel() for p in built.model.parameters()),
        training_loss=[(row["step"] + 1, row["loss"]) for row in read_metrics(folder / "metrics.jsonl")],
        training=trained,
        bounds=bounds,
        samples=samples,
        transport=transport,
        judges={judge.name: judge.facts for judge in judges},
        seconds=clock.seconds,
    )


def _train(built: Built, folder: Path, say: Say) -> dict[str, float | None]:
    """Train into the folder, and return time, tokens, memory and OT costs."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    built.train(out=folder, logger=training_lines(folder.name, built.recipe.steps, say))
    seconds = time.perf_counter() - start
    tokens = built.recipe.steps * built.recipe.batch * built.recipe.length
    found: dict[str, float | None] = {
        "seconds": seconds,
        "tokens": float(tokens),
        "tokens_per_second": tokens / seconds,
    }
    found["peak_bytes"] = float(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
    rows = read_metrics(folder / "metrics.jsonl")
    late = rows[len(rows) // 2 :]
    for key in ("ot_cost", "ot_independent_cost", "ot_seconds"):
        values = [row[key] for row in late if key in row]
        found[key] = sum(values) / len(values) if values else None
    waited = [row["ot_waited"] for row in rows if "ot_waited" in row]
    found["ot_waited"] = sum(waited) if waited else None
    return found


def _bounds(protocol: Protocol, subject: EvaluatedModel, offline: bool, say: Say) -> Iterator[BoundValues]:
    """Every bound on the test set, and b0, b1 and br with one path on the zero-shot sets."""
    yield from _on_set(protocol, subject, "test", test_set(protocol, subject, offline, say), True, say)
    for name in protocol.zero_shot:
        texts = sets.named(name, subject, offline=offline, progress=say)
        yield from _on_set(protocol, subject, name, first_rows(texts, protocol.zero_shot_rows), False, say)


def _on_set(
    protocol: Protocol, subject: EvaluatedModel, name: str, texts: sets.TextSet, everything: bool, say: Say
) -> Iterator[BoundValues]:
    x1 = texts.x1.to(device_of(subject.model))
    if subject.flow is None:
        start = time.perf_counter()
        model: Any = subject.model
        with torch.no_grad():
            exact = torch.cat([model.nll(rows).double().cpu() for rows in x1.split(BATCH)]).tolist()
        seconds = time.perf_counter() - start
        yield BoundValues(
            name, "nll", None, None, None, None, False, x1.shape[1], exact, 0.0, 1, subject.dtype, seconds
        )
        return
    for estimate, steps, paths, proposal, seconds in _estimates(protocol, subject.model, subject.flow, x1, everything):
        say(f"{name}: {estimate}")
        nats = [known(value) for value in estimate.each]
        yield BoundValues(
            name,
            estimate.quantity,
            float(estimate.eta),  # type: ignore[arg-type]
            steps,
            paths,
            proposal,
            estimate.is_bound,
            estimate.length,
            nats,
            known(estimate.draw_stderr),
            estimate.calls,
            estimate.dtype,
            seconds,
        )


def _estimates(
    protocol: Protocol, model: Any, flow: Flow, x1: Tensor, everything: bool
) -> Iterator[tuple[Estimate, int | None, int | None, str | None, float]]:
    """(estimate, steps, paths, proposal, seconds): b0, b1, bk, bn and br, as far as they say something of this flow."""
    finite = flow.prediction.has_finite_bounds(flow.source)
    one_law = flow.prediction.keeps_data_tokens(flow.source)  # from masks all η have one bound, and b0 is tight
    bound = partial(nll_bound, model, flow, x1, draws=protocol.draws, seed=0)
    asked: list[tuple[Callable[[], Estimate], int | None]] = []
    if finite:
        asked.append((bound, None))
    if finite and not one_law:
        unigram = flow.source.token_probs()[: flow.vocab.data] if flow.source.full else None
        asked.append((partial(bound, eta=1, unigram=unigram), None))
    if finite and everything and flow.source.full:
        asked.append((partial(kappa_bound, model, flow, x1, draws=protocol.draws, seed=0), None))
    if everything or not finite:
        asked += [(partial(bound, steps=steps), steps) for steps in protocol.bound_steps]
    for estimate, steps in asked:
        start = time.perf_counter()
        found = estimate()
        yield found, steps, None, None, time.perf_counter() - start
    if one_law:
        return
    paths = protocol.paths if everything else 1
    proposals = {"context": replace(flow, coupling=Independent())}  # a bound for every flow, whatever its pairs
    if flow.couples and getattr(model, "x0_head", None) is not None:
        proposals["x0 head"] = flow
    for proposal, reversed_flow in proposals.items():
        start = time.perf_counter()
        reversal = reversal_bound(model, reversed_flow, x1, steps=protocol.reversal_steps, paths=paths, seed=0)
        seconds = time.perf_counter() - start
        for count in dict.fromkeys((1, paths)):
            yield reversal.with_paths(count), protocol.reversal_steps, count, proposal, seconds * count / paths


def _samples(
    protocol: Protocol, subject: EvaluatedModel, seed: int, judges: list[NamedJudge], say: Say
) -> Iterator[SamplePoint]:
    """Samples at every number of steps and η, scored by every judge."""
    tokenizer = subject.tokenizer
    assert tokenizer is not None
    points: list[tuple[int | None, float | None]] = [(None, None)]
    if subject.flow is not None:
        points = [(steps, eta) for eta in protocol.etas for steps in protocol.sampler_steps]
    for steps, eta in points:
        start = time.perf_counter()
        tokens, jumps, calls = _draw(protocol, subject, seed, steps, eta)
        seconds = time.perf_counter() - start
        texts = [tokenizer.decode(row) for row in tokens.tolist()]
        bits = metric("entropy_bits").measure(Samples(tokens))
        say(f"samples: {steps} steps, eta {eta}: {seconds:.1f} s, entropy {bits.value:.2f} bits")
        hops = (None, None) if jumps is None else mean_and_error(jumps)
        yield SamplePoint(
            steps=steps,
            eta=eta,
            n=len(tokens),
            entropy_bits=bits.value,
            entropy_bits_stderr=bits.stderr,
            jumps=hops[0],
            jumps_stderr=hops[1],
            calls=None if calls is None else float(calls.double().mean()),
            seconds=seconds,
            judges={judge.name: judge.scores(tokens, texts) for judge in judges},
            texts=texts[:TEXTS],
        )


def _draw(
    protocol: Protocol, subject: EvaluatedModel, seed: int, steps: int | None, eta: float | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens on the CPU, and the hops and network calls of each sample."""
    if subject.flow is None:
        model: Any = subject.model
        pieces = model.pieces(protocol.samples, protocol.length, stream(seed, "study samples"), 1.0)
        return torch.cat([piece.cpu() for piece in pieces]), None, None
    assert steps is not None
    assert eta is not None
    out = generate(
        subject.model, subject.flow, n=protocol.samples, length=protocol.length, steps=steps, eta=eta, seed=seed
    )
    return out.tokens.cpu(), out.jumps.cpu(), out.calls.cpu()


def _transport(
    protocol: Protocol, subject: EvaluatedModel, corpus: Corpus, ot_batch: int, folder: Path, seed: int, say: Say
) -> dict[str, MeasuredValue]:
    """Hops and costs predicted from pairs of training text, and counted along samples of the few-hops sampler."""
    if subject.flow is None:
        return {}
    x1 = corpus.batch(seed, 0, protocol.ot_batches * min(ot_batch, protocol.batch))
    say("transport: hops and costs")
    found = transport_costs(
        subject.model,
        subject.flow,
        x1,
        n=min(256, protocol.samples),
        ot_batch=min(ot_batch, protocol.batch),
        run=folder,
        steps=max(protocol.sampler_steps),
        seed=seed,
    )
    numbers = [found.jumps.per_sequence, *(number for cost in found.by_cost for number in cost)]
    numbers += [number for number in (found.jumps.predicted,) if number is not None]
    return {number.quantity: MeasuredValue(known(number.value), known(number.stderr)) for number in numbers}
