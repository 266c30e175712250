"""The ratio p_t(neighbor)/p_t(xt) follows from the prediction at one position.  theory.md §5"""

import pytest
import torch
import toys

from hopflow.velocities import neighbour_ratio


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_a_perfect_network_implies_the_true_ratio(name, t):
    flow = toys.oracle(name, network=None)
    moment = flow.at(t)
    marginal = flow.marginal(moment)[0]
    states = flow.space.states
    p = flow.probs(moment)[0]
    ratio = neighbour_ratio(p, states, flow.p0, moment.k.expand(states.shape), moment.rest.expand(states.shape))
    for i in range(flow.length):
        for x in range(flow.flow.vocab.size):
            neighbour = states.clone()
            neighbour[:, i] = x
            true = marginal[flow.space.ids(neighbour)] / marginal
            noise = (marginal > 0) & (
                flow.p0[states[:, i]] > 0
            )  # where xt is data for certain, P has forgotten the context
            torch.testing.assert_close(ratio[noise, i, x], true[noise], atol=1e-10, rtol=1e-9)
