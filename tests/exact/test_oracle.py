"""The oracle against brute force written out in the plainest way, and against itself by two routes."""

from itertools import product

import pytest
import torch
import toys

from hopflow import exact
from hopflow.exact import Joint, Oracle, Space, Table, kolmogorov
from hopflow.flow import Flow
from hopflow.sources import Mask, Uniform
from hopflow.vocab import Vocab


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("coupled", [False, True])
def test_the_marginal_and_the_predictive_law_by_brute_force(name, coupled):
    space = Space(toys.source(name, data=2).vocab, 2)
    law = toys.oracle(name, data=2).source_law
    joint = toys.random_joint(space, 1, law) if coupled else None
    flow = toys.oracle(name, data=2, joint=joint)
    pi = joint.matrix(space) if joint else law[:, None] * flow.q[None, :]
    t = 0.3
    predictive, marginal = flow.predictive(flow.at(t))
    for s, state in enumerate(space.states.tolist()):
        mass = torch.zeros(2, 2, dtype=torch.float64)
        for (a, x0), (b, x1) in product(enumerate(space.states.tolist()), enumerate(space.data.tolist())):
            chance = float(pi[a, b])
            for i in range(2):
                chance *= (1 - t) * (state[i] == x0[i]) + t * (state[i] == x1[i])
            for i in range(2):
                mass[i, x1[i]] += chance
        assert float(marginal[0, s]) == pytest.approx(float(mass[0].sum()), abs=1e-12)
        if mass[0].sum() > 0:
            torch.testing.assert_close(predictive[0, s], mass / mass.sum(1, keepdim=True), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_one_step_of_the_n_step_law_by_brute_force(name, eta):
    flow = toys.oracle(name, data=2, length=3)
    moment = flow.at(0.5)
    strength = torch.full((1, 1), eta, dtype=torch.float64)
    kernels = flow.kernels(flow.probs(moment), moment, moment.rest, strength)[0]
    start = toys.dirichlet(len(flow.space.states), seed=3)
    law, _ = flow._step(start, moment, moment.rest, strength)
    chances = [kernels[:, i][:, flow.space.states[:, i]] for i in range(3)]  # (from, to) per position
    torch.testing.assert_close(law, start @ (chances[0] * chances[1] * chances[2]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", toys.FEW_SOURCES)
@pytest.mark.parametrize("eta", [0.7, pytest.param(0.0, marks=pytest.mark.slow)])
def test_two_integrators_of_the_kolmogorov_equation_agree(name, eta, monkeypatch):
    flow = toys.oracle(name, data=2)
    law, jumps = flow.law(eta), flow.jumps(eta)
    monkeypatch.setattr(kolmogorov, "SMALL", 0)
    torch.testing.assert_close(flow.law(eta), law, atol=1e-10, rtol=0)
    assert flow.jumps(eta) == pytest.approx(jumps, abs=1e-9)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_many_steps_approach_the_continuous_law(name):
    flow = toys.oracle(name, data=2)
    for eta in (0.0, 1.0):
        gaps = [float((flow.law(eta, steps=n) - flow.law(eta)).abs().max()) for n in (32, 128)]
        assert gaps[1] < 0.4 * gaps[0]
        assert gaps[1] < 0.01


def test_probabilities_of_samples_are_not_negative_and_sum_to_one():
    for flow in toys.random_flows(8):
        for steps in (None, 3):
            law = flow.law(1.0, steps)
            assert float(law.min()) >= 0
            assert float(law.sum()) == pytest.approx(1, abs=1e-9)


def test_the_oracle_computes_a_space_whose_matrix_would_be_too_large():
    """7,776 states: the matrix over them is never built."""
    flow = Flow(Mask(Vocab(5, 1)))
    q = toys.dirichlet(5**5, seed=0)
    space = Space(flow.vocab, 5)
    table = Table(space, toys.dirichlet(len(space.states), 5, 5, seed=1))
    oracle = Oracle(flow, q, 5, table)
    assert float(oracle.law().sum()) == pytest.approx(1, abs=1e-9)
    assert float(oracle.law(steps=2).sum()) == pytest.approx(1, abs=1e-9)
    assert oracle.mean(exact.bound(oracle, steps=2)) >= oracle.cross_entropy(steps=2)


def test_bad_input_is_named_with_the_way_out():
    uniform = Flow(Uniform(Vocab(2)))
    with pytest.raises(ValueError, match=r"too many to enumerate.*nll_bound"):
        Space(Vocab(50_257), 128)
    with pytest.raises(ValueError, match=r"its sum is 0\.9"):
        Oracle(uniform, torch.tensor([0.4, 0.5], dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="one probability per data sequence"):
        Oracle(uniform, torch.tensor([0.5, 0.5]), 2)
    with pytest.raises(ValueError, match="sum to 1"):
        Table(Space(Vocab(2), 1), torch.ones(2, 1, 2))
    with pytest.raises(ValueError, match="sum to 1"):
        Joint(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long), torch.tensor([0.5]))
    with pytest.raises(ValueError, match="support is exactly"):
        exact.kappa_bound(toys.oracle("mask"))
    with pytest.raises(ValueError, match="eta must be ≥ 0"):
        toys.oracle("uniform").law(eta=-1.0)
    with pytest.raises(ValueError, match="length must be an integer ≥ 1"):
        Space(Vocab(2), 0)
