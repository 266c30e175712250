"""Prop. 4.3 [proposition2]: the entropy at the end is that at the start plus an integral along the flow."""

import pytest
from two_flows import SPACES, two_flows


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_entropy_changes_by_the_integral_along_the_flow(space, seed):
    found = two_flows(space, seed)
    assert found.entropy_end - found.entropy_start == pytest.approx(found.entropy_gain, abs=1e-8)
    assert abs(found.entropy_gain) > 1e-3
