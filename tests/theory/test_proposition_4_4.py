"""Prop. 4.4 [proposition3]: with the reversed velocity of the *same* flow, a bound on the cross-entropy."""

import pytest
from two_flows import SPACES, two_flows


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_alternative_form_bounds_the_cross_entropy(space, seed):
    found = two_flows(space, seed)
    assert found.alternative >= found.cross_entropy - 1e-8


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_alternative_bound_is_the_first_bound_plus_the_entropy(space, seed):
    found = two_flows(space, seed)
    assert found.alternative == pytest.approx(found.bound + found.entropy_end, abs=1e-8)
