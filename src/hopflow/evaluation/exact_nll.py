"""The exact -log p of a test set: of a causal network, and of the samples that a planner draws."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds.estimate import Estimate
from ..flow import Flow
from ..models.causal import Causal
from ..network.network import Network, evaluation_mode
from ..runs.rng import stream_seed
from ..sampling.planned_nll import planned_nll
from ..sampling.planners import Planner
from .by_label import Labels

Estimator = Callable[[Int[Tensor, "m L"], int, Labels], list[Estimate]]
"""estimate(sequences, turn, labels): each turn has its own draws, where there are any."""


def causal_nll(model: Causal, batch: int) -> Estimator:
    """The exact -log p of a causal network, without draws."""

    def estimate(x1: Int[Tensor, "m L"], turn: int, labels: Labels = None) -> list[Estimate]:
        with evaluation_mode(model):
            nats = torch.cat([model.nll(rows) for rows in x1.split(batch)]).cpu().double()
        dtype = str(model.start.dtype).removeprefix("torch.")
        return [Estimate.exact(nats, quantity="nll", length=x1.shape[1], eta=0.0, calls=1, dtype=dtype)]

    return estimate


def planner_nll(model: Network, flow: Flow, sampler: Planner, *, seed: int, **keys: Any) -> Estimator:
    """`planned`, the likelihood of a planner's samples; from one mask there are no draws."""

    def estimate(x1: Int[Tensor, "m L"], turn: int, labels: Labels = None) -> list[Estimate]:
        draws = {"seed": stream_seed(seed, "planned", turn), **keys}
        return [planned_nll(model, flow, x1, sampler, labels=labels, **draws)]

    return estimate
