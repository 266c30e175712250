"""Prop. A.1 [proposition1]: the backward term through the ratios of neighboring states, given x1."""

import pytest
import torch
import toys

from hopflow import exact


@pytest.mark.parametrize("name", toys.FEW_SOURCES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_bound_less_the_backward_term_is_the_nll_of_every_sequence(name, seed):
    flow = toys.oracle(name, data=2, seed=seed)
    torch.testing.assert_close(exact.precise_nll(flow), flow.nll(), atol=1e-8, rtol=0)
