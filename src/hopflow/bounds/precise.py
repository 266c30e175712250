"""Precise perplexity, Theorem A.2 [precise-perplexity-theorem]: an approximation of -log p_θ(x1), not a bound."""

from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow
from ..network.network import Network
from .estimate import Estimate
from .estimator import BoundEstimator, choose_draws, only_first_redraws_count
from .integrands import Integral, Precise
from .monte_carlo import Draws


def precise_perplexity(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    by: Draws | None = None,
    unigram: Float[Tensor, " Vd"] | None = None,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """`precise`: -log p_θ(x1) at η = 0, with the ratios of p_θ that the network implies in place of the true ones.

    Theorem A.2 [precise-perplexity-theorem], conditioned on x1 only; theory.md (PP). It is exact if the logits do not
    depend on the context or the network is perfect. Otherwise it may be above or below the exact value: it is *not* a
    bound. With a disjoint source it equals b0, draw by draw. The arguments are those of `nll_bound`.
    """
    if not flow.prediction.has_finite_bounds(flow.source):
        raise ValueError(
            f"the precise perplexity is infinite with {type(flow.prediction).__name__} and "
            f"{type(flow.source).__name__}, like b0. Use prediction=Evidence()."
        )
    estimator = BoundEstimator(model, flow, draws, seed, batch, unigram, precision)
    parts: list[tuple[Integral, Draws]] = [
        (Precise(flow.schedule), choose_draws(by, count_is_exact=only_first_redraws_count(flow)))
    ]
    return estimator.estimate(
        x1, parts, labels=labels, quantity="precise", eta=0.0, is_bound=False, characters=characters
    )
