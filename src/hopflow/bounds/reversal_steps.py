"""Log-probabilities of one step of an N-step sampler and of one step of its time reversal, for every position.

Two numbers per row of logits are enough: the odds against the current token, and the probability of the next token
among the other tokens. Everything is in float64, because a path has one factor per step and position.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..flow import Flow
from ..predictions import Evidence
from ..sources import Source
from ..velocities import Eta, eta_at, step_sizes, still_noise
from .x0_posterior import X0Posterior


@dataclass(frozen=True)
class Step:
    """A step from k to k', the same for all rows or one per row."""

    rest: Float[Tensor, "#B #L"]
    """1 - k."""
    after: Float[Tensor, "#B #L"]
    """1 - k'."""
    eta: Float[Tensor, "#B 1"]

    @property
    def sizes(self) -> tuple[Float[Tensor, "#B #L"], Float[Tensor, "#B #L"]]:
        """The probabilities r of a redraw and s of a proposal of the corrector.  theory.md (F_N)"""
        return step_sizes(self.rest, self.rest - self.after, self.eta.expand_as(self.rest))

    @property
    def noised(self) -> Float[Tensor, "#B #L"]:
        """(k'-k)/k', the probability that a data token at k' is noise at k; exactly 1 where k = 0."""
        some = torch.where(self.after < 1, 1 - self.after, 1.0)  # k' may round to 0 at the start of a schedule
        return torch.where(self.after < 1, (self.rest - self.after) / some, 1.0)

    @property
    def swapped(self) -> Float[Tensor, "#B #L"]:
        """s·(1-k)/(1-k'), the probability that the corrector has redrawn a source token of k'."""
        left = torch.where(self.after > 0, self.after, 1.0)
        return torch.where(self.after > 0, self.sizes[1] * self.rest / left, 0.0).clamp(max=1)


class StepTable:
    """The times t = n/N of an N-step sampler, and 1 - k and η at these times."""

    def __init__(self, flow: Flow, steps: int, eta: Eta, device: torch.device) -> None:
        t = torch.arange(steps + 1, dtype=torch.float64) / steps  # n/N, never accumulated
        self.steps = steps
        self.t = t.to(device)
        self.rest = flow.schedule.rest(t[:, None]).to(device)  # (N+1, 1) or (N+1, L)
        self.eta = eta_at(eta, t[:-1])[:, None].to(device)

    def at(self, n: Int[Tensor, " B"] | slice) -> Step:
        """The steps from x_n to x_{n+1}, with one n per row, or for all rows the one of `slice(n, n + 1)`.

        A slice needs no index on the device, for whose copy the host would wait until all earlier work is done.
        """
        after = slice(n.start + 1, n.stop + 1) if isinstance(n, slice) else n + 1
        return Step(self.rest[n], self.rest[after], self.eta[n])


@dataclass(frozen=True)
class TokenOdds:
    """What the logits of a network imply for the current tokens xt and the next tokens."""

    against: Float[Tensor, "B L"]
    """log Σ_{x≠xt} e^{l_x - l_xt}; inf for a mask."""
    share: Float[Tensor, "B L"]
    """log of the probability of the next token among the tokens other than xt; used where they differ."""


def log_kernel(
    flow: Flow, step: Step, xt: Int[Tensor, "B L"], new: Int[Tensor, "B L"], odds: TokenOdds
) -> Float[Tensor, "B L"]:
    """log K[P](new | xt) for every position.  theory.md (F_N)"""
    source, (r, s) = flow.source, step.sizes
    shift = flow.prediction.shift(xt, step.rest.expand(xt.shape), source)
    certain = torch.isinf(shift)
    gap = odds.against - torch.where(certain, 0.0, shift)
    log_other = torch.where(certain, -torch.inf, logsigmoid(gap))  # log(1 - P(xt))
    p0 = source.probs(xt, torch.float64)
    rho, one_minus_rho = still_noise(1 - step.rest, step.rest, p0)
    other = log_other.exp()
    noise = one_minus_rho + rho * other  # 1 - ρP(xt), without cancellation
    moves = r * other + s * noise * (1 - p0)
    # where r + s = 1, in the last step or with a large η, P(xt) may be all that stays, and be far below 1e-16
    log_pt = torch.where(certain, 0.0, logsigmoid(-gap))
    at_least = (1 - r - s).clamp(min=0) + s * noise * p0
    staying = torch.logaddexp(at_least.log(), (r + s * rho).log() + log_pt)
    stays = torch.where(moves < 0.5, torch.log1p(-moves), staying)
    drawn = torch.where(certain, -torch.inf, r.log() + odds.share + log_other)
    corrected = (s * noise * source.probs(new, torch.float64)).log()
    return torch.where(new == xt, stays, torch.logaddexp(drawn, corrected))


class Renoising(ABC):
    """b(x_n | x_{n+1}): each token is redrawn with probability `chance` from a distribution of source tokens."""

    def __init__(self, x: Int[Tensor, "B L"], chance: Float[Tensor, "#B #L"]) -> None:
        self.x, self.chance = x, chance.expand(x.shape)

    @abstractmethod
    def tokens(self, u: Float[Tensor, "B L"], where: Tensor) -> Int[Tensor, "B L"]:
        """The redrawn tokens, by inversion at u; only those at `where` are used."""

    @abstractmethod
    def log_token(self, y: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """The log-probability that a redraw draws y."""

    @property
    @abstractmethod
    def other(self) -> Float[Tensor, "B L"]:
        """The probability that a redraw changes the token."""

    def draw(self, u: Float[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """x_n, by inversion at u: u < chance is a redraw, and u/chance is uniform again."""
        redrawn = u < self.chance
        return torch.where(redrawn, self.tokens(torch.where(redrawn, u / self.chance, 0.0), redrawn), self.x)

    def log_prob(self, y: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """log b(y | x) for every position."""
        stays = torch.log1p(-self.chance * self.other)
        return torch.where(y == self.x, stays, self.chance.log() + self.log_token(y))


class FromSource(Renoising):
    """Redraws from p0, which is exact for independent pairs."""

    def __init__(self, x: Int[Tensor, "B L"], chance: Float[Tensor, "#B #L"], source: Source) -> None:
        super().__init__(x, chance)
        self.source = source

    def tokens(self, u: Float[Tensor, "B L"], where: Tensor) -> Int[Tensor, "B L"]:
        return self.source.at(u)

    def log_token(self, y: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        return self.source.probs(y, torch.float64).log()

    @property
    def other(self) -> Float[Tensor, "B L"]:
        return 1 - self.source.probs(self.x, torch.float64)


class FromPosterior(Renoising):
    """Redraws from p_{0|t}(· | x_{n+1}), which is exact for all pairs at η = 0."""

    def __init__(self, x: Int[Tensor, "B L"], chance: Float[Tensor, "#B #L"], posterior: X0Posterior) -> None:
        super().__init__(x, chance)
        self.posterior = posterior

    def tokens(self, u: Float[Tensor, "B L"], where: Tensor) -> Int[Tensor, "B L"]:
        return self.x.masked_scatter(where, self.posterior.draw(where, u))

    def log_token(self, y: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """Computed where y differs from x; other values are not used."""
        changed = y != self.x
        return torch.zeros_like(y, dtype=torch.float64).masked_scatter(changed, self.posterior.log_prob(changed, y))

    @property
    def other(self) -> Float[Tensor, "B L"]:
        return self.posterior.other


def renoise_from_source(
    flow: Flow, step: Step, x: Int[Tensor, "B L"], odds: TokenOdds | None, gamma: float = 1.0
) -> FromSource:
    """b(x_n | x_{n+1} = x) for independent pairs, from the odds against x by the network.  theory.md (R)

    A data token is redrawn with probability (k'-k)/k', a noise token only by the corrector. The token x is noise with
    probability (1-k')·p0(x)/((1-k')·p0(x) + k'·c(x)), where c is the network's prediction without the evidence of x.
    `gamma` is an exponent of c/p0; 0 is the proposal of B_κ. At k' = 1 all tokens are data, and no odds are needed.
    """
    source = flow.source
    is_data, p0 = source.vocab.is_data(x), source.probs(x, torch.float64)
    if odds is None:
        noise = torch.zeros_like(p0)
    else:
        rest = step.after.expand(x.shape)
        # evidence that the prediction does not add is contained in the logits
        missing = Evidence().shift(x, rest, source) - flow.prediction.shift(x, rest, source)
        against = odds.against + torch.where(torch.isfinite(missing), missing, 0.0)
        # log (p0/c)^γ: 1/c is 1 plus the odds
        log_ratio = gamma * (p0.log() + torch.logaddexp(against, torch.zeros_like(against))) if gamma else 0.0 * p0
        noise = torch.sigmoid(log_ratio + (step.after / (1 - step.after)).log())  # the probability that x is noise
        noise = torch.where(p0 > 0, noise, 0.0)
    noise = torch.where(is_data, noise, 1.0)
    return FromSource(x, step.noised * (1 - noise) + step.swapped * noise, source)
