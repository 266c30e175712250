"""Cor. 3.3 [coro2]: with squared embedding distances the cost is that between concatenated embeddings."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.costs import SquaredEmbedding
from hopflow.exact import Space


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_dynamic_cost_is_the_distance_of_concatenated_embeddings(name):
    space = Space(toys.source(name).vocab, 2)
    table = torch.randn(space.vocab.size, 5, generator=toys.generator(1), dtype=torch.float64)
    joint = toys.random_joint(space, 2, toys.oracle(name).source_law)
    flow = toys.oracle(name, joint=joint)
    concatenated = (table[joint.x0].flatten(1) - table[joint.x1].flatten(1)).square().sum(1)
    tokens = torch.arange(space.vocab.size)
    grid = tokens[:, None].expand(-1, len(tokens))
    s = SquaredEmbedding().dissimilarity(grid, grid.T, table)
    assert exact.dynamic_cost(flow, s) == pytest.approx(float((joint.weight * concatenated).sum()), abs=1e-8)


def test_the_cost_matrix_is_the_distance_of_concatenated_embeddings():
    table = torch.randn(7, 4, generator=toys.generator(3), dtype=torch.float64)
    x0 = torch.randint(0, 7, (6, 3), generator=toys.generator(4))
    x1 = torch.randint(0, 7, (5, 3), generator=toys.generator(5))
    expected = torch.cdist(table[x1].flatten(1), table[x0].flatten(1)).square()
    torch.testing.assert_close(SquaredEmbedding().matrix(x0, x1, table), expected)
