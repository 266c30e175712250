"""Suite: all measurements of an evaluation, as rows.

`evaluate` takes a run folder, or a network with its flow and sequences. It returns bounds on every test set, each with
the sampler that it bounds, and for samples the score of a judge, metrics such as their entropy, and their hops.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..couplings import Coupling
from ..data.tokenizers import Tokenizer
from ..flow import Flow
from ..network.network import Network, check_labels, device_of
from ..sampling.samplers import Sampler
from ..system.hints import did_you_mean
from ..system.progress import ProgressCallback
from . import sets
from .evaluated_model import EvaluatedModel
from .judge import Judge
from .likelihood import LikelihoodEvaluation
from .load_judge import judge as load_judge
from .metrics import METRICS, SampleMetric
from .rows import Row
from .sample_rows import SampleEvaluation, samplers_of
from .sets import TextSet
from .stopping import StoppingRule
from .transport_rows import TransportEvaluation
from .validators import as_metrics


@dataclass(frozen=True, eq=False)
class Suite:
    """The settings of an evaluation. The defaults take a minute or two for a small network on a CPU."""

    data: tuple[str, ...] = ()
    """Files and names of test sets; by default the held-out text of the run."""
    length: int | None = None
    """Tokens per sequence of `data`; by default as in training."""
    detokenise: str = "auto"
    """How word-tokenized sets are turned into plain text: auto, none, words or wikitext."""
    eta: tuple[float, ...] = (0.0, 1.0)
    """Corrector strengths of samplers and bounds; a sampler without corrector draws with η = 0 only."""
    steps: tuple[int, ...] = (32,)
    """Sampling steps; also those of the bounds bn and br, which bound Euler samplers."""
    sampler: Sampler | Callable[[int], Sampler] | None = None
    """The sampler of the samples, or a function from steps to a sampler; by default `Euler`."""
    coupling: Coupling | str = "own"
    """Coupling of the quantity `coupled`: own (as in training), exact, sinkhorn, none, or a Coupling."""
    ot_n: int | None = None
    """Sequences per OT batch of `coupling`; None: as in training."""
    eps: float | None = None
    """Entropic regularization of sinkhorn; None: as in training."""
    draws: int = 8
    """Monte Carlo draws per sequence and bound."""
    paths: int = 8
    """Reversed paths per sequence of br, ≥ 2; 0 leaves br out."""
    batch: int | None = None
    """Sequences per network call of a bound; None chooses by the device."""
    precision: str = "auto"
    """auto, float32 or bf16: dtype of the network of a flow, up to its head; auto is bf16 on a GPU that has it."""
    error: float = 0.01
    """Stop a bound at this relative standard error of the perplexity."""
    seconds: float = 60.0
    """Time limit in seconds for the bounds of one test set."""
    rows: int | None = None
    """Largest number of sequences per bound; None: all."""
    gen: bool = True
    """Whether to draw samples."""
    n: int = 64
    """Number of samples for each sampler."""
    temperature: tuple[float, ...] = (1.0,)
    judge: Judge | str | os.PathLike[str] | None = None
    """Language model that scores the samples: a Judge, or a name for `hf.judge`; None: no score."""
    retokenise: bool = True
    """True: the judge tokenizes the texts itself; False: it scores the token ids."""
    metrics: tuple[SampleMetric, ...] = METRICS
    """The metrics of samples."""
    validators: tuple[Any, ...] = ()
    """Further metrics: functions of the samples, names of `validators.EXAMPLES`, or `package.module:function`."""
    transport: bool = True
    """Whether to compare hops and costs of the samples with the prediction of the coupling."""
    seed: int = 0

    @classmethod
    def of(cls, keys: dict[str, Any]) -> "Suite":
        """A suite from keys and values; an unknown key is an error that names the nearest known one."""
        known = [f.name for f in fields(cls)]
        for key in keys:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {did_you_mean(key, known) or 'known: ' + ', '.join(known)}")
        return cls(**{name: _read(name, value) for name, value in keys.items()})

    @property
    def likelihood(self) -> LikelihoodEvaluation:
        return LikelihoodEvaluation(
            eta=self.eta,
            steps=self.steps,
            sampler=self.sampler,
            coupling=self.coupling,
            ot_n=self.ot_n,
            eps=self.eps,
            draws=self.draws,
            paths=self.paths,
            batch=self.batch,
            seed=self.seed,
            stopping=StoppingRule(self.error, self.seconds, self.rows),
            precision=self.precision,
        )

    def run(
        self,
        evaluated: EvaluatedModel,
        x1: Int[Tensor, "n L"] | None = None,
        *,
        labels: Int[Tensor, " n"] | None = None,
        offline: bool = False,
        progress: ProgressCallback,
    ) -> Iterator[Row]:
        """All rows, one after the other; settings that cannot work raise an error before the first row."""
        self._check(evaluated, x1)
        likelihood, samples = self.likelihood, self._samples(evaluated, offline, progress)
        samples.check(evaluated)
        sets_ = self._sets(evaluated, x1, labels, offline, progress)
        for texts in sets_:
            likelihood.estimators(evaluated, len(texts.x1))
        samples.check_samplers(evaluated, sets_[0].x1.shape[1])
        samples.check_metrics(evaluated, sets_[0])
        for texts in sets_:
            yield from () if texts.padded else likelihood.rows(evaluated, texts, progress)
            yield from samples.reference(evaluated, texts, progress) if self.gen else ()
        if self.gen:
            yield from samples.rows(evaluated, sets_[0], progress)
        if self.gen and self.transport and not sets_[0].padded:
            (sampler,) = samplers_of(self.sampler, (max(self.steps, default=32),))
            transport = TransportEvaluation(self.n, sampler, self.seed, self.precision)
            yield from transport.rows(evaluated, sets_[0], progress)

    def _check(self, evaluated: EvaluatedModel, x1: Int[Tensor, "n L"] | None) -> None:
        """Refuse settings that would have no effect."""
        if x1 is not None and self.data:
            raise ValueError("pass either data= or x1, not both")
        if not self.data and (self.length is not None or self.detokenise != "auto"):
            raise ValueError("length and detokenise are settings of data=…, which is missing: leave them out")
        if self.judge is not None and not self.gen:
            raise ValueError("a judge scores samples, and gen=false draws none: leave one of them out")
        if self.validators and not self.gen:
            raise ValueError("a metric measures samples, and gen=false draws none: leave one of them out")
        samplers = samplers_of(self.sampler, self.steps)
        if self.sampler is not None and not self.gen and not any(one.has_own_likelihood for one in samplers):
            raise ValueError("a sampler draws samples, and gen=false draws none: leave one of them out")
        if self.sampler is not None and evaluated.flow is None:
            raise ValueError("an autoregressive network draws from left to right: leave sampler out")
        if self.ot_n is not None and (evaluated.flow is None or self.likelihood.test_coupling(evaluated.flow) is None):
            raise ValueError("ot_n is a setting of a coupling, and there is none: pass coupling=exact or sinkhorn")

    def _samples(self, evaluated: EvaluatedModel, offline: bool, progress: ProgressCallback) -> SampleEvaluation:
        judge = self.judge if self.gen else None
        if not (judge is None or isinstance(judge, Judge)):
            progress(f"loading the judge {os.fspath(judge)}")
            judge = load_judge(judge, device=device_of(evaluated.model), offline=offline, progress=progress)
        return SampleEvaluation(
            n=self.n,
            steps=self.steps,
            eta=self.eta,
            temperature=self.temperature,
            judge=judge,
            retokenise=self.retokenise,
            seed=self.seed,
            precision=self.precision,
            sampler=self.sampler,
            metrics=(*self.metrics, *as_metrics(self.validators, self.metrics)),
        )

    def _sets(
        self,
        evaluated: EvaluatedModel,
        x1: Int[Tensor, "n L"] | None,
        labels: Int[Tensor, " n"] | None,
        offline: bool,
        progress: ProgressCallback,
    ) -> list[TextSet]:
        if x1 is not None:
            check_labels(evaluated.model, labels, len(x1))
            return [replace(_rows_as_set(x1, evaluated.tokenizer), labels=labels)]
        if not self.data:
            return [sets.held_out(evaluated, offline=offline, progress=progress)]
        how: dict[str, Any] = {"length": self.length, "detokenise": self.detokenise}
        return [sets.named(word, evaluated, offline=offline, progress=progress, **how) for word in self.data]


def evaluate(
    what: str | os.PathLike[str] | Network,
    flow: Flow | None = None,
    x1: Int[Tensor, "n L"] | None = None,
    *,
    labels: Int[Tensor, " n"] | None = None,
    tokenizer: Tokenizer | None = None,
    device: str = "cpu",
    offline: bool = False,
    progress: ProgressCallback | None = None,
    **keys: Any,
) -> list[Row]:
    """Evaluate a run folder, or a network with its flow and test sequences x1.

    Keywords are the fields of `hopflow.evaluation.suite.Suite`.

    `labels` has the label of each sequence of x1, for a network with labels: bounds are then on -log p(x1 | label).
    An autoregressive network (`Causal`) needs no flow. Nothing is written; `hopflow eval` stores the rows in the run
    folder. `sampler=` takes any `Sampler`:

        hf.evaluate(model, flow, x1, sampler=hf.RandomOrder())
        hf.evaluate(model, flow, x1, sampler=lambda steps: hf.Euler(steps, hf.CosineGrid()), steps=(8, 16))

    `validators=[function]` adds metrics: functions from `Samples` to one number per sequence.
    """
    say = progress or (lambda text: None)
    suite = Suite.of(keys)
    if isinstance(what, str | os.PathLike):
        if any(given is not None for given in (flow, x1, labels, tokenizer)):
            raise ValueError("a run folder has its own flow, tokenizer and text: pass data=…, or a network in memory")
        return list(suite.run(EvaluatedModel.load(what, device, offline=offline), offline=offline, progress=say))
    if x1 is None:
        raise ValueError("a network in memory needs test sequences: evaluate(model, flow, x1)")
    evaluated = EvaluatedModel(what, flow, tokenizer=tokenizer)
    return list(suite.run(evaluated, x1, labels=labels, offline=offline, progress=say))


SEVERAL = ("data", "eta", "steps", "temperature", "metrics", "validators")
"""Fields with several values; a single value is accepted as well."""
REAL = ("eta", "temperature", "eps", "error", "seconds")
"""Fields whose values become floats."""


def _read(name: str, value: Any) -> Any:
    if name not in SEVERAL:
        return float(value) if name in REAL and value is not None else value
    many = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(float(part) if name in REAL else part for part in many)


def _rows_as_set(x1: Int[Tensor, "n L"], tokenizer: Tokenizer | None) -> TextSet:
    if x1.ndim != 2 or x1.numel() == 0:
        raise ValueError(f"x1 must have shape (sequences, length) and not be empty, got {tuple(x1.shape)}")
    if tokenizer is None:
        return TextSet("x1", x1)
    decoded = [tokenizer.decode([i for i in row if i != tokenizer.end]) for row in x1.tolist()]
    return TextSet("x1", x1, torch.tensor([float(len(text)) for text in decoded], dtype=torch.float64))
