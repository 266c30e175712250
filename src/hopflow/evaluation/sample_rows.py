"""SampleEvaluation: draw samples over steps, η and temperature, and measure their metrics and what a judge scores."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..runs.rng import stream
from ..sampling.filters import Filter
from ..sampling.generate import generate
from ..sampling.random_draws import RandomStreams
from ..sampling.samplers import Euler, Sampler
from ..system.progress import Progress, ProgressCallback
from .evaluated_model import EvaluatedModel
from .generative import generative_perplexity
from .judge import Judge
from .measurement import Measurement
from .metrics import METRICS, SampleMetric, Samples, measure_samples
from .rows import ITSELF, SAMPLES, Row, fingerprint
from .sets import TextSet

LEFT_TO_RIGHT = {"sampler": "left to right", "eta": None, "steps": None}


@dataclass(frozen=True, eq=False)
class SampleEvaluation:
    """n samples at each of these steps, η and temperatures; an autoregressive network has temperatures only."""

    n: int = 64
    steps: tuple[int, ...] = (32,)
    eta: tuple[float, ...] = (0.0, 1.0)
    temperature: tuple[float, ...] = (1.0,)
    judge: Judge | None = None
    retokenise: bool = True
    """Whether the judge tokenizes texts itself; otherwise it scores token ids, which must be of its vocabulary."""
    seed: int = 0
    precision: str = "auto"
    sampler: Sampler | Callable[[int], Sampler] | None = None
    """A sampler, or a function from steps to a sampler; None is Euler in `steps` even steps."""
    metrics: tuple[SampleMetric, ...] = METRICS

    def __post_init__(self) -> None:
        if self.n < 1 or any(steps < 1 for steps in self.steps):
            raise ValueError(f"n and steps must be ≥ 1; got n={self.n}, steps={self.steps}")
        for temperature in self.temperature:
            Filter(temperature)

    def check(self, evaluated: EvaluatedModel) -> None:
        """Raise an error if the samples could not be judged; call it before they are drawn."""
        if self.judge is None:
            return
        if evaluated.tokenizer is None:
            raise ValueError(f"{evaluated.name} has no tokenizer, and a judge scores text: leave the judge out")
        if not self.retokenise and not self.judge.shares_vocabulary(evaluated.tokenizer):
            raise ValueError(
                f"the judge {self.judge.identity['name']} has another vocabulary than {evaluated.name}, so it cannot "
                f"score its token ids: pass retokenise=true"
            )

    def check_samplers(self, evaluated: EvaluatedModel, length: int) -> None:
        """Raise the error of a sampler that cannot draw from this flow; call it before anything is measured."""
        if self.sampler is None or evaluated.flow is None:
            return
        for sampler in samplers_of(self.sampler, self.steps):
            for eta in etas_of(sampler, self.eta):
                free = torch.ones(1, length, dtype=torch.bool)
                sampler.events(evaluated.flow, eta, free, RandomStreams(self.seed, [0]))

    def check_metrics(self, evaluated: EvaluatedModel, texts: TextSet) -> None:
        """Raise the error of a user's own metric, by measuring two rows; call it before anything is measured."""
        few = Samples(texts.x1[:2].cpu(), None, evaluated.tokenizer, texts.training)
        for metric in self.metrics:
            if metric.function is not None:
                metric.measure(few)

    def rows(self, evaluated: EvaluatedModel, texts: TextSet, say: ProgressCallback) -> Iterator[Row]:
        """All numbers of the samples of each sampler and temperature; they are as long as the rows of `texts`."""
        self.check(evaluated)
        length = texts.x1.shape[1]
        samplers: list[Sampler | None] = [None] if evaluated.flow is None else [*samplers_of(self.sampler, self.steps)]
        points = [
            (sampler, temperature, eta)
            for sampler in samplers
            for temperature in self.temperature
            for eta in etas_of(sampler, self.eta)
        ]
        for place, (sampler, temperature, eta) in enumerate(points, 1):
            facts = LEFT_TO_RIGHT if sampler is None else sampler_facts(sampler, eta)
            facts = {"sampler": facts["sampler"], "temperature": temperature, **facts}
            what = f"{facts['sampler']}, temperature {temperature:g}"
            say(f"drawing {self.n:,} sequences of {length} tokens: {what} ({place} of {len(points)})")
            samples, drawn = self._draw(evaluated, texts, sampler, eta, temperature, say)
            facts |= {**drawn, "length": length, "seed": self.seed}
            samples = replace(samples, tokenizer=evaluated.tokenizer, training=texts.training)
            for number, judge in self._numbers(evaluated, samples, say):
                yield evaluated.row(SAMPLES, number, **facts, **judge)

    def reference(self, evaluated: EvaluatedModel, texts: TextSet, say: ProgressCallback) -> Iterator[Row]:
        """The same numbers of held-out text, to compare the samples with."""
        tokens = texts.shuffled(self.seed).x1[: self.n]
        facts = {"sampler": ITSELF, "length": tokens.shape[1], "seed": self.seed, **texts.facts}
        samples = Samples(tokens.cpu(), None, evaluated.tokenizer, texts.training)
        for number, judge in self._numbers(evaluated, samples, say):
            yield evaluated.row(texts.name, number, eta=None, **facts, **judge)

    def _draw(
        self,
        evaluated: EvaluatedModel,
        texts: TextSet,
        sampler: Sampler | None,
        eta: float,
        temperature: float,
        say: ProgressCallback,
    ) -> tuple[Samples, dict[str, str]]:
        """The samples, and how tokens were drawn: by which function, from a network in which dtype."""
        length = texts.x1.shape[1]
        if sampler is None or evaluated.flow is None:
            pieces = evaluated.causal.pieces(self.n, length, stream(self.seed, "samples"), temperature)
            tokens = torch.cat([piece.cpu() for piece in pieces])
            return Samples(tokens), {"draw": "categorical", "dtype": evaluated.dtype}
        status = Progress(say)
        out = generate(
            evaluated.model,
            evaluated.flow,
            n=self.n,
            length=length,
            sampler=sampler,
            eta=eta,
            temperature=temperature,
            seed=self.seed,
            precision=self.precision,
            progress=lambda done, count: status.update(lambda: f"drawing, {sampler.label}: {done:,} of {count:,}"),
            labels=texts.sample_labels(self.n),
        )
        return Samples(out.tokens.cpu(), out), {"draw": out.draw, "dtype": out.precision}

    def _numbers(
        self, evaluated: EvaluatedModel, samples: Samples, say: ProgressCallback
    ) -> Iterator[tuple[Measurement, dict[str, Any]]]:
        """Metrics, then the judge's numbers; each with the facts about the judge that its row stores."""
        functions = {metric.quantity: metric.function for metric in self.metrics if metric.function is not None}
        for number in measure_samples(samples, self.metrics):
            yield number, {"metric": functions[number.quantity]} if number.quantity in functions else {}
        yield from self._judged(evaluated, samples.tokens, say)

    def _judged(
        self, evaluated: EvaluatedModel, tokens: Int[Tensor, "n L"], say: ProgressCallback
    ) -> list[tuple[Measurement, dict[str, Any]]]:
        if self.judge is None:
            return []
        tokenizer = evaluated.tokenizer
        assert tokenizer is not None
        if self.retokenise:
            texts = [tokenizer.decode(row) for row in tokens.tolist()]
            found = generative_perplexity(texts, self.judge, tokens_per_text=tokens.shape[1], progress=say)
        else:
            found = generative_perplexity(tokens, self.judge, tokenizer=tokenizer, progress=say)
        facts = {"judge": found.judge, "judge_hash": fingerprint(found.judge), "retokenised": found.retokenised}
        return [(number, {**facts, "too_short": found.too_short}) for number in found]


def samplers_of(sampler: Sampler | Callable[[int], Sampler] | None, steps: tuple[int, ...]) -> tuple[Sampler, ...]:
    """The samplers of an evaluation: one, or one for each number of steps; Euler by default."""
    if isinstance(sampler, Sampler):
        return (sampler,)
    return tuple((sampler or Euler)(count) for count in steps)


def etas_of(sampler: Sampler | None, etas: tuple[float, ...]) -> tuple[float, ...]:
    """The η to draw with: only 0 for a sampler without corrector."""
    return etas if sampler is not None and sampler.has_corrector else (0.0,)


def sampler_facts(sampler: Sampler, eta: float) -> dict[str, Any]:
    """What rows store of a sampler; `sampler_label` and `sampler_family` except for plain Euler steps."""
    if sampler.bounded_steps is not None and not sampler.refresh:
        steps = sampler.bounded_steps
        return {"sampler": f"η = {eta:g}, {steps} steps", "eta": eta, "steps": steps}
    facts = {"sampler": f"η = {eta:g}, {sampler.label}", "eta": eta, "steps": getattr(sampler, "steps", None)}
    bounded = {} if sampler.bounded_steps is None else {"bounded": True, "refresh": sampler.refresh}
    bounded |= {"planned": True} if sampler.chooses_positions else {}
    return {**facts, "sampler_label": sampler.label, "sampler_family": sampler.family, **bounded}
