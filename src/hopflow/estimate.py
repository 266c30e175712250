"""A number with its error."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from .velocities import Eta


def mean_and_error(values: Shaped[Tensor, " n"]) -> tuple[float, float]:
    """The mean of independent values and its standard error; the error of a single value is unknown: NaN."""
    values = values.cpu().double()  # on the CPU: not every device has float64
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error


def known(value: float) -> float | None:
    """A number as JSON holds it: null (None) for an error that is unknown and a value that is infinite."""
    return value if math.isfinite(value) else None


def for_json(content: Any) -> Any:
    """Nested plain data with None in place of every NaN and infinity."""
    if isinstance(content, Mapping):
        return {key: for_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [for_json(value) for value in content]
    return known(content) if isinstance(content, float) else content


def plus_minus(value: float, error: float, digits: int = 4) -> str:
    """`12.5 ± 0.3`, or `12.5 ± ?` where the error is unknown; `infinite` has none."""
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value:.{digits}g} ± " + ("?" if math.isnan(error) else f"{error:.2g}")


@dataclass(frozen=True)
class Estimate:
    """Nats per sequence, from n independent sequences (or minibatches), and what they may be compared to.

    `stderr` is the error as an estimate for the population the sequences come from; its parts are `draw_stderr`,
    which more draws lower and which is the error for this very set of sequences, and `sequence_stderr`, which only
    more data lowers. Of a single sequence only the error of the draws is known, and NaN where nothing was drawn.
    """

    quantity: str
    nats: float
    stderr: float
    draw_stderr: float
    n: int
    length: int
    """Tokens of a sequence."""
    eta: Eta
    """The corrector of the sampler this number speaks of."""
    is_bound: bool
    calls: int
    """Network calls per sequence."""
    coupling: str = "Independent"
    dtype: str = "float32"
    """What the network computed in, up to its head: `bf16` on a GPU unless asked otherwise, else the type of its
    weights; of a plain function, the type of its logits. A head of float32 weights runs in float32 in any case."""
    freedom: int = 0
    """Degrees of freedom of `stderr`."""
    characters: float | None = None
    """Characters of a sequence, on average."""
    each: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Nats of each of the n, where they are known: for comparisons on the same sequences."""
    diagnostics: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Means over sequences that say how far the estimate can be trusted."""

    @classmethod
    def of(cls, draws: Float[Tensor, "n R"], **what: object) -> "Estimate":
        """From R replicates for each of n independent sequences, averaged per sequence first: they share x1."""
        n, replicates = draws.shape
        draws = draws.double()
        if replicates < 2:
            raise ValueError("an error needs at least 2 independent replicates per sequence; got 1")
        draw_variance = float(draws.var(1).mean()) / (replicates * n)
        if n > 1:
            variance, freedom = float(draws.mean(1).var()) / n, n - 1
        else:  # one sequence: nothing is known of the others
            variance, freedom = draw_variance, replicates - 1
        return cls(
            nats=float(draws.mean()),
            stderr=math.sqrt(variance),
            draw_stderr=math.sqrt(draw_variance),
            n=n,
            freedom=freedom,
            each=tuple(draws.mean(1).tolist()),
            **what,  # type: ignore[arg-type]
        )

    @property
    def sequence_stderr(self) -> float:
        """What is left of the error with endless draws."""
        left = self.stderr**2 - self.draw_stderr**2
        return math.nan if math.isnan(left) else math.sqrt(max(0.0, left))

    @property
    def ppl(self) -> float:
        """Perplexity per token; infinite beyond what a float holds."""
        try:
            return math.exp(self.nats / self.length)
        except OverflowError:
            return math.inf

    @property
    def ppl_stderr(self) -> float:
        return math.nan if math.isinf(self.ppl) else self.ppl * self.stderr / self.length

    @property
    def infinite(self) -> int:
        """How many of the n have infinitely many nats: the network gives them probability 0."""
        return sum(map(math.isinf, self.each))

    @property
    def bits_per_char(self) -> float:
        if self.characters is None:
            raise ValueError(
                "bits per character need the text's length: nll_bound(…, characters=mean characters of a sequence)"
            )
        return self.nats / math.log(2) / self.characters

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval for the nats, by Student's t; all numbers where the error is unknown."""
        if self.freedom < 1 or math.isnan(self.stderr):
            return -math.inf, math.inf
        from scipy.stats import t  # half a second to import, and rarely needed

        half = float(t.ppf((1 + level) / 2, self.freedom)) * self.stderr
        return self.nats - half, self.nats + half

    def __str__(self) -> str:
        eta = "η(t)" if callable(self.eta) else f"{self.eta:g}"
        return (
            f"{self.quantity}: ppl {plus_minus(self.ppl, self.ppl_stderr)} "
            f"({plus_minus(self.nats, self.stderr, 5)} nats per sequence of {self.length}), "
            f"n={self.n}, eta={eta}, {'a bound' if self.is_bound else 'not a bound'}"
        )
