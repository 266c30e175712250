"""A perfect network: B_1 is the entropy for every source, B_0 for disjoint ones only.  theory.md §3, §5"""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.exact import Oracle, Perfect, Space
from hopflow.flow import Flow
from hopflow.predictions import Carry, Evidence, Plain
from hopflow.schedules import Cosine, Linear, Positional
from hopflow.sources import BagOfWords
from hopflow.vocab import Vocab


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize(
    "schedule", [Linear(), Cosine(), Positional((Linear(), Cosine()))], ids=lambda s: type(s).__name__
)
def test_b1_is_the_exact_nll_of_every_sequence(name, schedule):
    flow = toys.oracle(name, network=None, schedule=schedule)
    torch.testing.assert_close(exact.bound(flow, eta=1.0), -flow.q.log(), atol=1e-8, rtol=0)
    assert flow.mean(exact.bound(flow, eta=1.0)) == pytest.approx(flow.entropy, abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_samples_of_a_perfect_network_follow_the_data_law(name, eta):
    flow = toys.oracle(name, network=None)
    torch.testing.assert_close(flow.law(eta=eta), flow.q, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["mask", "multimask"])
def test_b0_is_tight_for_disjoint_sources(name):
    flow = toys.oracle(name, network=None)
    assert flow.mean(exact.bound(flow)) == pytest.approx(flow.entropy, abs=1e-8)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_b0_is_loose_otherwise_and_eta_1_is_the_minimiser(name):
    flow = toys.oracle(name, network=None)
    values = [flow.mean(exact.bound(flow, eta=eta)) for eta in (0.0, 0.25, 0.5, 1.0, 2.0)]
    assert values[0] > flow.entropy + 0.1
    assert min(values) == values[3]


@pytest.mark.parametrize("name", ["mask", "multimask"])
@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=str)
def test_b0_equals_b1_for_disjoint_sources_under_carry_and_evidence(name, prediction):
    flow = toys.oracle(name, prediction=prediction)
    torch.testing.assert_close(exact.bound(flow, eta=1.0), exact.bound(flow), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["mask", "multimask"])
def test_under_plain_the_bound_grows_with_eta(name):
    flow = toys.oracle(name, prediction=Plain())
    values = [flow.mean(exact.bound(flow, eta=eta, steps=64)) for eta in (0.0, 0.5, 1.0)]
    assert values[0] + 0.01 < values[1] < values[2]


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("prediction", [Plain(), Carry(), Evidence()], ids=str)
def test_the_perfect_network_as_a_network_is_the_predictive_law(name, prediction):
    flow = toys.oracle(name, network=None, prediction=prediction)
    network = Oracle(flow.flow, flow.q, 2, Perfect(flow.flow, flow.q, 2))
    moment = flow.moment(torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64))
    _, marginal = flow.predictive(moment)
    reached = marginal > 0
    torch.testing.assert_close(network.probs(moment)[reached], flow.probs(moment)[reached], atol=1e-10, rtol=0)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("name", toys.SOURCES)
def test_with_one_position_the_n_step_law_is_the_data_law_for_every_n(name, steps):
    flow = toys.oracle(name, length=1, data=4, network=None)
    for eta in (0.0, 1.0):
        torch.testing.assert_close(flow.law(eta=eta, steps=steps), flow.q, atol=1e-10, rtol=0)


def product_data(name: str) -> Oracle:
    marginals = toys.dirichlet(2, 3, seed=8)
    q = marginals[0][:, None] * marginals[1][None, :]
    return Oracle(Flow(toys.source(name)), q.flatten(), 2, None)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_product_data_is_sampled_exactly_at_every_n_with_the_fewest_jumps(name):
    flow = product_data(name)
    distance = exact.kantorovich_cost(flow, toys.hamming(flow.flow.vocab.size))
    for steps in (1, 3, 8):
        torch.testing.assert_close(flow.law(steps=steps), flow.q, atol=1e-10, rtol=0)
        assert flow.jumps(steps=steps) == pytest.approx(distance, abs=1e-9)


def test_the_kappa_bound_is_tight_when_the_source_is_the_data_law():
    p0 = (0.6, 0.3, 0.1)
    source = BagOfWords(Vocab(3), p0)
    q = Space(Vocab(3), 2).law(torch.tensor(p0, dtype=torch.float64))
    flow = Oracle(Flow(source), q, 2, None)
    torch.testing.assert_close(exact.kappa_bound(flow), -q.log(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_the_kappa_bound_is_far_nearer_than_b0_when_the_source_is_the_bag_of_words(seed):
    """p0 the unigram law of the data, as bag-of-words is: the proposal is then the unigram flow's own."""
    q = toys.dirichlet(3, 3, seed=seed, sharpness=1.5).flatten() / 3
    q = (q.view(3, 3) + q.view(3, 3).T).flatten() / 2  # both positions with the same marginal
    source = BagOfWords(Vocab(3), tuple(q.view(3, 3).sum(1).tolist()))
    flow = Oracle(Flow(source), q, 2, None)
    near, far = flow.mean(exact.kappa_bound(flow)) - flow.entropy, flow.mean(exact.bound(flow)) - flow.entropy
    assert 0 < near < 0.2 * far


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_sequence_of_probability_1e_20_has_a_finite_bound_too(name):
    """Until 1-k is as small, such a sequence looks like noise; its b0 is large, not infinite, and its b1 exact."""
    q = torch.tensor([1e-20, 0.4, 0.3, 0.3], dtype=torch.float64)
    flow = Oracle(Flow(toys.source(name, data=2)), q, 2, None)
    assert bool(torch.isfinite(exact.bound(flow)).all())
    torch.testing.assert_close(exact.bound(flow, eta=1.0)[0], -q[0].log(), atol=1e-6, rtol=0)
