"""Rectified pairs (x0, what the flow makes of x0): fewer hops, the same law.  theory.md §8"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import toys

from hopflow import exact
from hopflow.exact import Joint, Oracle
from hopflow.flow import Flow
from hopflow.schedules import Cosine, Linear, Polynomial
from hopflow.sources import BagOfWords, Mask, Uniform
from hopflow.vocab import Vocab


def hops(joint: Joint) -> float:
    """E d_H(x0, x1)."""
    return float((joint.weight * (joint.x0 != joint.x1).sum(1)).sum())


def rectified(oracle: Oracle, steps: int | None = None) -> Oracle:
    """The perfect flow of the rectified pairs."""
    return replace(oracle, model=None, joint=exact.rectify(oracle, steps))


def noise_like_data(data: int, length: int, seed: int, schedule=None) -> Oracle:
    """Independent tokens whose distribution is that of the source: p0 = q."""
    law = toys.dirichlet(data, seed=seed)
    flow = Flow(BagOfWords(Vocab(data), tuple(law.tolist())), schedule=schedule or Linear())
    return Oracle(flow, exact.Space(flow.vocab, length).law(law), length)


@pytest.mark.parametrize(("data", "length"), [(2, 1), (2, 4), (3, 3), (5, 2)])
def test_product_data_like_the_noise_keeps_1_minus_1_over_e_of_its_hops(data, length):
    first = noise_like_data(data, length, seed=data + length)
    assert hops(exact.rectify(first)) / first.jumps() == pytest.approx(1 - 1 / math.e, abs=1e-6)


def test_this_share_does_not_depend_on_the_schedule():
    for schedule in (Polynomial(2.0), Cosine()):
        first = noise_like_data(3, 2, seed=1, schedule=schedule)
        assert hops(exact.rectify(first)) / first.jumps() == pytest.approx(1 - 1 / math.e, abs=1e-6)


def test_hops_and_the_error_of_two_steps_fall_in_each_of_three_rounds():
    """V = L = 3, uniform. The continuous law stays, so that what falls is the error of the steps."""
    flow = Oracle(Flow(Uniform(Vocab(3))), toys.dirichlet(27, seed=7), 3)
    found_hops, found_kl = [exact.kantorovich_cost(flow, toys.hamming(3))], []
    for _ in range(4):
        found_kl.append(flow.cross_entropy(steps=2) - flow.entropy)
        if len(found_kl) < 4:
            flow = rectified(flow)
            found_hops.append(hops(flow.joint))
    assert found_hops == pytest.approx([2.0, 1.3109, 1.0221, 0.8669], abs=1e-4)
    assert found_kl == pytest.approx([0.1493, 0.0814, 0.0516, 0.0367], abs=1e-4)
    torch.testing.assert_close(flow.joint.matrix(flow.space).sum(0), flow.q, atol=1e-9, rtol=0)


@pytest.mark.parametrize("steps", [None, 1, 4])
@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_pairs_have_the_source_and_the_law_of_the_sampler_as_marginals(name, steps):
    flow = toys.oracle(name, data=2, length=2, seed=3)  # a random network
    joint = exact.rectify(flow, steps).matrix(flow.space)
    torch.testing.assert_close(joint.sum(1), flow.source_law, atol=1e-9, rtol=0)
    torch.testing.assert_close(joint.sum(0), flow.law(steps=steps), atol=1e-9, rtol=0)


def test_the_corrector_keeps_the_marginals_and_loses_what_x0_says_of_x1():
    flow = replace(toys.oracle("uniform", data=3, length=2, seed=4), model=None)
    plain, corrected = (exact.rectify(flow, eta=eta) for eta in (0.0, 1.0))
    torch.testing.assert_close(corrected.matrix(flow.space).sum(0), flow.q, atol=1e-7, rtol=0)
    information = [exact.mutual_information(joint, flow.space) for joint in (plain, corrected)]
    assert information[1] < 1e-6 < 0.1 < information[0]


def test_one_step_pairs_are_the_product_of_the_predictions_at_time_0():
    flow = toys.oracle("bag_of_words", data=3, length=2, seed=5)
    p = flow.probs(flow.at(0.0))[0]  # (S, L, V)
    expected = flow.source_law[:, None] * (p[:, 0, :, None] * p[:, 1, None, :]).flatten(1)
    torch.testing.assert_close(exact.rectify(flow, 1).matrix(flow.space), expected, atol=1e-12, rtol=0)


def test_a_space_too_large_for_matrices_gives_the_same_pairs(monkeypatch):
    flow = toys.oracle("bag_of_words", data=2, length=1, seed=6)
    expected = exact.rectify(flow).matrix(flow.space)
    assert expected.count_nonzero() == 4
    monkeypatch.setattr("hopflow.exact.kolmogorov.SMALL", 0)
    torch.testing.assert_close(exact.rectify(flow).matrix(flow.space), expected, atol=1e-9, rtol=0)


def test_rectification_from_one_mask_changes_nothing():
    flow = Oracle(Flow(Mask(Vocab(2, 1))), toys.dirichlet(8, seed=8), 3)
    again = rectified(flow)
    product = flow.source_law[:, None] * flow.q
    torch.testing.assert_close(again.joint.matrix(flow.space), product, atol=1e-9, rtol=0)
    assert again.jumps() == pytest.approx(flow.jumps(), abs=1e-6)
    for steps in (1, 2, 8):
        torch.testing.assert_close(again.law(steps=steps), flow.law(steps=steps), atol=1e-9, rtol=0)


@pytest.mark.parametrize("steps", [None, 3])
def test_theorem_3_1_holds_for_rectified_pairs_and_predicts_the_hops(steps):
    flow = rectified(toys.oracle("bag_of_words", data=3, length=2, seed=9), steps)
    cost = toys.hamming(3)
    assert exact.dynamic_cost(flow, cost) == pytest.approx(exact.kantorovich_cost(flow, cost), abs=1e-8)
    assert flow.jumps() == pytest.approx(hops(flow.joint), abs=1e-7)


def test_rectified_pairs_have_at_most_the_hops_of_the_network_that_made_them():
    for flow in toys.random_flows(8):
        assert hops(exact.rectify(flow)) <= flow.jumps() + 1e-9
        assert hops(exact.rectify(flow, 3)) <= flow.jumps(steps=3) + 1e-9


def test_the_reversal_of_a_rectified_flow_is_tight_as_steps_grow():
    flow = rectified(Oracle(Flow(Uniform(Vocab(2))), toys.dirichlet(4, seed=10), 2))
    excess = []
    for steps in (4, 16):
        bound = flow.mean(exact.Reversal(flow, steps, x0=partial(exact.predictive_x0, flow)).bound())
        excess.append(bound - flow.cross_entropy(steps=steps))
    assert 0 <= excess[1] < excess[0] < 0.1


@pytest.mark.parametrize("steps", [0, -2])
def test_a_number_of_steps_below_1_is_refused(steps):
    with pytest.raises(ValueError, match=f"steps must be an integer ≥ 1, or None for continuous time, got {steps}"):
        exact.rectify(toys.oracle(), steps)
