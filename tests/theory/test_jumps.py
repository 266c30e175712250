"""Jumps are known before training: a perfect model at η = 0 makes E_π d_H(x0, x1) of them.  theory.md §2"""

import math

import pytest
import torch

import toys
from hopflow import exact
from hopflow.couplings import ExactOT
from hopflow.exact import Space


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
