"""Theorem 4.1 [theorem2]: KL(q1 ‖ p1) = KL(q0 ‖ p0) + forward divergence - backward divergence."""

import pytest
from two_flows import SPACES, two_flows


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_terminal_divergence_is_start_plus_forward_less_backward(space, seed):
    found = two_flows(space, seed)
    assert found.terminal == pytest.approx(found.start + found.forward - found.backward, abs=1e-8)
    assert found.backward > 1e-3  # the dropped term is there to be dropped
