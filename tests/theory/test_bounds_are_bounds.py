"""Eq.

(14) [NNL_bound] and its family, theory.md (B), (B_N), (B_κ): never below the exact value, for any network and any η(t).
"""

import math

import pytest
import torch
import toys

from hopflow import exact
from hopflow.predictions import Plain

FLOWS = 100
ETAS = {"0": 0.0, "1/2": 0.5, "1": 1.0, "2": 2.0, "eta(t)": lambda t: 0.3 + 1.5 * t}


@pytest.mark.parametrize("part", [0, 1, 2, *(pytest.param(part, marks=pytest.mark.slow) for part in range(3, 10))])
def test_on_a_hundred_random_flows_no_bound_is_below_the_exact_value(part):
    """Every sequence of every flow, by quadrature: B_η, B_N with N = 5, and B_κ where it exists."""
    for flow in toys.random_flows(FLOWS)[part::10]:
        for name, eta in ETAS.items():
            gap = exact.bound(flow, eta=eta) - flow.nll(eta=eta)
            assert float(gap.min()) > -1e-8, (flow.flow, name)
            gap = exact.bound(flow, eta=eta, steps=5) - flow.nll(eta=eta, steps=5)
            assert float(gap.min()) > -1e-8, (flow.flow, name, "5 steps")
        if flow.flow.source.full:
            gap = exact.kappa_bound(flow) - flow.nll(eta=0.0)
            assert float(gap.min()) > -1e-8, (flow.flow, "kappa")


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_sampler_that_stops_early_and_redraws_has_a_bound_too(name):
    flow = toys.oracle(name, prediction=Plain())
    gap = exact.bound(flow, eta=0.5, end=0.05) - flow.nll(eta=0.5, end=0.05)
    assert float(gap.min()) > -1e-8
    assert bool(torch.isfinite(gap).all())


@pytest.mark.parametrize("name", toys.SOURCES)
def test_under_plain_the_continuous_bound_is_infinite(name):
    flow = toys.oracle(name, prediction=Plain())
    assert bool(torch.isinf(exact.bound(flow)).all())
    if flow.flow.source.full:
        assert bool(torch.isinf(exact.kappa_bound(flow)).all())
    assert math.isinf(exact.coupled(flow))


@pytest.mark.parametrize("name", toys.SOURCES)
def test_bounds_of_finer_samplers_approach_the_continuous_one(name):
    flow = toys.oracle(name, data=2)
    limit = flow.mean(exact.bound(flow, eta=1.0))
    coarse, fine = (abs(flow.mean(exact.bound(flow, eta=1.0, steps=n)) - limit) for n in (32, 128))
    assert fine < 0.4 * coarse  # O(1/N)
    assert fine < 0.02


def test_each_bound_speaks_of_its_own_sampler():
    """B_1 is below the cross-entropy of no sampler but its own here: the two samplers' laws differ."""
    flow = toys.oracle("uniform", seed=4)
    assert float((flow.law(eta=0.0) - flow.law(eta=1.0)).abs().max()) > 1e-3


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_one_step_is_the_cross_entropy_given_x0(name, eta):
    """N = 1: (B_N) = E_x0[-Σ log P(x1 | x0)] for every η.  theory.md §5"""
    flow = toys.oracle(name)
    law = flow.probs(flow.at(0.0))[0, ..., : flow.flow.vocab.data].log()
    by_hand = torch.stack(
        [-(flow.source_law * sum(law[:, i, x] for i, x in enumerate(x1))).sum() for x1 in flow.space.data.tolist()]
    )
    torch.testing.assert_close(exact.bound(flow, eta=eta, steps=1), by_hand, atol=1e-10, rtol=0)
