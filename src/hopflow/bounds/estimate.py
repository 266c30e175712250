"""Estimate: a number with its standard error, and how both are printed and stored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..velocities import Eta


def mean_and_error(values: Shaped[Tensor, " n"]) -> tuple[float, float]:
    """The mean of independent values and its standard error, which is NaN for a single value."""
    values = values.cpu().double()  # on the CPU, because not every device has float64
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error


def known(value: float) -> float | None:
    """The value for JSON: None (null) in place of NaN and infinity."""
    return value if math.isfinite(value) else None


def for_json(content: Any) -> Any:
    """Nested plain data for JSON, with None in place of NaN and infinity."""
    if isinstance(content, Mapping):
        return {key: for_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [for_json(value) for value in content]
    return known(content) if isinstance(content, float) else content


def plus_minus(value: float, error: float, digits: int = 4) -> str:
    """A number with its error as text: `12.5 ± 0.3`, `12.5 ± ?` for an unknown error, or `infinite`.

    >>> plus_minus(12.5, 0.3)
    '12.5 ± 0.3'
    """
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value:.{digits}g} ± " + ("?" if math.isnan(error) else f"{error:.2g}")


@dataclass(frozen=True)
class Estimate:
    """Nats per sequence from n independent sequences (or minibatches), with standard errors.

    `stderr` is the error as an estimate for the population of the sequences. It consists of `draw_stderr`, the error
    for this set of sequences, which more draws lower, and `sequence_stderr`, which only more data lowers. For a single
    sequence only the error of the draws is known; it is NaN if nothing was drawn.
    """

    quantity: str
    nats: float
    stderr: float
    draw_stderr: float
    n: int
    length: int
    """Tokens per sequence."""
    eta: Eta
    """The η of the sampler that this number refers to."""
    is_bound: bool
    calls: int
    """Network calls per sequence."""
    coupling: str = "Independent"
    dtype: str = "float32"
    """Float type of the network up to its head: `bf16` on a GPU by default, else the type of its weights; for a plain
    function, the type of its logits. A head with float32 weights always runs in float32."""
    freedom: int = 0
    """Degrees of freedom of `stderr`."""
    characters: float | None = None
    """Mean number of characters of a sequence."""
    each: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Nats of each sequence if they are known, for comparisons on the same sequences."""
    diagnostics: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Further means over sequences that show how reliable the estimate is."""
    is_exact: bool = False
    """Whether the nats of a sequence are its exact negative log-likelihood; then nothing is drawn."""

    @classmethod
    def of(cls, draws: Float[Tensor, "n R"], **what: object) -> "Estimate":
        """From R replicates for each of n independent sequences; they share x1, so they are averaged per sequence."""
        n, replicates = draws.shape
        draws = draws.double()
        if replicates < 2:
            raise ValueError("draws must contain at least 2 independent replicates per sequence, got 1.")
        draw_variance = float(draws.var(1).mean()) / (replicates * n)
        if n > 1:
            variance, freedom = float(draws.mean(1).var()) / n, n - 1
        else:  # one sequence: the spread over sequences is unknown
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

    @classmethod
    def exact(cls, nats: Float[Tensor, " n"], **what: object) -> "Estimate":
        """From the exact negative log-likelihoods of n independent sequences."""
        mean, error = mean_and_error(nats)
        return cls(
            nats=mean,
            stderr=error,
            draw_stderr=0.0,
            n=len(nats),
            freedom=len(nats) - 1,
            each=tuple(nats.tolist()),
            is_bound=False,
            is_exact=True,
            **what,  # type: ignore[arg-type]
        )

    def of_rows(self, rows: Sequence[int]) -> "Estimate":
        """The estimate for some of the sequences, at least two, from their values in `each`."""
        values = [self.each[row] for row in rows]
        nats, stderr = mean_and_error(torch.tensor(values, dtype=torch.float64))
        draws = self.draw_stderr * math.sqrt(self.n / len(rows))
        found = {"nats": nats, "stderr": stderr, "draw_stderr": draws, "n": len(rows), "freedom": len(rows) - 1}
        return replace(self, **found, each=tuple(values))  # type: ignore[arg-type]

    @property
    def sequence_stderr(self) -> float:
        """The standard error in the limit of infinitely many draws."""
        left = self.stderr**2 - self.draw_stderr**2
        return math.nan if math.isnan(left) else math.sqrt(max(0.0, left))

    @property
    def ppl(self) -> float:
        """Perplexity per token; infinite if it overflows."""
        try:
            return math.exp(self.nats / self.length)
        except OverflowError:
            return math.inf

    @property
    def ppl_stderr(self) -> float:
        """Standard error of the perplexity."""
        return math.nan if math.isinf(self.ppl) else self.ppl * self.stderr / self.length

    @property
    def infinite(self) -> int:
        """Number of sequences with infinitely many nats: the network assigns them probability 0."""
        return sum(map(math.isinf, self.each))

    @property
    def bits_per_char(self) -> float:
        """Bits per character; needs `characters`."""
        if self.characters is None:
            raise ValueError(
                "bits_per_char needs the mean number of characters of a sequence: pass characters=… to the function "
                "that returned this estimate."
            )
        return self.nats / math.log(2) / self.characters

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the nats by Student's t distribution; (-inf, inf) if the error is unknown."""
        if self.freedom < 1 or math.isnan(self.stderr):
            return -math.inf, math.inf
        from scipy.stats import t  # slow to import and rarely needed

        half = float(t.ppf((1 + level) / 2, self.freedom)) * self.stderr
        return self.nats - half, self.nats + half

    def __str__(self) -> str:
        eta = "η(t)" if callable(self.eta) else f"{self.eta:g}"
        return (
            f"{self.quantity}: ppl {plus_minus(self.ppl, self.ppl_stderr)} "
            f"({plus_minus(self.nats, self.stderr, 5)} nats per sequence of {self.length}), "
            f"n={self.n}, eta={eta}, {'exact' if self.is_exact else 'a bound' if self.is_bound else 'not a bound'}"
        )
