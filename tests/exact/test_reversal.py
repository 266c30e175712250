"""The oracle's time reversal: its kernels against Bayes' rule, its weights against the exact law."""

from functools import partial

import pytest
import torch
import toys

from hopflow.exact import Oracle, Perfect, Reversal, Space, predictive_x0
from hopflow.predictions import Plain
from hopflow.schedules import Cosine


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("prediction", [None, Plain()], ids=str)
def test_for_a_perfect_network_the_reversed_kernel_follows_from_p0_given_xt(name, prediction):
    """(R) is the general reversal with the true p_{0|t} of independent pairs."""
    flow = toys.oracle(name, data=2, length=3, network=None, schedule=Cosine(), prediction=prediction)
    known = Oracle(flow.flow, flow.q, 3, Perfect(flow.flow, flow.q, 3))
    for n in range(4):
        by_context = Reversal(known, 5).backward(n)
        by_bayes = Reversal(flow, 5, x0=partial(predictive_x0, flow)).backward(n)
        possible = flow.marginal(flow.at((n + 1) / 5))[0] > 0
        torch.testing.assert_close(by_context[possible], by_bayes[possible], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 0.4, 3.0])
def test_the_law_of_a_weight_has_the_samplers_probability_as_its_mean(name, eta):
    flow = toys.oracle(name, data=2, length=2)
    reversal, exact = Reversal(flow, 3, eta), flow.law(eta, 3)
    torch.testing.assert_close(reversal.mean_weight(), exact, atol=1e-13, rtol=0)
    one = reversal.bound()
    for row, x1 in enumerate(flow.space.data):
        log_w, chance = reversal.law(x1)
        assert float(chance.sum()) == pytest.approx(1, abs=1e-13)
        assert float((chance * log_w.exp()).sum()) == pytest.approx(float(exact[row]), abs=1e-13)
        assert float(-(chance * log_w).sum()) == pytest.approx(float(one[row]), abs=1e-11)
        two = reversal.bound_of_two(x1)
        assert -float(exact[row].log()) - 1e-11 <= two <= float(one[row]) + 1e-11


def test_a_coupled_flow_is_reversed_by_its_own_p0_given_xt():
    """For a perfect network of coupled pairs the weights become constant as N grows."""
    space = Space(toys.source("uniform", 2).vocab, 2)
    law = torch.full((4,), 0.25, dtype=torch.float64)
    joint = toys.random_joint(space, 3, law)
    flow = toys.oracle("uniform", data=2, length=2, network=None, joint=joint)
    reversal = Reversal(flow, 64, x0=partial(predictive_x0, flow))
    torch.testing.assert_close(reversal.mean_weight(), flow.law(steps=64), atol=1e-13, rtol=0)
    excess = reversal.bound() - flow.nll(steps=64)
    assert 0 <= float(excess.min()) <= float(excess.max()) < 0.01
