"""Exact transport: dynamic and Kantorovich cost of a coupling, its information, and minibatch couplings."""

from collections.abc import Callable
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..sources import Source
from .bounds import nodes
from .oracle import Oracle
from .space import Joint, Space


def kantorovich_cost(oracle: Oracle, dissimilarity: Float[Tensor, "V V"]) -> float:
    """E_π Σ_i s(x0^i, x1^i), the right-hand side of Theorem 3.1 [theorem1]; s[a, b] is the cost from a to b."""
    if oracle.joint is not None:
        cost = dissimilarity[oracle.joint.x0, oracle.joint.x1].sum(1)
        return float((oracle.joint.weight * cost).sum())
    per_token = oracle.p0_by_position @ dissimilarity  # (L, V): E s(x0^i, b)
    return oracle.mean(per_token[torch.arange(oracle.length), oracle.space.data].sum(1))


def dynamic_cost(oracle: Oracle, dissimilarity: Float[Tensor, "V V"]) -> float:
    """∫ Σ p_t(xt) Σ_i Σ_x u(x, xt) s(xt^i, x) dt for the true velocity of the coupling.

    Eq. (11) [discrete_dynamic_formulation]
    """
    total, masks = 0.0, oracle.flow.vocab.masks
    for moment, weight in nodes(oracle):
        law, marginal = oracle.predictive(moment)
        p = torch.cat([law, law.new_zeros(*law.shape[:-1], masks)], -1)
        u = oracle.velocities(moment, 0.0, p)  # (K, S, L, V)
        paid = (u * dissimilarity[oracle.space.states]).sum((2, 3))
        total += float((weight * moment.per_tau * (marginal * paid).sum(1)).sum())
    return total


def mutual_information(joint: Joint, space: Space) -> float:
    """I(X0; X1) in nats."""
    pi = joint.matrix(space)
    apart = pi.sum(1, keepdim=True) * pi.sum(0, keepdim=True)
    return float(torch.where(pi > 0, pi * (pi / apart).log(), 0.0).sum())


def chosen_rows(
    source: Source, x1: Int[Tensor, "n L"], plan: Callable[[Tensor, Tensor], Float[Tensor, "n n"]]
) -> tuple[Float[Tensor, "n S"], Float[Tensor, " n"]]:
    """π(x0 | x1_j) of a minibatch coupling and its information, by enumeration of all batches of n source rows.

    plan(x0, x1) = T has rows that sum to 1. Returns π(x0 | x1_j), the distribution of the source row that T draws for
    data row j, and E KL(T_j ‖ uniform), the information that bounds KL(π(·|x1_j) ‖ p0).  theory.md §4
    """
    n, length = x1.shape
    space = Space(source.vocab, length)
    law = space.law(source.probs_on(torch.device("cpu"), torch.float64))
    support = law.nonzero()[:, 0].tolist()
    chosen = torch.zeros(n, len(law), dtype=torch.float64)
    information = torch.zeros(n, dtype=torch.float64)
    for rows in product(support, repeat=n):
        ids = torch.tensor(rows)
        chance = law[ids].prod()
        t = plan(space.states[ids], x1).double()
        chosen.index_add_(1, ids, chance * t)
        information += chance * torch.where(t > 0, t * (t * n).log(), 0.0).sum(1)
    return chosen, information
