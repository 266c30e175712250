"""Frontier: what a sampler draws, over steps, temperature and η: likely to a judge, varied, and with few hops."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..data.pulse import Progress, Pulse
from ..filters import Filter
from ..models.causal import Causal
from ..sampling import generate
from ..training.streams import stream
from .diversity import diversity
from .generative import generative_perplexity
from .judge import Judge
from .measured import Measured
from .rows import Row, fingerprint
from .sets import TextSet
from .subject import Subject

SAMPLES = "samples"
"""The set that samples are."""
ITSELF = "the text itself"
"""The sampler of text that people wrote."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """n samples at each of these steps, η and temperatures; a causal network has temperatures only."""

    n: int = 64
    steps: tuple[int, ...] = (32,)
    eta: tuple[float, ...] = (0.0, 1.0)
    temperature: tuple[float, ...] = (1.0,)
    judge: Judge | None = None
    retokenise: bool = True
    """Whether the judge reads texts; otherwise it is given ids, which must be of its own vocabulary."""
    seed: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.n < 1 or any(steps < 1 for steps in self.steps):
            raise ValueError(f"n and steps are at least 1; got n={self.n}, steps={self.steps}")
        for temperature in self.temperature:
            Filter(temperature)

    def check(self, subject: Subject) -> None:
        """Find out before anything is drawn whether it could be judged."""
        if self.judge is None:
            return
        if subject.tokenizer is None:
            raise ValueError(f"{subject.name} has no tokenizer, and a judge reads texts: leave the judge out")
        if not self.retokenise and not self.judge.speaks(subject.tokenizer):
            raise ValueError(
                f"the judge {self.judge.identity['name']} has another vocabulary than {subject.name}: it cannot be "
                f"given its ids; with retokenise=true it reads texts"
            )

    def rows(self, subject: Subject, length: int, say: Progress) -> Iterator[Row]:
        """Every number at every point."""
        self.check(subject)
        points = self._points(subject)
        for place, point in enumerate(points, 1):
            what = f"{point['sampler']}, temperature {point['temperature']:g}"
            say(f"drawing {self.n:,} sequences of {length}: {what} ({place} of {len(points)})")
            tokens, numbers, drawn = self._draw(subject, length, point, say)
            point |= {**drawn, "length": length, "seed": self.seed}
            for number, judge in [(number, {}) for number in numbers] + self._judged(subject, tokens, say):
                yield subject.row(SAMPLES, number, **point, **judge)

    def reference(self, subject: Subject, texts: TextSet, say: Progress) -> Iterator[Row]:
        """The same numbers of text that people wrote, to hold the samples against."""
        tokens = texts.shuffled(self.seed).x1[: self.n]
        point = {"sampler": ITSELF, "length": tokens.shape[1], "seed": self.seed, **texts.facts}
        for number, judge in [(number, {}) for number in diversity(tokens)] + self._judged(subject, tokens, say):
            yield subject.row(texts.name, number, eta=None, **point, **judge)

    def _points(self, subject: Subject) -> list[dict[str, Any]]:
        if subject.flow is None:
            return [
                {"sampler": "left to right", "temperature": t, "eta": None, "steps": None} for t in self.temperature
            ]
        return [
            {"sampler": f"η = {eta:g}, {steps} steps", "temperature": temperature, "eta": eta, "steps": steps}
            for steps in self.steps
            for temperature in self.temperature
            for eta in self.eta
        ]

    def _draw(
        self, subject: Subject, length: int, point: dict[str, Any], say: Progress
    ) -> tuple[Int[Tensor, "n L"], list[Measured], dict[str, str]]:
        """Tokens, how varied they are and what they took, and how each was drawn: by what, from a network in what."""
        if subject.flow is None:
            assert isinstance(subject.model, Causal)
            pieces = subject.model.pieces(self.n, length, stream(self.seed, "samples"), point["temperature"])
            drawn = torch.cat([piece.cpu() for piece in pieces])
            return drawn, list(diversity(drawn)), {"draw": "categorical", "dtype": subject.dtype}
        pulse = Pulse(say)
        out = generate(
            subject.model,
            subject.flow,
            n=self.n,
            length=length,
            steps=point["steps"],
            eta=point["eta"],
            temperature=point["temperature"],
            seed=self.seed,
            precision=self.precision,
            progress=lambda done, count: pulse.beat(lambda: f"drawing, {point['sampler']}: {done:,} of {count:,}"),
        )
        took = [Measured.mean("jumps", out.jumps.cpu(), "hops per sample")]
        took += [Measured.mean("calls", out.calls.cpu(), "network calls per sample")]
        tokens = out.tokens.cpu()
        return tokens, [*diversity(tokens), *took], {"draw": out.draw, "dtype": out.precision}

    def _judged(
        self, subject: Subject, tokens: Int[Tensor, "n L"], say: Progress
    ) -> list[tuple[Measured, dict[str, Any]]]:
        """What the judge says, each number with what is recorded of the judge."""
        if self.judge is None:
            return []
        tokenizer = subject.tokenizer
        assert tokenizer is not None
        if self.retokenise:
            texts = [tokenizer.decode(row) for row in tokens.tolist()]
            found = generative_perplexity(texts, self.judge, tokens_per_text=tokens.shape[1], progress=say)
        else:
            found = generative_perplexity(tokens, self.judge, tokenizer=tokenizer, progress=say)
        facts = {"judge": found.judge, "judge_hash": fingerprint(found.judge), "retokenised": found.retokenised}
        return [(number, {**facts, "too_short": found.too_short}) for number in found]
