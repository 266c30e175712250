"""Alg. 3 [alg2] to the letter: it diverges unless the source is a single mask, so it is refused, and B_1 named."""

import math
from itertools import pairwise

import pytest
import torch
import toys

from hopflow.bounds.literal import literal_second_bound
from hopflow.exact import Oracle


def literal(flow: Oracle, points: int, given_x0: bool) -> float:
    """The mean of Alg. 3's terms over a midpoint grid of `points` times, plus H(p0), for the true predictive law."""
    v, length = flow.flow.vocab.size, flow.length
    p0, states = flow.p0, flow.space.states
    eye = torch.eye(v, dtype=torch.float64)
    total = 0.0
    for t in (torch.arange(points, dtype=torch.float64) + 0.5) / points:
        moment = flow.at(float(t))
        u = flow.velocities(moment, 0.0)[0]  # (S, L, V)
        back = p0 / t  # w̃(x, ·) for x ≠ the state it leaves
        for x1, q in zip(flow.space.data, flow.q, strict=True):
            seen = [(1 - t) * p0 + t * eye[x] for x in x1]
            law = torch.stack([seen[i][states[:, i]] for i in range(length)]).prod(0)
            for i in range(length):
                away = (torch.arange(v) != states[:, i, None]).double()
                forward, leave = (away * u[:, i]).sum(1), (away * back).sum(1)
                ratio = _ratio(t, p0, x1[i], states[:, i], v, given_x0)
                into = back[states[:, i], None]
                terms = away * ratio * into * (into / u[:, i].clamp(min=1e-300)).log()
                terms = torch.where(away * ratio * into > 0, terms, 0.0)
                total += float(q * (law * (forward - leave + terms.sum(1))).sum()) / points
    return total + length * float(torch.special.entr(p0).sum())


def _ratio(t, p0, x1, xt, v, given_x0):
    """p_t(x | …)/p_t(xt | …): given x1, or given (x0, x1) averaged over x0, where it can only be x0 or x1 itself."""
    eye = torch.eye(v, dtype=torch.float64)
    seen = (1 - t) * p0 + t * eye[x1]
    if not given_x0:
        return seen[None, :] / seen[xt][:, None]
    out = torch.zeros(len(xt), v, dtype=torch.float64)
    for x0 in range(v):
        both = (1 - t) * eye[x0] + t * eye[x1]
        posterior = p0[x0] * both[xt] / seen[xt]  # p(x0 | xt, x1)
        out += posterior[:, None] * torch.where(
            both[xt, None] > 0, both[None, :] / both[xt, None].clamp(min=1e-300), 0.0
        )
    return out


@pytest.mark.parametrize("given_x0", [False, True])
def test_the_literal_second_algorithm_diverges_for_a_uniform_source(given_x0):
    flow = toys.oracle("uniform", data=2, network=None)
    values = [literal(flow, points, given_x0) for points in (50, 200, 800)]
    steps = [b - a for a, b in pairwise(values)]
    assert min(steps) > 0.2  # it grows with every refinement
    assert steps[1] > 0.7 * steps[0]  # and does not slow down: four times the points, the same gain or more


def test_for_the_single_mask_it_settles_at_the_entropy():
    flow = toys.oracle("mask", data=2, network=None)
    values = [literal(flow, points, given_x0=False) for points in (50, 200)]
    assert values[1] == pytest.approx(flow.entropy, abs=0.02)
    assert math.isfinite(values[0])


@pytest.mark.parametrize("name", ["multimask", "uniform", "bag_of_words"])
def test_the_literal_second_bound_names_the_right_bound_for_other_sources(name):
    flow = toys.oracle(name)
    with pytest.raises(ValueError, match=r"single-mask source.*nll_bound\(eta=1\), which is a bound for every source"):
        literal_second_bound(flow.model, flow.flow, flow.space.data)
