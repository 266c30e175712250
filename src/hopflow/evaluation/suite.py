"""The suite: everything that is measured of a flow, as rows.

`evaluate` takes a run's folder, or a network with its flow and sequences. Of every test set it gives the bounds, each
with the sampler it speaks of; of samples what a judge says, how varied they are and how often their tokens hopped.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..couplings import Coupling
from ..data.pulse import Progress
from ..data.tokenizers import Tokenizer
from ..flow import Flow
from ..hints import did_you_mean
from ..network import Network, home
from . import sets
from .frontier import Frontier
from .judge import Judge
from .judge import judge as find
from .likelihood import Likelihood
from .rows import Row
from .sets import TextSet
from .stopping import Until
from .subject import Subject
from .travel import Travel


@dataclass(frozen=True, eq=False)
class Suite:
    """What is asked of a subject. The defaults take a minute or two for a network of a laptop's size."""

    data: tuple[str, ...] = ()
    """Files and names of sets; none means what the run's own recipe held out."""
    length: int | None = None
    """Tokens of a sequence, those of the training unless said."""
    detokenise: str = "auto"
    """How word-tokenised sets become running text: auto, as is, words, wikitext."""
    eta: tuple[float, ...] = (0.0, 1.0)
    steps: tuple[int, ...] = (32,)
    coupling: Coupling | str = "own"
    ot_n: int | None = None
    eps: float | None = None
    draws: int = 8
    paths: int = 8
    """Reversed paths per sequence of br, at least 2; 0 leaves it out."""
    batch: int | None = None
    """Sequences per network call of a bound, as many as suit the device unless given."""
    precision: str = "auto"
    """auto, float32 or bf16: what a flow's network computes in, up to its head; `auto` is bf16 on a GPU that has it."""
    error: float = 0.01
    seconds: float = 60.0
    rows: int | None = None
    gen: bool = True
    """Whether samples are drawn at all."""
    n: int = 64
    temperature: tuple[float, ...] = (1.0,)
    judge: Judge | str | os.PathLike[str] | None = None
    retokenise: bool = True
    transport: bool = True
    """Whether jumps and costs along samples, where these are drawn, are held against what the coupling predicts."""
    seed: int = 0

    @classmethod
    def of(cls, keys: dict[str, Any]) -> "Suite":
        """From keys and values; a key that does not exist is named with the nearest one that does."""
        known = [f.name for f in fields(cls)]
        for key in keys:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {did_you_mean(key, known) or 'known: ' + ', '.join(known)}")
        return cls(**{name: _read(name, value) for name, value in keys.items()})

    @property
    def likelihood(self) -> Likelihood:
        until = Until(self.error, self.seconds, self.rows)
        coupled = (self.coupling, self.ot_n, self.eps)
        return Likelihood(
            self.eta, self.steps, *coupled, self.draws, self.paths, self.batch, self.seed, until, self.precision
        )

    def run(
        self, subject: Subject, x1: Int[Tensor, "n L"] | None = None, *, offline: bool = False, progress: Progress
    ) -> Iterator[Row]:
        """All rows, one after the other; whatever cannot be done is found out before the first."""
        self._check(subject, x1)
        likelihood, frontier = self.likelihood, self._frontier(subject, offline, progress)
        frontier.check(subject)
        asked = self._sets(subject, x1, offline, progress)
        for texts in asked:
            likelihood.questions(subject, len(texts.x1))
        for texts in asked:
            yield from likelihood.rows(subject, texts, progress)
            yield from frontier.reference(subject, texts, progress) if self.gen else ()
        if self.gen:
            yield from frontier.rows(subject, asked[0].x1.shape[1], progress)
        if self.gen and self.transport:
            yield from Travel(self.n, max(self.steps, default=32), self.seed, self.precision).rows(
                subject, asked[0], progress
            )

    def _check(self, subject: Subject, x1: Int[Tensor, "n L"] | None) -> None:
        """Refuse what would not be heeded."""
        if x1 is not None and self.data:
            raise ValueError("data= and x1 are two texts: pass one of them")
        if not self.data and (self.length is not None or self.detokenise != "auto"):
            raise ValueError("length and detokenise say how data=… is read, and there is none; leave them out")
        if self.judge is not None and not self.gen:
            raise ValueError("a judge reads samples, and gen=false draws none: leave one of them out")
        if self.ot_n is not None and (subject.flow is None or self.likelihood.test_coupling(subject.flow) is None):
            raise ValueError("ot_n counts the rows of a coupling, and there is none: pass coupling=exact or sinkhorn")

    def _frontier(self, subject: Subject, offline: bool, progress: Progress) -> Frontier:
        judge = self.judge if self.gen else None
        if not (judge is None or isinstance(judge, Judge)):
            progress(f"reading the judge {os.fspath(judge)}")
            judge = find(judge, device=home(subject.model), offline=offline, progress=progress)
        return Frontier(
            self.n, self.steps, self.eta, self.temperature, judge, self.retokenise, self.seed, self.precision
        )

    def _sets(
        self, subject: Subject, x1: Int[Tensor, "n L"] | None, offline: bool, progress: Progress
    ) -> list[TextSet]:
        if x1 is not None:
            return [_own(x1, subject.tokenizer)]
        if not self.data:
            return [sets.held_out(subject, offline=offline, progress=progress)]
        how: dict[str, Any] = {"length": self.length, "detokenise": self.detokenise}
        return [sets.named(word, subject, offline=offline, progress=progress, **how) for word in self.data]


def evaluate(
    what: str | os.PathLike[str] | Network,
    flow: Flow | None = None,
    x1: Int[Tensor, "n L"] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    device: str = "cpu",
    offline: bool = False,
    progress: Progress | None = None,
    **keys: Any,
) -> list[Row]:
    """Every number of a run's folder, or of a network with its flow and test sequences x1; by keys of `Suite`.

    A `Causal` network needs no flow. Nothing is written; `hopflow eval` keeps the rows in the run's folder.
    """
    say = progress or (lambda text: None)
    suite = Suite.of(keys)
    if isinstance(what, str | os.PathLike):
        if flow is not None or x1 is not None or tokenizer is not None:
            raise ValueError("a run's folder has its own flow, tokenizer and text: pass data=…, or a network in memory")
        return list(suite.run(Subject.load(what, device), offline=offline, progress=say))
    if x1 is None:
        raise ValueError("a network in memory is evaluated on sequences: evaluate(model, flow, x1)")
    return list(suite.run(Subject(what, flow, tokenizer=tokenizer), x1, offline=offline, progress=say))


SEVERAL, REAL = ("data", "eta", "steps", "temperature"), ("eta", "temperature", "eps", "error", "seconds")
"""Keys that may hold several values, and those whose values are real numbers: 1 is 1.0 there."""


def _read(name: str, value: Any) -> Any:
    if name not in SEVERAL:
        return float(value) if name in REAL and value is not None else value
    many = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(float(part) if name in REAL else part for part in many)


def _own(x1: Int[Tensor, "n L"], tokenizer: Tokenizer | None) -> TextSet:
    if x1.ndim != 2 or x1.numel() == 0:
        raise ValueError(f"there is nothing to evaluate: x1 must be (sequences, length); got {tuple(x1.shape)}")
    if tokenizer is None:
        return TextSet("x1", x1)
    spoken = [tokenizer.decode([i for i in row if i != tokenizer.end]) for row in x1.tolist()]
    return TextSet("x1", x1, torch.tensor([float(len(text)) for text in spoken], dtype=torch.float64))
