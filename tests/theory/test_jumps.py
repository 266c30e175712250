"""Jumps are known before training: a perfect model at η = 0 makes E_π d_H(x0, x1) of them.  theory.md §2"""

import math

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.estimate import mean_and_error
from hopflow.couplings import ExactOT
from hopflow.exact import Space
from hopflow.predictions import Carry
from hopflow.sampling.generate import generate


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("coupled", [False, True])
def test_a_perfect_sampler_jumps_as_often_as_the_coupling_says(name, coupled):
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 4, toys.oracle(name).source_law) if coupled else None
    flow = toys.oracle(name, network=None, joint=joint)
    distance = exact.kantorovich_cost(flow, toys.hamming(space.vocab.size))
    assert flow.jumps() == pytest.approx(distance, abs=1e-8)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_euler_is_of_order_one_over_n_above(name):
    flow = toys.oracle(name, network=None)
    excess = [flow.jumps(steps=n) - flow.jumps() for n in (16, 64)]
    assert 0 < excess[1] < excess[0]
    assert excess[1] * 64 == pytest.approx(excess[0] * 16, rel=0.3)


def test_with_a_mask_every_position_jumps_exactly_once():
    flow = toys.oracle("mask", network=None)
    assert flow.jumps() == pytest.approx(2, abs=1e-8)
    assert flow.jumps(steps=5) == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize("steps", [4, 64])
def test_the_corrector_adds_a_known_number_of_jumps(steps):
    """+ η·L·(1-Σp0²)·(H_N - 1) for a perfect network on data like its source.  theory.md §2"""
    p0 = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    flow = exact.Oracle(
        toys.Flow(toys.BagOfWords(toys.Vocab(3), tuple(p0.tolist()))), Space(toys.Vocab(3), 2).law(p0), 2, None
    )
    harmonic = sum(1 / n for n in range(1, steps + 1))
    expected = 2 * (1 - float((p0**2).sum())) * (harmonic - 1)
    assert flow.jumps(eta=1.0, steps=steps) - flow.jumps(steps=steps) == pytest.approx(expected, rel=1e-9)


def test_exact_ot_lowers_the_expected_jumps_of_three_symbol_sequences():
    """Uniform 3-symbol sequences, L = 128: independent 85.3, exact OT of 64: 73.54 ± .04.  theory.md §2"""
    g = toys.generator(0)
    costs = []
    for _ in range(60):
        x0, x1 = torch.randint(0, 3, (2, 64, 128), generator=g)
        costs.append(ExactOT().pair(x0, x1).cost)
    costs = torch.tensor(costs)
    error = float(costs.std()) / math.sqrt(len(costs))
    assert abs(float(costs.mean()) - 73.54) < 4 * math.hypot(error, 0.04)


# the same of sequences that are drawn


def drawn_jumps(flow: exact.Oracle, steps: int, eta: float = 0.0, n: int = 8_000) -> tuple[float, float]:
    perfect = exact.Perfect(flow.flow, flow.q, flow.length)
    run = generate(perfect, flow.flow, n=n, length=flow.length, steps=steps, eta=eta, seed=1)
    return mean_and_error(run.jumps)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("steps", [3, 64])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_drawn_sequences_jump_as_often_as_the_oracle_says(name, steps, eta):
    flow = toys.oracle(name, network=None)
    mean, error = drawn_jumps(flow, steps, eta)
    assert abs(mean - flow.jumps(steps=steps, eta=eta)) <= 4 * error + 1e-12


@pytest.mark.parametrize("name", toys.SOURCES)
def test_in_one_step_a_perfect_sampler_jumps_as_often_as_the_pairs_differ(name):
    flow = toys.oracle(name, network=None)
    distance = exact.kantorovich_cost(flow, toys.hamming(flow.flow.vocab.size))
    assert flow.jumps(steps=1) == pytest.approx(distance, abs=1e-9)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
@pytest.mark.parametrize("steps", [1, 5])
def test_with_one_position_or_product_data_the_steps_do_not_matter(name, steps):
    one = toys.oracle(name, network=None, length=1)
    space = Space(one.flow.vocab, 2)
    product = exact.Oracle(one.flow, space.law(toys.dirichlet(3, seed=7)), 2)
    for flow in (one, product):
        mean, error = drawn_jumps(flow, steps)
        distance = exact.kantorovich_cost(flow, toys.hamming(flow.flow.vocab.size))
        assert abs(mean - distance) <= 4 * error


@pytest.mark.parametrize("steps", [1, 7, 1024])
def test_multimask_under_carry_makes_exactly_one_jump_per_position(steps):
    flow = toys.Flow(toys.MultiMask(toys.Vocab(3, 5)), prediction=Carry())
    run = generate(lambda xt, t: torch.zeros(*xt.shape, 3), flow, n=50, length=40, steps=steps, seed=0)
    assert (run.changes == 1).all()


def test_the_corrector_adds_555_jumps_to_three_symbol_sequences_at_1024_steps():
    """+ η·L·(1-Σp0²)·(H_N - 1) at L = 128, drawn: i.i.d. uniform data, of which a flat network is the perfect one."""
    flow = toys.Flow(toys.Uniform(toys.Vocab(3)))
    how = {"n": 60, "length": 128, "steps": 1024}
    means = [
        mean_and_error(generate(lambda xt, t: torch.zeros(*xt.shape, 3), flow, eta=eta, seed=2, **how).jumps)
        for eta in (0.0, 1.0)
    ]
    harmonic = sum(1 / n for n in range(1, 1025))
    surplus = 128 * (2 / 3) * (harmonic - 1)
    assert abs(means[1][0] - means[0][0] - surplus) <= 4 * math.hypot(means[0][1], means[1][1])
    assert abs(means[0][0] - 128 * 2 / 3) <= 4 * means[0][1]
