"""Exact bounds, per data sequence, by quadrature over time and enumeration of everything else."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..velocities import Eta, check_refresh, eta_at, neighbour_ratio, refresh_chances
from .oracle import CHUNK, EDGE, Moment, Oracle, along

MAX_TAU = 300.0
"""τ at which an integral that has not converged is taken as infinite: 1-k = 5e-131."""


def bound(
    oracle: Oracle, eta: Eta = 0.0, steps: int | None = None, end: float = 0.0, refresh: float | int = 0.0
) -> Float[Tensor, " D"]:
    """B_η(x1), or B_N(x1) with steps=N, of every data sequence; inf if it diverges.

    With refresh=R the bound of the N-step sampler that refreshes positions.
    With end=δ the bound of the sampler that stops at 1-k = δ and redraws every position once.
    """
    check_refresh(refresh, steps)
    if steps is not None:
        return _steps_bound(oracle, eta, steps, refresh)
    if end == 0:
        return _extended_integral(oracle, partial(_rate_terms, oracle, eta))
    stop = math.log((1 - end) / end)
    total, _ = _integral(oracle, partial(_rate_terms, oracle, eta), -EDGE, stop)
    last = oracle.moment(torch.tensor([stop], dtype=torch.float64))
    return total + _mean_given_x1(oracle, last.rest, -oracle.probs(last)[..., : oracle.flow.vocab.data].log())[0]


def kappa_bound(oracle: Oracle) -> Float[Tensor, " D"]:
    """B_κ(x1) for η = 0 and a full-support source.  theory.md (B_κ)"""
    flow, space = oracle.flow, oracle.space
    if not flow.source.full:
        raise ValueError(
            "B_κ needs a source whose support is exactly the data tokens. For a disjoint source use bound(oracle)."
        )
    p0, eye = oracle.p0_by_position, torch.eye(flow.vocab.size, dtype=torch.float64)
    k0 = math.exp(-1)
    mix = k0 * eye[: flow.vocab.data] + (1 - k0) * p0[:, None]  # (L, Vd, V), a row per position and x1^i
    start = torch.where(mix > 0, mix * (mix / p0[:, None]).log(), 0.0).sum(2)  # (L, Vd)
    total = start[torch.arange(oracle.length), space.data].sum(1)
    return total + _extended_integral(oracle, partial(_proposal_terms, oracle))


def coupled(oracle: Oracle) -> float:
    """The paper's number for the oracle's pairs, Eq. (15) [first_B]; a bound only if the pairs are independent."""
    return float(_extended_integral(oracle, partial(_coupled_terms, oracle)))


def precise_nll(oracle: Oracle) -> Float[Tensor, " D"]:
    """-log p_θ(x1) at η = 0, as B_0 minus the divergence of the reversed velocities given x1.

    Theorem A.2 [precise-perplexity-theorem], Eq. (66) [full_kl]; conditioned on x1 alone, which the printed formula
    is not.
    """
    space, exact = oracle.space, bound(oracle)
    eye = torch.eye(oracle.flow.vocab.size, dtype=torch.float64)
    taus, weights = _gauss(-EDGE, EDGE)
    model_laws = oracle.path_law(0.0, taus)
    for tau, weight, p in zip(taus, weights, model_laws.clamp(min=1e-40), strict=True):
        moment = oracle.moment(tau[None])
        rates = moment.per_tau * oracle.velocities(moment, 0.0)[0]
        spread = oracle.spread(moment.rest)
        for d, x1 in enumerate(space.data):
            law = torch.stack([spread[i][0][space.states[:, i], x1[i]] for i in range(oracle.length)]).prod(0)
            w = moment.per_tau * oracle.velocities(moment, 0.0, eye[x1].expand(1, len(space.states), -1, -1))[0]
            forth = law[:, None, None] * w
            ratio = torch.where(law > 0, law / p, 0.0)  # the model's law covers that given x1
            back = ratio[space.neighbours] * p[:, None, None] * rates
            exact[d] -= weight * _divergence(forth, back).sum()
    return exact


def implied_nll(oracle: Oracle) -> Float[Tensor, " D"]:
    """`precise_nll` with the ratios of neighboring states that the network implies; precise_perplexity estimates it.

    Theorem A.2 [precise-perplexity-theorem] with Eqs. (127)–(132); theory.md (PP)
    """
    return _extended_integral(oracle, partial(_implied_terms, oracle))


def nodes(oracle: Oracle, a: float = -EDGE, b: float = EDGE) -> Iterator[tuple[Moment, Float[Tensor, " K"]]]:
    """Quadrature nodes and weights in τ, in chunks that fit into memory."""
    taus, weights = _gauss(a, b)
    size = len(oracle.space.states) * oracle.length * oracle.flow.vocab.size
    step = max(1, CHUNK // size)
    for tau, weight in zip(taus.split(step), weights.split(step), strict=True):
        yield oracle.moment(tau), weight


Terms = Callable[[Moment], Tensor]
"""The integrand per unit of k at K points of time, (K, …)."""


def _extended_integral(oracle: Oracle, terms: Terms) -> Tensor:
    """The integral over all times; inf where it diverges.

    The integrand of a sequence with a small probability p decays only from 1-k ≈ p on, so the range is extended until
    the integral converges.
    """
    total, left = _integral(oracle, terms, -EDGE, EDGE)
    edge = EDGE
    while float(left.abs().max()) > 1e-12 and edge < MAX_TAU:
        more, left = _integral(oracle, terms, edge, edge + 20)
        total, edge = total + more, edge + 20
    return torch.where(left.abs() > 1e-6, math.inf, total)


def _integral(oracle: Oracle, terms: Terms, a: float, b: float) -> tuple[Tensor, Tensor]:
    """The integral from τ = a to b, and the integrand at the last node."""
    total, per_tau = torch.zeros((), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for moment, weight in nodes(oracle, a, b):
        values = terms(moment)
        per_tau = moment.per_tau.view(-1, *[1] * (values.ndim - 1)) * values
        total = total + torch.tensordot(weight, per_tau, 1)
    return total, per_tau[-1]


def _rate_terms(oracle: Oracle, eta: Eta, moment: Moment) -> Float[Tensor, "K D"]:
    return _mean_given_x1(oracle, moment.rest, _velocity_terms(oracle, eta, moment))


def _velocity_terms(oracle: Oracle, eta: Eta, moment: Moment) -> Float[Tensor, "K S L Vd"]:
    return _per_target(oracle, lambda q: oracle.velocities(moment, eta, q), oracle.probs(moment))


def _coupled_terms(oracle: Oracle, moment: Moment) -> Float[Tensor, " K"]:
    mass = oracle.joint_with_x1(moment)
    return torch.where(mass > 0, mass * _velocity_terms(oracle, 0.0, moment), 0.0).sum((1, 2, 3))


def _proposal_terms(oracle: Oracle, moment: Moment) -> Float[Tensor, "K D"]:
    """The divergence of the proposal at κ = e^{-(1-k)} from v_0[P].  theory.md (B_κ)"""
    v, xt, p0 = oracle.velocities(moment, 0.0), oracle.space.states, oracle.p0_by_position
    eye = torch.eye(oracle.flow.vocab.size, dtype=torch.float64)
    kappa, noise = torch.exp(-moment.rest)[:, None], -torch.expm1(-moment.rest)[:, None]  # (K, 1, #L)
    rho = kappa / (kappa + noise * p0[torch.arange(oracle.length), xt])
    terms = []
    for y in range(oracle.flow.vocab.data):
        c = (kappa / noise)[..., None] * eye[y] + p0 * (1 - rho * (xt == y))[..., None]
        c = (moment.speed[:, None, :, None] * c).scatter(-1, xt.expand(len(kappa), -1, -1)[..., None], 0.0)
        terms.append(_divergence(c, v).sum(-1))
    return _mean_given_x1(oracle, noise[:, 0], torch.stack(terms, -1))


def _implied_terms(oracle: Oracle, moment: Moment) -> Float[Tensor, "K D"]:
    """The divergence of the velocities from those given x1, minus that of the reversed velocities."""
    p, v = oracle.probs(moment), oracle.velocities(moment, 0.0)
    xt = oracle.space.states.expand(p.shape[:-1])
    k, rest = (value[:, None].expand(p.shape[:-1]) for value in (moment.k, moment.rest))
    ratio = neighbour_ratio(p, xt, oracle.p0, k, rest)
    terms = []
    for y in range(oracle.flow.vocab.data):
        eye = torch.eye(oracle.flow.vocab.size, dtype=torch.float64)[y]
        c = oracle.velocities(moment, 0.0, eye.expand_as(p))
        law = rest[..., None] * oracle.p0 + k[..., None] * eye  # of this position, given x1 = y
        given = law / law.gather(-1, xt[..., None])  # the ratio of neighbors given x1, where xt is possible
        back = torch.where(v > 0, given * v / ratio, 0.0)
        terms.append((_divergence(c, v) - _divergence(c, back)).sum(-1))
    return _mean_given_x1(oracle, moment.rest, torch.stack(terms, -1))


def _gauss(a: float, b: float, width: float = 2.0, order: int = 16) -> tuple[Tensor, Tensor]:
    """Composite Gauss–Legendre quadrature: error 1e-11 for logits that change by 6 nats over time."""
    x, w = (torch.from_numpy(value) for value in np.polynomial.legendre.leggauss(order))
    panels = math.ceil((b - a) / width)
    half = (b - a) / panels / 2
    middle = a + half * (2 * torch.arange(panels, dtype=torch.float64) + 1)
    return (middle[:, None] + half * x).flatten(), (half * w).repeat(panels)


def _steps_bound(oracle: Oracle, eta: Eta, steps: int, refresh: float | int) -> Float[Tensor, " D"]:
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    rest = oracle.flow.schedule.rest(t[:, None])
    total = torch.zeros(len(oracle.space.data), dtype=torch.float64)
    for n in range(steps):
        moment = oracle.at(float(t[n]))
        gain, strength = moment.rest - rest[n + 1 : n + 2], eta_at(eta, moment.t)[:, None]
        p, chance = oracle.probs(moment), refresh_chances(refresh, steps)[n : n + 1, None]
        terms = _per_target(oracle, lambda q: oracle.kernels(q, moment, gain, strength, chance), p)  # noqa: B023
        total = total + _mean_given_x1(oracle, moment.rest, terms)[0]
    return total


def _per_target(
    oracle: Oracle, rates: Callable[[Tensor], Tensor], p: Float[Tensor, "K S L V"]
) -> Float[Tensor, "K S L Vd"]:
    """Σ_x [c log(c/v) - c + v] at every state and position, for each token that x1^i may be.

    V = rates(P), c = rates(δ).
    """
    v, eye = rates(p), torch.eye(oracle.flow.vocab.size, dtype=torch.float64)
    return torch.stack([_divergence(rates(eye[y].expand_as(p)), v).sum(-1) for y in range(oracle.flow.vocab.data)], -1)


def _divergence(c: Tensor, v: Tensor) -> Tensor:
    return torch.where(c > 0, c * (c / v).log(), 0.0) - c + v


def _mean_given_x1(
    oracle: Oracle, noise: Float[Tensor, "K #L"], terms: Float[Tensor, "K S L Vd"]
) -> Float[Tensor, "K D"]:
    """E[Σ_i terms^i(xt, x1^i)] over xt given x1, for every x1; positions are independent and summed one by one."""
    spread, length, vocab = oracle.spread(noise), oracle.length, oracle.flow.vocab
    k = len(terms)
    total = torch.zeros(k, *oracle.space.data_shape, dtype=torch.float64)
    for i in range(length):
        part = terms[:, :, i].view(k, *oracle.space.shape, vocab.data).movedim(i + 1, -2)  # (K, …, xt^i, x1^i)
        own = spread[i].view(k, *([1] * (length - 1)), vocab.size, vocab.data)
        part = torch.where(own > 0, own * part, 0.0).sum(-2).movedim(-1, i + 1)
        for j in range(length):
            if j != i:
                part = along(part, spread[j].transpose(1, 2), j)
        total = total + part
    return total.flatten(1)
