"""The samples of one cell of the text study, scored by its judges."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...bounds.estimate import mean_and_error
from ...evaluation.evaluated_model import EvaluatedModel
from ...evaluation.metrics import Samples, metric
from ...runs.rng import stream
from ...sampling.generate import generate
from ...system.progress import ProgressCallback
from .cell import SamplePoint, kept_texts
from .judges import NamedJudge
from .protocol import Protocol


def measure_samples(
    protocol: Protocol, subject: EvaluatedModel, seed: int, judges: Sequence[NamedJudge], say: ProgressCallback
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
        scores = {judge.name: judge.scores(tokens, texts) for judge in judges}
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
            judges=scores,
            texts=kept_texts(texts, scores, protocol.judges),
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
