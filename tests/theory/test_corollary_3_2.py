"""Cor. 3.2 [coro1]: with the discrete metric the cost is the expected Hamming distance."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.costs import Hamming
from hopflow.exact import Space


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_the_mass_that_moves_is_the_expected_hamming_distance(name, seed):
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, seed, toys.oracle(name).source_law)
    flow = toys.oracle(name, joint=joint)
    distance = Hamming().dissimilarity(joint.x0, joint.x1).sum(1).double()
    expected = float((joint.weight * distance).sum())
    assert exact.dynamic_cost(flow, toys.hamming(space.vocab.size)) == pytest.approx(expected, abs=1e-8)


def test_the_cost_matrix_is_the_hamming_distance_between_rows():
    x0, x1 = torch.tensor([[0, 1, 2], [2, 2, 2]]), torch.tensor([[0, 1, 1], [2, 1, 2]])
    assert Hamming().matrix(x0, x1).tolist() == [[1, 3], [1, 1]]
