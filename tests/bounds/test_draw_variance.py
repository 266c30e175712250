"""Draw noise per network call, on tiny networks."""

import math

import pytest
import torch
import toys
from draw_variance import DrawNoise, compare, measure, usual

from hopflow import exact
from hopflow.evaluation.tightness import bigram, train
from hopflow.exact import Space
from hopflow.flow import Flow
from hopflow.objectives import CrossEntropy
from hopflow.vocab import Vocab

V, L = 3, 4


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in ("mask", "uniform") else pytest.mark.slow) for name in toys.SOURCES],
)
def trained(request) -> exact.Oracle:
    """A network of three hidden units, trained on bigram data for a hundred steps."""
    flow = Flow(toys.source(request.param, V), objective=CrossEntropy())
    q = bigram(V, L, 3.0, seed=0)
    return exact.Oracle(flow, q, L, train(flow, q, L, seed=0, steps=100))


def sequences(flow: exact.Oracle, n: int) -> torch.Tensor:
    return flow.space.data[torch.multinomial(flow.q, n, replacement=True, generator=toys.generator(0))]


def test_a_trained_network_needs_a_third_of_the_calls_for_the_same_draw_noise(trained):
    x1, source = sequences(trained, 48), trained.flow.source
    repeats = 10 if source.full or source.disjoint else 40  # a mixed source: 10 give a share of 0.46 ± 0.24
    for eta in (0.0,) if source.disjoint else (0.0, 1.0):  # a disjoint source has one bound for all η
        ways = {"default": {}}
        first, default = compare(trained.model, trained.flow, x1, eta=eta, ways=ways, repeats=repeats, batch=4096)
        share, error = default.share(of=first)
        assert share < 1 / 3
        assert error < share
        at_x1 = not trained.flow.source.disjoint  # one more call, for the end of the integral
        assert (first.estimator, first.calls, default.calls) == ("usual", 1, 16 + at_x1)
        target = float(exact.bound(trained, eta=eta)[Space(Vocab(V), L).ids(x1)].mean())
        for noise in (first, default):
            assert abs(noise.nats - target) < 5 * noise.stderr  # five: the usual one's error is not to be trusted


def test_times_of_the_usual_estimator_are_one_in_each_part():
    seen: list[torch.Tensor] = []

    def network(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen.append(t)
        return torch.zeros(*xt.shape, 3)

    usual(network, Flow(toys.source("uniform")), torch.zeros(50, 2, dtype=torch.long), batch=8)
    assert sorted((torch.cat(seen) * 50).long().tolist()) == list(range(50))


def test_the_scatter_of_repeats_is_measured_in_blocks():
    values = torch.randn(4000, generator=toys.generator(1), dtype=torch.float64)
    noise = measure("normal", lambda seed: (3 + 2 * float(values[seed]), 7), repeats=100, blocks=40)
    low, middle, high = noise.quartiles
    assert low < middle < high
    assert middle == pytest.approx(7 * 4, rel=0.1)
    assert noise.nats == pytest.approx(3, abs=0.15)
    quarter = DrawNoise("quarter", 7, tuple(cost / 4 for cost in noise.costs), 0.0, 0.0)
    share, error = quarter.share(of=noise)
    assert share == pytest.approx(0.25)
    # of a median of 40 variances with 99 degrees of freedom each, twice
    assert error == pytest.approx(0.25 * math.sqrt(2 * math.pi / 2 * 2 / 99 / 40), rel=0.3)


def test_one_block_has_no_spread():
    with pytest.raises(ValueError, match="2 repeats and its spread 2 blocks"):
        measure("one", lambda seed: (0.0, 1), blocks=1)
