"""App. A.3.1 [special_masked_case]: with a single mask the second bound is the first."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.literal import literal_second_bound
from hopflow.bounds.nll import nll_bound
from hopflow.predictions import Carry, Evidence


@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=str)
def test_with_a_mask_the_bound_is_the_same_for_every_eta(prediction):
    flow = toys.oracle("mask", prediction=prediction)
    first = exact.bound(flow)
    for eta in (0.5, 1.0, 2.0):
        torch.testing.assert_close(exact.bound(flow, eta=eta), first, atol=1e-10, rtol=0)


def test_the_literal_second_algorithm_has_the_mean_of_the_first_bound():
    flow = toys.oracle("mask", length=3, data=2)
    x1 = flow.space.data[torch.multinomial(flow.q, 4000, replacement=True, generator=toys.generator(0))]
    literal = literal_second_bound(flow.model, flow.flow, x1, draws=32, batch=4096)
    per_sequence = exact.bound(flow)[exact.Space(type(flow.flow.vocab)(2), 3).ids(x1)]
    assert abs(literal.nats - float(per_sequence.mean())) < 4 * literal.draw_stderr
    first = nll_bound(flow.model, flow.flow, x1, draws=32, batch=4096)
    assert first.draw_stderr < literal.draw_stderr  # the same number, at a higher price
