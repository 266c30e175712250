"""App. A.4 [A3]: with carry-over and a mask the bound is MD4's weighted cross-entropy of the masked positions."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.flow import Flow
from hopflow.objectives import Bound
from hopflow.predictions import Carry
from hopflow.schedules import Cosine, Linear
from hopflow.sources import Mask
from hopflow.vocab import Vocab


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
def test_the_bound_objective_is_md4s_weighting(schedule):
    flow = Flow(Mask(Vocab(5, 1)), schedule=schedule, prediction=Carry(), objective=Bound(0.0))
    g = toys.generator(0)
    x1 = torch.randint(0, 5, (64, 7), generator=g)
    t = torch.rand(64, generator=g, dtype=torch.float64)
    sample = flow.path.sample(flow.source.sample(64, 7, generator=g), x1, t, g)
    logits = torch.randn(64, 7, 5, generator=g, dtype=torch.float64)
    nll = -logits.log_softmax(-1).gather(-1, x1[..., None])[..., 0]
    weight = schedule.dk(t) / (1 - schedule.k(t))
    md4 = weight * torch.where(sample.xt == 5, nll, 0.0).sum(1)
    torch.testing.assert_close(flow.loss(logits, sample), md4)


def test_the_integral_of_md4_is_the_mean_over_masked_states():
    flow = toys.oracle("mask", prediction=Carry(), data=2)
    total = torch.zeros(len(flow.space.data), dtype=torch.float64)
    for moment, weight in exact.bounds.nodes(flow):
        law = flow.probs(moment)[..., :2]
        masked = ~flow.flow.vocab.is_data(flow.space.states)
        terms = torch.where(masked[..., None], -law.log(), 0.0) / moment.rest[:, :, None, None]
        mean = exact.bounds._mean_given_x1(flow, moment.rest, terms)
        total += (weight[:, None] * moment.per_tau[:, None] * mean).sum(0)
    torch.testing.assert_close(exact.bound(flow), total, atol=1e-10, rtol=0)
