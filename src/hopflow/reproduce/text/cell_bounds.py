"""The bounds of one cell of the text study: on the test set and on the zero-shot sets."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...bounds.estimate import Estimate, known
from ...bounds.nll import kappa_bound, nll_bound
from ...bounds.reversal import reversal_bound
from ...couplings import Independent
from ...evaluation.evaluated_model import EvaluatedModel
from ...flow import Flow
from ...network.network import device_of
from .cell import BoundValues
from .evaluation_sets import TEST, EvaluationSets
from .protocol import Protocol

BATCH = 64
"""Sequences per call of a causal network."""
CONTEXT, X0_HEAD = "context", "x0 head"
"""How br draws reversed paths."""


def measure_bounds(protocol: Protocol, subject: EvaluatedModel, texts: EvaluationSets) -> Iterator[BoundValues]:
    """Every bound on the test set, and b0, b1 and br with one path on the zero-shot sets.

    Where br has two proposals, the zero-shot sets get the one with the lower mean on the test set. It was chosen on
    other sequences, so br stays a bound.
    """
    found = list(_on_set(protocol, subject, TEST, texts.test(protocol, subject).x1, texts, None))
    yield from found
    for name in protocol.zero_shot:
        x1 = texts.zero_shot(name, protocol, subject).x1
        yield from _on_set(protocol, subject, name, x1, texts, _tightest_proposal(found))


def _tightest_proposal(bounds: list[BoundValues]) -> str:
    """The proposal of br with the lowest mean over the sequences; the context if br was not measured."""
    reversals = [bound for bound in bounds if bound.quantity == "br"]
    means = {bound.proposal: sum(nats or 0.0 for nats in bound.nats) for bound in reversals if None not in bound.nats}
    return min(means, key=lambda proposal: means[proposal], default=None) or CONTEXT


def _on_set(
    protocol: Protocol, subject: EvaluatedModel, name: str, x1: Tensor, texts: EvaluationSets, proposal: str | None
) -> Iterator[BoundValues]:
    """The bounds on one set; all of them, or b0, b1 and br with this proposal."""
    x1 = x1.to(device_of(subject.model))
    if subject.flow is None:
        yield _exact(subject, name, x1)
        return
    for estimate, steps, paths, used, seconds in _estimates(protocol, subject.model, subject.flow, x1, proposal):
        texts.say(f"{name}: {estimate} ({seconds:.1f} s)")
        yield BoundValues(
            name,
            estimate.quantity,
            float(estimate.eta),  # type: ignore[arg-type]
            steps,
            paths,
            used,
            estimate.is_bound,
            estimate.length,
            [known(value) for value in estimate.each],
            known(estimate.draw_stderr),
            estimate.calls,
            estimate.dtype,
            seconds,
        )


def _exact(subject: EvaluatedModel, name: str, x1: Tensor) -> BoundValues:
    """The NLL of an autoregressive network, which is exact."""
    start = time.perf_counter()
    model: Any = subject.model
    with torch.no_grad():
        nats = torch.cat([model.nll(rows).double().cpu() for rows in x1.split(BATCH)]).tolist()
    seconds = time.perf_counter() - start
    return BoundValues(name, "nll", None, None, None, None, False, x1.shape[1], nats, 0.0, 1, subject.dtype, seconds)


TimedEstimate = tuple[Estimate, int | None, int | None, str | None, float]
"""(estimate, steps, paths, proposal, seconds)"""


def _estimates(protocol: Protocol, model: Any, flow: Flow, x1: Tensor, proposal: str | None) -> Iterator[TimedEstimate]:
    """b0, b1, bk, bn and br, as far as each says something of this flow."""
    everything = proposal is None
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
    if not one_law:
        yield from _reversals(protocol, model, flow, x1, proposal)


def _reversals(protocol: Protocol, model: Any, flow: Flow, x1: Tensor, only: str | None) -> Iterator[TimedEstimate]:
    """br with one path and with all paths for every proposal, or with one path for the proposal `only`."""
    proposals = {CONTEXT: replace(flow, coupling=Independent())}  # a bound for every flow, whatever its pairs
    if flow.couples and getattr(model, "x0_head", None) is not None:
        proposals[X0_HEAD] = flow
    paths = protocol.paths if only is None else 1
    for proposal, reversed_flow in proposals.items():
        if only not in (None, proposal):
            continue
        for steps in protocol.all_reversal_steps:
            start = time.perf_counter()
            found = reversal_bound(model, reversed_flow, x1, steps=steps, paths=paths, seed=0)
            seconds = time.perf_counter() - start
            for count in dict.fromkeys((1, paths)):
                yield found.with_paths(count), steps, count, proposal, seconds * count / paths
