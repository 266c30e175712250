"""The integrand of (B) is convex in η, time by time, for every network.  theory.md §3, §5"""

import pytest
import torch
import toys

from hopflow import exact


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_second_differences_of_the_integrand_are_not_negative(name, seed):
    flow = toys.oracle(name, seed=seed)
    moment = flow.moment(torch.linspace(-5, 5, 11, dtype=torch.float64))
    p = flow.probs(moment)
    etas = [0.25 * i for i in range(9)]
    values = []
    for eta in etas:
        terms = exact.bounds._per_target(flow, lambda q, eta=eta: flow.velocities(moment, eta, q), p)
        values.append(exact.bounds._mean_given_x1(flow, moment.rest, terms))
    second = torch.stack(values).diff(n=2, dim=0)
    assert float(second.min()) > -1e-9
    if not flow.flow.source.disjoint:
        assert float(second.max()) > 1e-3
