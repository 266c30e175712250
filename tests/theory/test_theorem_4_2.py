"""Theorem 4.2 [corollary4] and Eq. (14) [NNL_bound]: without its backward term the divergence is a bound."""

import pytest
import torch
import toys
from two_flows import SPACES, two_flows

from hopflow import exact


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_start_plus_forward_bounds_the_terminal_divergence(space, seed):
    found = two_flows(space, seed)
    assert found.bound >= found.terminal - 1e-8


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_equal_flows_have_no_divergence_at_all(space):
    found = two_flows(space, 7, same=True)
    assert (found.start, found.forward, found.backward) == pytest.approx((0, 0, 0), abs=1e-12)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_the_flow_towards_x1_against_the_model_gives_the_bound_of_a_sequence(name):
    """Eq.

    (14) [NNL_bound]: w is the velocity given x1, v the model's. Both grow like 1/(1-t): the last 1e-3 is left out
    of both.
    """
    flow = toys.oracle(name, data=2, seed=3)
    eye = torch.eye(flow.flow.vocab.size, dtype=torch.float64)
    towards = eye[flow.space.data[1]].expand(1, len(flow.space.states), -1, -1)
    found = exact.kl_bound(
        flow.space,
        lambda t: flow.velocities(flow.at(t), 0.0, towards)[0],
        lambda t: flow.velocities(flow.at(t), 0.0)[0],
        flow.source_law,
        flow.source_law,
        until=1 - 1e-3,
    )
    last = flow.at(1 - 1e-3)
    redraw = -flow.probs(last)[..., : flow.flow.vocab.data].log()
    final = exact.bounds._mean_given_x1(flow, last.rest, redraw)[0, 1]
    assert found.forward == pytest.approx(float(exact.bound(flow, end=1e-3)[1] - final), abs=1e-8)


def test_a_start_with_empty_states_is_refused_with_the_way_out():
    flow = toys.oracle("mask", data=2)
    still = torch.zeros(len(flow.space.states), 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must be positive everywhere.*exact\.bound"):
        exact.kl_bound(flow.space, lambda t: still, lambda t: still, flow.source_law, flow.source_law)
