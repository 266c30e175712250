"""Prop. A.3: with masks the predictive law does not depend on time; elsewhere it does."""

import pytest
import torch
import toys

from hopflow.exact import Space

TIMES = torch.tensor([-4.0, -1.0, 0.5, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("name", ["mask", "multimask"])
@pytest.mark.parametrize("coupled", [False, True])
def test_disjoint_sources_predict_without_a_clock(name, coupled):
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 1, toys.oracle(name).source_law) if coupled else None
    law, marginal = toys.oracle(name, joint=joint).predictive(toys.oracle(name).moment(TIMES))
    reached = (marginal > 0).all(0)
    assert int(reached.sum()) > len(space.data)
    for later in law[1:, reached]:
        torch.testing.assert_close(later, law[0, reached], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_predictions_for_sources_of_data_tokens_depend_on_the_time(name):
    flow = toys.oracle(name)
    law = flow.predictive(flow.moment(TIMES))[0]
    assert float((law[0] - law[-1]).abs().max()) > 0.1
