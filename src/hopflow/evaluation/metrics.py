"""Metrics of samples: one number per sequence, averaged over sequences.

A metric of your own is a function: `evaluate(…, validators=[function])`, see `validators`. To add one to hopflow, write
a function from `Samples` to one number per sequence and add a `SampleMetric` with it to METRICS.
`hopflow eval`, `compare` and `report` then measure, store and show it.

    def longest_word(samples: Samples) -> Tensor: ...

    METRICS = (..., SampleMetric("longest_word", "tokens", longest_word, "longest word"))
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from ..data.tokenizers import Tokenizer
from ..sampling.generation import Generation
from .diversity import distinct, entropy, recent
from .measurement import Measurement


@dataclass(frozen=True, eq=False)
class Samples:
    """Sequences of one length: drawn from a flow, from an autoregressive network, or taken from a text."""

    tokens: Int[Tensor, "n L"]
    generation: Generation | None = None
    """What `generate` returned; None for autoregressive networks and for text."""
    tokenizer: Tokenizer | None = None
    training: Callable[[], Iterable[Int[Tensor, "m L"]]] | None = None
    """Returns all training rows in parts; None where they are not known."""

    @cached_property
    def texts(self) -> list[str]:
        """The sequences as text, each up to its end-of-text token."""
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer that turns samples into text: pass tokenizer=… to hf.evaluate")
        return [self.tokenizer.decode(row) for row in self.sequences]

    @cached_property
    def sequences(self) -> list[tuple[int, ...]]:
        """The tokens of each sequence up to its end-of-text token."""
        return self.up_to_end(self.tokens)

    def up_to_end(self, rows: Int[Tensor, "m L"]) -> list[tuple[int, ...]]:
        """The tokens of each row up to its end-of-text token; without a tokenizer all of them."""
        end = None if self.tokenizer is None else self.tokenizer.end
        return [tuple(row[: row.index(end)] if end in row else row) for row in rows.tolist()]

    def __post_init__(self) -> None:
        if not self.tokens.numel():
            raise ValueError(f"metrics need sequences with at least one token; got shape {tuple(self.tokens.shape)}")


@dataclass(frozen=True)
class SampleMetric:
    """A metric: its name and unit in eval.json, and how to compute it."""

    quantity: str
    unit: str
    per_sequence: Callable[[Samples], Float[Tensor, " n"]]
    """One number per sequence."""
    heading: str | None = None
    """Column heading in tables; None keeps the metric out of tables (it is still in eval.json)."""
    scale: float = 1.0
    """Factor of the mean, such as 1/ln 2 from nats to bits."""
    min_length: int = 1
    """Tokens that a sequence must have."""
    needs_generation: bool = False
    """Whether it reads `samples.generation`, so that it does not apply to text."""
    function: str | None = None
    """`package.module:function` of a user's own metric, which its rows store."""

    def applies_to(self, samples: Samples) -> bool:
        known = samples.generation is not None or not self.needs_generation
        return known and samples.tokens.shape[1] >= self.min_length

    def measure(self, samples: Samples) -> Measurement:
        """The mean over sequences, with its standard error."""
        found = Measurement.mean(self.quantity, self.per_sequence(samples), self.unit)
        return found if self.scale == 1.0 else found.times(self.scale, self.quantity, self.unit)


def _jumps(samples: Samples) -> Float[Tensor, " n"]:
    assert samples.generation is not None
    return samples.generation.jumps.cpu()


def _calls(samples: Samples) -> Int[Tensor, " n"]:
    assert samples.generation is not None
    return samples.generation.calls.cpu()


def _distinct(n: int) -> SampleMetric:
    heading = "distinct 2-grams" if n == 2 else None
    return SampleMetric(f"distinct_{n}", f"of {n}-grams", lambda s: distinct(s.tokens, n), heading, min_length=n)


def _repeated(n: int) -> SampleMetric:
    heading = "repeated 4-grams" if n == 4 else None
    return SampleMetric(f"repeated_{n}", f"of {n}-grams", lambda s: 1 - distinct(s.tokens, n), heading, min_length=n)


def _recent(reach: int) -> SampleMetric:
    return SampleMetric(f"recent_{reach}", "of tokens", lambda s: recent(s.tokens, reach))


def _entropy(samples: Samples) -> Float[Tensor, " n"]:
    return entropy(samples.tokens)


METRICS: tuple[SampleMetric, ...] = (
    SampleMetric("entropy_bits", "bits", _entropy, "entropy, bits", scale=1 / math.log(2)),
    SampleMetric("entropy_nats", "nats", _entropy),
    *(_distinct(n) for n in (1, 2, 3, 4)),
    *(_repeated(n) for n in (1, 2, 3, 4)),
    *(_recent(reach) for reach in (16, 32, 128)),
    SampleMetric("jumps", "hops per sample", _jumps, "hops", needs_generation=True),
    SampleMetric("calls", "network calls per sample", _calls, "network calls", needs_generation=True),
)
"""Every metric, in the order of eval.json and of the tables."""


def metric(quantity: str) -> SampleMetric:
    """The metric with this name."""
    return next(one for one in METRICS if one.quantity == quantity)


def measure_samples(samples: Samples, metrics: Sequence[SampleMetric] = METRICS) -> Iterator[Measurement]:
    """All metrics that apply to these sequences."""
    return (metric.measure(samples) for metric in metrics if metric.applies_to(samples))


def headings() -> dict[str, str]:
    """The column heading of every metric that tables show, by its quantity."""
    return {metric.quantity: metric.heading for metric in METRICS if metric.heading is not None}


def is_shown(quantity: str) -> bool:
    """Whether tables show this quantity; a quantity that is not in METRICS is shown, under its own name."""
    return quantity in headings() or all(metric.quantity != quantity for metric in METRICS)
