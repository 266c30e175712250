"""Prop. A.4: a position that holds a data token predicts that token, when the source is disjoint."""

import pytest
import torch
import toys

from hopflow.exact import Space


@pytest.mark.parametrize("name", ["mask", "multimask"])
@pytest.mark.parametrize("coupled", [False, True])
def test_a_data_token_stays(name, coupled):
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 2, toys.oracle(name).source_law) if coupled else None
    flow = toys.oracle(name, joint=joint)
    law, marginal = flow.predictive(flow.at(0.3))
    states = space.states[marginal[0] > 0]
    law = law[0, marginal[0] > 0]
    is_data = space.vocab.is_data(states)
    own = law.gather(-1, states.clamp(max=space.vocab.data - 1)[..., None])[..., 0]
    torch.testing.assert_close(own[is_data], torch.ones_like(own[is_data]))
    assert bool(is_data.any())


def test_with_a_uniform_source_it_does_not_stay_for_certain():
    flow = toys.oracle("uniform")
    law = flow.predictive(flow.at(0.3))[0][0]
    own = law.gather(-1, flow.space.states[..., None])[..., 0]
    assert float(own.max()) < 1
