"""The paper's second bound exactly as printed, Alg. 3 [alg2]."""

from jaxtyping import Int
from torch import Tensor

from ..flow import Flow
from ..network.network import Network
from .estimate import Estimate
from .estimator import BoundEstimator
from .integrands import Integral, LiteralSecond
from .monte_carlo import Draws, Forced


def literal_second_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """The paper's second bound as printed, Alg. 3 [alg2], for a single mask; its mean equals that of the first bound.

    The arguments are those of `nll_bound`. For other sources use nll_bound(eta=1).
    """
    if not (flow.source.disjoint and flow.source.constant):
        raise ValueError(
            f"the literal second bound needs a single-mask source (its backward rate assumes p0 = δ_m), "
            f"got {type(flow.source).__name__}. Use nll_bound(eta=1), which is a bound for every source."
        )
    if not flow.prediction.has_finite_bounds(flow.source):
        raise ValueError(
            f"the second bound is infinite with {type(flow.prediction).__name__}. Use Carry() or Evidence()."
        )
    estimator = BoundEstimator(model, flow, draws, seed, batch, precision=precision)
    parts: list[tuple[Integral, Draws]] = [(LiteralSecond(flow.schedule), Forced(noise=0.4, data=0.4, grade=1.0))]
    return estimator.estimate(x1, parts, labels=labels, quantity="literal_second", eta=0.0, is_bound=True)
