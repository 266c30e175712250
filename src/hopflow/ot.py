"""Optimal transport between two sets of rows of equal size: pure functions on a cost matrix."""

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assignment(cost: Float[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """The permutation σ that minimises Σ_i cost[i, σ(i)].

    Exact, because with equal uniform marginals a vertex is optimal.
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"an assignment pairs as many rows as columns; got a cost of shape {tuple(cost.shape)}")
    if not bool(torch.isfinite(cost).all()):
        raise ValueError("the transport cost has NaN or infinite entries; look at the embeddings or the cost function")
    _, columns = linear_sum_assignment(cost.detach().cpu().double().numpy())
    return torch.from_numpy(columns).to(cost.device)
