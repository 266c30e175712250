"""Bounds where they are hard: few sequences, contradicted and impossible tokens, sources with zeros, rough networks."""

import math
from dataclasses import dataclass

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.coupled import coupled_number
from hopflow.bounds.nll import kappa_bound, nll_bound
from hopflow.bounds.precise import precise_perplexity
from hopflow.couplings import Independent
from hopflow.exact import Oracle, Space
from hopflow.flow import Flow
from hopflow.objectives import Bound
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.sources import BagOfWords, Source, Uniform
from hopflow.vocab import Vocab

UNIFORM = Flow(Uniform(Vocab(3)))


@dataclass(frozen=True)
class Given(Source):
    """Any law over data tokens and masks."""

    law: tuple[float, ...]

    def token_probs(self):
        return torch.tensor(self.law, dtype=torch.float64)


def masked(share: float, data: int = 2) -> Source:
    """One mask, and uniform data tokens with this share."""
    return Given(Vocab(data, 1), (*[share / data] * data, 1 - share))


def context_free(*logits: float):
    return lambda xt, t: torch.tensor(logits, dtype=torch.float64).expand(*xt.shape, len(logits))


def sequences(n: int, *law: float, length: int = 4, seed: int = 0) -> torch.Tensor:
    q = torch.tensor(law, dtype=torch.float64)
    return torch.multinomial(q, n * length, replacement=True, generator=toys.generator(seed)).view(n, length)


def price(logits: tuple[float, ...], x1: torch.Tensor) -> float:
    """The exact b1 of a context-free network, for every source."""
    return float(-torch.tensor(logits, dtype=torch.float64).log_softmax(0)[x1].sum(1).mean())


# few sequences

CONTRADICTED, EASY = (-6.0, 0.0, 0.3), (0.0, 0.3, 0.1)


def test_few_sequences_of_contradicted_tokens_have_a_sane_estimate():
    """Eight sequences, 32 draws: a fit by control variates once said -140,268 nats here."""
    x1 = sequences(8, 1 / 3, 1 / 3, 1 / 3)
    exact_nats = price(CONTRADICTED, x1)
    found = [
        nll_bound(context_free(*CONTRADICTED), UNIFORM, x1, eta=1, draws=32, seed=s, batch=4096) for s in range(60)
    ]
    nats = torch.tensor([estimate.nats for estimate in found])
    assert float((nats - exact_nats).abs().max()) < 2
    assert abs(float(nats.mean()) - exact_nats) < 4 * float(nats.std()) / len(nats) ** 0.5


@pytest.mark.parametrize("logits", [EASY, CONTRADICTED], ids=["easy", "contradicted"])
@pytest.mark.parametrize(("n", "draws"), [(2, 4), (4, 16), (8, 32), (32, 16)])
def test_intervals_of_few_sequences_cover_and_their_centres_have_no_bias(logits, n, draws):
    """docs/results/variance.md has the whole table; two sequences of four tokens can agree by chance."""
    law, repeats = (0.2, 0.4, 0.4), 100
    target = -4 * float((torch.tensor(law) * torch.tensor(logits).log_softmax(0)).sum())
    found = [
        nll_bound(
            context_free(*logits), UNIFORM, sequences(n, *law, seed=900 + s), eta=1, draws=draws, seed=s, batch=4096
        )
        for s in range(repeats)
    ]
    nats = torch.tensor([estimate.nats for estimate in found], dtype=torch.float64)
    assert abs(float(nats.mean()) - target) < 4 * float(nats.std()) / repeats**0.5
    held = sum(low <= target <= high for low, high in (estimate.interval() for estimate in found)) / repeats
    assert held > (0.78 if n == 2 else 0.87)


# the end of the integral


@pytest.mark.parametrize("nats", [10.0, 27.0, 50.0, 200.0])
@pytest.mark.parametrize("schedule", [Linear(), Positional((Linear(), Cosine()))], ids=["shared", "positional"])
def test_a_contradicted_token_is_priced_to_the_end(nats, schedule):
    flow, logits = Flow(UNIFORM.source, schedule=schedule), (-nats, 0.0, 0.0)
    x1 = torch.tensor([[0, 0], [1, 0], [0, 2], [1, 2]]).repeat(16, 1)
    network, oracle = context_free(*logits), Oracle(flow, torch.full((9,), 1 / 9), 2, context_free(*logits))
    at = Space(Vocab(3), 2).ids(x1)
    for estimate, target in (
        (nll_bound(network, flow, x1, eta=1), price(logits, x1)),
        (nll_bound(network, flow, x1), float(exact.bound(oracle)[at].mean())),
        (kappa_bound(network, flow, x1), float(exact.kappa_bound(oracle)[at].mean())),
        (precise_perplexity(network, flow, x1), price(logits, x1)),
    ):
        assert abs(estimate.nats - target) < 4 * estimate.draw_stderr, estimate
        assert estimate.draw_stderr < 0.05 * target


@pytest.mark.parametrize(
    "source", [UNIFORM.source, BagOfWords(Vocab(3), (0.5, 0.5, 0.0)), Given(Vocab(3, 1), (0.2, 0.2, 0.1, 0.5))], ids=str
)
def test_what_the_network_calls_impossible_has_infinite_bounds(source):
    network, flow, x1 = context_free(0.0, 0.0, -math.inf), Flow(source), torch.tensor([[0, 2]]).repeat(64, 1)
    estimates = [nll_bound(network, flow, x1, eta=eta) for eta in (0, 0.5, 1)]
    estimates += [nll_bound(network, flow, x1, steps=8, eta=eta) for eta in (0, 1)]
    estimates += [precise_perplexity(network, flow, x1)]
    estimates += [kappa_bound(network, flow, x1)] if source.full else []
    assert [estimate.nats for estimate in estimates] == [math.inf] * len(estimates)


def test_an_impossible_token_elsewhere_leaves_a_finite_bound():
    """Only xt itself is possible besides x1 at some states: minus infinity meets minus infinity."""
    network, x1 = context_free(0.0, -math.inf, -math.inf), torch.zeros(64, 2, dtype=torch.long)
    for estimate in (nll_bound(network, UNIFORM, x1, eta=1), precise_perplexity(network, UNIFORM, x1)):
        assert abs(estimate.nats) < 4 * estimate.draw_stderr + 1e-9
    assert nll_bound(network, UNIFORM, x1, steps=4).nats < 1


@pytest.mark.parametrize("log_p", [-80.0, -90.0, -100.0, -120.0])
def test_the_bound_as_a_loss_has_finite_gradients_where_the_target_underflows(log_p):
    flow = Flow(BagOfWords(Vocab(3), (0.5, 0.5, 0.0)), objective=Bound(1.0))
    x0, x1 = torch.tensor([[0, 1]]), torch.tensor([[2, 2]])
    sample = flow.path.at(x0, x1, torch.tensor([0.5]), torch.tensor([[0.1, 0.1]]))
    logits = torch.tensor([0.0, 0.0, log_p]).expand(1, 2, 3).clone().requires_grad_()
    loss = flow.loss(logits, sample)
    loss.sum().backward()
    assert bool(loss.isfinite().all())
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad[..., 2].sum()) < -1  # toward x1


# the oracle itself


@pytest.mark.parametrize("share", [0.5, 1e-2, 1e-6])
def test_a_small_uniform_share_beside_a_mask_has_a_finite_b1_which_is_the_entropy_of_a_perfect_network(share):
    oracle = Oracle(Flow(masked(share)), toys.dirichlet(4, seed=1), 2)
    torch.testing.assert_close(exact.bound(oracle, eta=1.0), -oracle.q.log(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("size", [1.0, 6.0])
def test_the_quadrature_is_good_to_ten_digits(name, size, monkeypatch):
    oracle = toys.oracle(name, network=toys.Clocked.random(toys.oracle(name).space, 5, size=size))
    found, gauss = exact.bound(oracle, eta=1.0), exact.bounds._gauss
    monkeypatch.setattr(exact.bounds, "_gauss", lambda a, b: gauss(a, b, width=0.5, order=24))
    torch.testing.assert_close(found, exact.bound(oracle, eta=1.0), atol=1e-10, rtol=1e-10)


# sixty flows unlike those of the other tests

SCHEDULES = (Linear(), Polynomial(2.0), Positional((Linear(), Cosine())), Positional((Polynomial(0.5), Linear())))
SOURCES = (
    BagOfWords(Vocab(3), (0.5, 0.5, 0.0)),
    BagOfWords(Vocab(3), (0.9, 0.1, 0.0)),
    masked(0.3),
    masked(0.01),
    Given(Vocab(2, 2), (0.4, 0.0, 0.6, 0.0)),
)


def corner(number: int) -> Oracle:
    source, schedule = SOURCES[number % 5], SCHEDULES[number // 5 % 4]
    flow = Flow(source, schedule=schedule)
    network = toys.Clocked.random(Space(flow.vocab, 2), 100 + number, size=(0.5, 2.0, 4.0)[number % 3])
    return Oracle(flow, toys.dirichlet(flow.vocab.data**2, seed=number, sharpness=2.0), 2, network)


# the first twenty have every source with every schedule
@pytest.mark.parametrize("number", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 60))])
def test_estimates_agree_with_the_oracle_and_no_bound_is_below_its_value(number):
    oracle = corner(number)
    x1 = oracle.space.data[torch.multinomial(oracle.q, 300, replacement=True, generator=toys.generator(number))]
    at = Space(Vocab(oracle.flow.vocab.data), 2).ids(x1)
    for arguments in ({"eta": 0.0}, {"eta": 1.0}, {"eta": 0.5, "steps": 5}):
        bound = exact.bound(oracle, **arguments)
        assert float((bound - oracle.nll(**arguments)).min()) > -1e-7
        estimate = nll_bound(oracle.model, oracle.flow, x1, draws=8, batch=4096, seed=number, **arguments)
        assert abs(estimate.nats - float(bound[at].mean())) < 4 * estimate.draw_stderr + 1e-9, (arguments, estimate)


def test_coupled_numbers_are_priced_to_the_end_as_well():
    """With independent pairs the number is b0."""
    network, x1 = context_free(-40.0, 0.0, 0.0), torch.tensor([[0, 1], [1, 2]]).repeat(64, 1)
    oracle = Oracle(UNIFORM, torch.full((9,), 1 / 9), 2, network)
    target = float(exact.bound(oracle)[Space(Vocab(3), 2).ids(x1)].mean())
    estimate = coupled_number(network, UNIFORM, x1, Independent(), minibatch=2)
    assert abs(estimate.nats - target) < 4 * estimate.stderr
    assert estimate.stderr < 0.1 * target


def test_where_only_the_current_token_is_possible_another_target_has_infinite_bounds():
    """Of the tokens other than xt, none is possible, x1 among them."""
    network, x1 = context_free(0.0, -math.inf, -math.inf), torch.ones(64, 2, dtype=torch.long)
    estimates = [nll_bound(network, UNIFORM, x1), nll_bound(network, UNIFORM, x1, steps=8)]
    estimates += [nll_bound(network, UNIFORM, x1, eta=1), precise_perplexity(network, UNIFORM, x1)]
    assert [estimate.nats for estimate in estimates] == [math.inf] * 4
