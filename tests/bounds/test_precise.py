"""Theorem A.2 [precise-perplexity-theorem] with the neighbor ratios that a network implies.  theory.md (P)"""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.estimate import Estimate
from hopflow.bounds.monte_carlo import Count, Forced
from hopflow.bounds.nll import nll_bound
from hopflow.bounds.precise import precise_perplexity
from hopflow.exact import Oracle, Perfect, Space
from hopflow.flow import Flow
from hopflow.predictions import Carry, Plain
from hopflow.schedules import Cosine, Linear, Positional
from hopflow.sources import BagOfWords, MultiMask, Uniform
from hopflow.vocab import Vocab


def data(flow: Oracle, n: int, seed: int) -> torch.Tensor:
    """Sequences from the flow's data law."""
    return flow.space.data[torch.multinomial(flow.q, n, replacement=True, generator=toys.generator(seed))]


def agrees(estimate: Estimate, flow: Oracle, exact_values: torch.Tensor, x1: torch.Tensor) -> bool:
    """Within four errors of the mean over these very sequences."""
    target = float(exact_values[Space(Vocab(flow.flow.vocab.data), flow.length).ids(x1)].mean())
    return abs(estimate.nats - target) < 4 * estimate.draw_stderr


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_perfect_network_implies_the_exact_nll(name):
    flow = toys.oracle(name, data=2, network=None, schedule=Cosine())
    torch.testing.assert_close(exact.implied_nll(flow), -flow.q.log(), atol=1e-9, rtol=0)


def test_a_perfect_network_implies_the_true_ratios_of_the_model():
    flow = toys.oracle("bag_of_words", data=2, network=None)
    torch.testing.assert_close(exact.implied_nll(flow), exact.precise_nll(flow), atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_estimate_from_a_perfect_network_is_the_exact_nll(name):
    flow = toys.oracle(name, network=None)
    x1 = data(flow, 600, 0)
    estimate = precise_perplexity(Perfect(flow.flow, flow.q, 2), flow.flow, x1, batch=4096)
    assert agrees(estimate, flow, -flow.q.log(), x1)
    assert (estimate.quantity, estimate.eta, estimate.is_bound) == ("precise", 0, False)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Positional((Linear(), Cosine()))], ids=str)
def test_the_estimate_agrees_with_enumeration_for_any_network(name, schedule):
    flow = toys.oracle(name, schedule=schedule)
    x1 = data(flow, 600, 0)
    estimate = precise_perplexity(flow.model, flow.flow, x1, batch=4096)
    assert agrees(estimate, flow, exact.implied_nll(flow), x1)


@pytest.mark.parametrize("name", ["mask", "multimask"])
@pytest.mark.parametrize("prediction", [Carry(), None], ids=str)
@pytest.mark.parametrize("by", [Count(), Forced()], ids=str)
def test_with_a_disjoint_source_it_is_b0_draw_by_draw(name, prediction, by):
    """Eq. (133), and the same for several masks: all of them imply the same ratios."""
    flow = toys.oracle(name, prediction=prediction)
    for row in flow.space.data:  # one sequence alone: nothing is averaged but its own 16 draws
        same = {"by": by, "draws": 16, "seed": 3}
        b0 = nll_bound(flow.model, flow.flow, row[None], **same)
        precise = precise_perplexity(flow.model, flow.flow, row[None], **same)
        assert precise.nats == pytest.approx(b0.nats, rel=1e-10)
        assert precise.draw_stderr == pytest.approx(b0.draw_stderr, rel=1e-9)
    torch.testing.assert_close(exact.implied_nll(flow), exact.bound(flow), atol=1e-9, rtol=0)


def test_precise_perplexity_is_below_b0_for_a_source_of_data_tokens_and_may_be_below_the_truth():
    """No bound: on a toy of one position it is 0.022 nats too small on average; on most it is too large."""
    space = toys.oracle("uniform", data=2, length=1, seed=151).space
    below = toys.oracle("uniform", data=2, length=1, seed=151, network=toys.Clocked.random(space, 201, size=2.0))
    assert below.mean(exact.implied_nll(below)) < below.cross_entropy() - 0.02
    above = toys.oracle("uniform")
    assert above.cross_entropy() < above.mean(exact.implied_nll(above)) - 0.1
    for flow in (above, below):
        assert flow.mean(exact.implied_nll(flow)) < flow.mean(exact.bound(flow))


@pytest.mark.parametrize("masks", [0, 7])
def test_logits_without_context_have_their_own_law_at_fifty_thousand_tokens(masks):
    """-Σ log softmax(l)[x1] for any source, L and V; b0 is far above it for the uniform one."""
    vocab, length = Vocab(50_257, masks), 4
    logits = 2 * torch.randn(vocab.data, generator=toys.generator(0))
    x1 = torch.multinomial(logits.softmax(0), 24 * length, replacement=True, generator=toys.generator(1)).view(-1, 4)
    flow = Flow(MultiMask(vocab) if masks else Uniform(vocab))
    estimate = precise_perplexity(lambda xt, t: logits.expand(*xt.shape, -1), flow, x1, draws=4, batch=8)
    truth = -float(logits.double().log_softmax(0)[x1].sum(1).mean())
    assert abs(estimate.nats - truth) < 4 * estimate.draw_stderr + 1e-4
    assert estimate.dtype == "float32"


def test_tokens_that_the_source_never_draws_are_no_trouble():
    frequencies = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    flow = toys.oracle("uniform")
    sparse = Oracle(Flow(BagOfWords(Vocab(3), tuple(frequencies.tolist()))), flow.q, 2, flow.model)
    x1 = data(sparse, 600, 0)
    estimate = precise_perplexity(sparse.model, sparse.flow, x1, batch=4096)
    assert agrees(estimate, sparse, exact.implied_nll(sparse), x1)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_float32_logits_give_the_float64_value(name):
    flow = toys.oracle(name)
    x1 = data(flow, 200, 0)
    wide = precise_perplexity(flow.model, flow.flow, x1)
    narrow = precise_perplexity(lambda xt, t: flow.model(xt, t).float(), flow.flow, x1)
    assert narrow.nats == pytest.approx(wide.nats, rel=2e-5)


@pytest.mark.parametrize("name", ["mask", "uniform", "bag_of_words"])
def test_a_target_that_underflows_has_a_finite_price(name):
    logits = torch.tensor([0.0, 0.0, -120.0])
    x1 = torch.full((16, 2), 2)
    flow = Flow(toys.source(name))
    narrow, wide = (
        precise_perplexity(lambda xt, t, d=d: logits.to(d).expand(*xt.shape, 3), flow, x1)
        for d in (torch.float32, torch.float64)
    )
    assert narrow.nats == pytest.approx(wide.nats, rel=1e-4)
    assert narrow.nats > 30  # of 241: a data token costs until 1-k = e^-120, where no point is drawn


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_unigram_control_variate_keeps_the_mean(name):
    flow = toys.oracle(name)
    x1 = data(flow, 600, 6)
    counts = torch.tensor([700.0, 250.0, 50.0])
    estimate = precise_perplexity(flow.model, flow.flow, x1, unigram=counts, batch=4096)
    assert agrees(estimate, flow, exact.implied_nll(flow), x1)


def test_a_prediction_that_does_not_settle_is_refused():
    flow = Flow(toys.source("uniform"), prediction=Plain())
    with pytest.raises(ValueError, match=r"infinite with Plain and Uniform.*Evidence"):
        precise_perplexity(lambda xt, t: torch.zeros(*xt.shape, 3), flow, torch.zeros(4, 2, dtype=torch.long))
