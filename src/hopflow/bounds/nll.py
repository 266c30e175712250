"""Bounds on -log p_θ(x1), the negative log-likelihood of a sequence, for x0 drawn independently of x1.

Each bound holds for the samples of one sampler: `nll_bound(eta=η)` for samples drawn with this η (and N steps if
steps=N), `kappa_bound` for samples drawn with η = 0. The coupling used for training does not matter here.

b0 is `nll_bound(eta=0)`, b1 is `nll_bound(eta=1)`, bn is `nll_bound(steps=N)`, bk is `kappa_bound`.
"""

import math
import numbers

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow, check_network
from ..network.network import Network
from ..network.precision import widest_float
from ..sources import Source
from ..velocities import Eta, check_refresh, eta_at
from .estimate import Estimate
from .estimator import BoundEstimator, choose_draws, only_first_redraws_count
from .integrands import Integral, LastStep, Proposal, Rates, Steps
from .monte_carlo import Draws, Forced


def nll_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    eta: Eta = 0.0,
    steps: int | None = None,
    refresh: float | int = 0.0,
    end: float = 0.0,
    draws: int = 16,
    by: Draws | None = None,
    unigram: Float[Tensor, " Vd"] | None = None,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """Upper bound on -log p_θ(x1), where p_θ is the distribution of samples drawn with this η.

    `eta=0` is b0 and `eta=1` is b1, theory.md (B). With `steps=N` it is bn, theory.md (B_N), the
    bound for samples of `Euler(N)`; with `refresh=R` as well, for samples of `Euler(N, refresh=R)`.
    `end=δ` bounds the continuous sampler that stops at 1-k = δ and redraws every position once there.

    draws: random points per sequence. They form at least two independent replicates per sequence, and at least 16 over
    all sequences; the error is computed from these.
    by: how the points are drawn (`Count`, `Forced`); the best method by default.
    unigram: token counts or frequencies, for one more control variate of b1.
    characters: mean number of characters of a sequence, needed for bits per character.
    batch: sequences per network call; a value that suits the device by default. It does not change the result.
    precision: float type of the network up to its head (the head runs in float32). `auto` is bf16 on a GPU that
    supports it, as in `generate`. The estimate's `dtype` names the type that was used.
    labels: the label of each sequence, for a network with labels: the bound is on -log p_θ(x1 | label).

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Mask(hf.Vocab(2, masks=1)))
    >>> def network(xt, t):  # a model that predicts both tokens with probability 1/2
    ...     return torch.zeros(*xt.shape, 2)
    >>> bound = hf.nll_bound(network, flow, torch.tensor([[0, 1, 1], [1, 0, 1]]))
    >>> print(f"{bound.nats:.4f} nats per sequence, perplexity {bound.ppl:.4f}")
    2.0794 nats per sequence, perplexity 2.0000
    """
    check_network(model, flow)
    _check_sampler(flow, eta, steps, refresh, end)
    if unigram is not None and (eta != 1 or steps is not None or end > 0):
        raise ValueError(
            "unigram applies to eta=1 in continuous time only: pass eta=1 without steps and end, or no unigram."
        )
    by = choose_draws(by, count_is_exact=steps is None and end == 0 and only_first_redraws_count(flow))
    integral: Integral = Rates(flow.schedule, eta, end) if steps is None else Steps(flow.schedule, steps, eta, refresh)
    parts = [(integral, by)]
    if end > 0:
        parts.append((LastStep(flow.schedule, end), Forced(noise=0.0, grade=1.0)))
    name = "bn" if steps is not None else "b_eta" if callable(eta) else f"b{eta:g}"
    estimator = BoundEstimator(model, flow, draws, seed, batch, unigram, precision)
    return estimator.estimate(x1, parts, quantity=name, eta=eta, is_bound=True, characters=characters, labels=labels)


def _check_sampler(flow: Flow, eta: Eta, steps: int | None, refresh: float | int, end: float) -> None:
    """Raise ValueError if the bound of this sampler does not exist or is infinite."""
    eta_at(eta, torch.zeros(1))  # raises ValueError if η is negative or infinite
    if not 0 <= end < 1:
        raise ValueError(f"end, the 1-k at which the sampler stops, must be ≥ 0 and < 1, got {end}.")
    if steps is not None and not (isinstance(steps, numbers.Integral) and steps >= 1):
        raise ValueError(f"steps must be an integer ≥ 1, got {steps!r}.")
    check_refresh(refresh, steps)
    if steps is None and end == 0 and not flow.prediction.has_finite_bounds(flow.source):
        raise ValueError(
            f"the continuous-time bound is infinite with {type(flow.prediction).__name__} and "
            f"{type(flow.source).__name__}, because this prediction redraws tokens until t = 1. Pass steps=N for the "
            f"bound of the N-step sampler, or end=1e-3 to stop there and redraw once, or use Evidence()."
        )
    if steps is not None and end > 0:
        raise ValueError("steps=N and end=δ describe different samplers: pass only one of them.")
    if end > 0 and not flow.schedule.shared:
        raise ValueError("end=δ needs one schedule for all positions; with position-specific schedules pass steps=N.")


def kappa_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """`bk`: another bound for the sampler with η = 0, if the source draws exactly the data tokens.  theory.md (B_κ)

    It is nearly tight where tokens are distributed as in the source, and may be looser than b0 on other data. The
    arguments are those of `nll_bound`.
    """
    if not flow.source.full:
        raise ValueError(
            f"B_κ needs a source that draws every data token and no mask; {type(flow.source).__name__} does not. "
            f"For a disjoint source use nll_bound(eta=0), which is tight; for Mixed, reversal_bound; for "
            "BagOfWords, BagOfWords.of(vocab, tokens, smoothing=1)."
        )
    if not flow.prediction.has_finite_bounds(flow.source):
        raise ValueError(f"B_κ is infinite with {type(flow.prediction).__name__}. Use prediction=Evidence().")
    estimator = BoundEstimator(model, flow, draws, seed, batch, precision=precision)
    parts: list[tuple[Integral, Draws]] = [(Proposal(flow.schedule), Forced())]
    start = proposal_start(flow.source, x1).sum(1)
    return estimator.estimate(x1, parts, start, labels, quantity="bk", eta=0.0, is_bound=True, characters=characters)


def proposal_start(source: Source, x1: Int[Tensor, "n L"]) -> Float[Tensor, "n L"]:
    """KL(κ_0δ_x1 + (1-κ_0)p0 ‖ p0) at κ_0 = 1/e for every position.  theory.md (B_κ)"""
    p0, kappa = source.probs(x1, widest_float(x1.device)), math.exp(-1)
    hit = kappa + (1 - kappa) * p0
    return hit * torch.log(hit / p0) + (1 - p0) * (1 - kappa) * math.log(1 - kappa)
