"""Theorem 3.1 [theorem1]: the dynamic cost of a convex flow is the Kantorovich cost of its coupling."""

import pytest
import torch

import toys
from hopflow import exact
from hopflow.exact import Oracle, Space
from hopflow.flow import Flow
from hopflow.schedules import Cosine, Linear, Polynomial, Positional


def dissimilarity(size: int, seed: int) -> torch.Tensor:
    """Random costs; not symmetric, because the theorem does not need it."""
    s = torch.rand(size, size, generator=toys.generator(seed), dtype=torch.float64)
    return s.fill_diagonal_(0.0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [Linear(), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_dynamic_cost_equals_kantorovich_cost_for_random_couplings_and_costs(name, schedule, seed):
    space = Space(toys.source(name).vocab, 2)
    law = toys.oracle(name).source_law
    flow = toys.oracle(name, joint=toys.random_joint(space, seed, law), schedule=schedule)
    s = dissimilarity(space.vocab.size, seed + 10)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_it_holds_for_independent_pairs_of_three_positions(name):
    flow = toys.oracle(name, data=2, length=3)
    s = dissimilarity(flow.flow.vocab.size, 5)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_it_holds_for_position_specific_schedules(name):
    schedule = Positional((Linear(), Cosine()))
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 3, toys.oracle(name).source_law)
    flow = toys.oracle(name, joint=joint, schedule=schedule)
    s = dissimilarity(space.vocab.size, 4)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


def test_independent_pairs_and_their_product_coupling_are_the_same_flow():
    plain = toys.oracle("bag_of_words")
    product = toys.random_joint(plain.space, 0)
    product = type(product).of(plain.space, plain.source_law[:, None] * plain.q[None, :])
    coupled = Oracle(Flow(plain.flow.source), plain.q, 2, None, product)
    moment = plain.moment(torch.tensor([-3.0, 0.2, 4.0], dtype=torch.float64))
    for a, b in zip(plain.predictive(moment), coupled.predictive(moment), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
