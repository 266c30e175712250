"""Sources with a distribution for each position: the oracle, estimates, samples and the events of samplers."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from scipy.stats import chisquare

import hopflow as hf
from hopflow import exact
from hopflow.bounds.reversal import reversal_bound
from hopflow.exact import Oracle, Perfect, Space
from hopflow.predictions import Carry, Evidence, Plain
from hopflow.sources import PositionFrequencies, Source
from hopflow.vocab import Vocab

LENGTH = 2


@dataclass(frozen=True)
class HalfMasked(Source):
    """The first position starts as the mask, the second as a data token."""

    def token_probs(self):
        return torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)


@dataclass(frozen=True)
class TwoMasks(Source):
    """Both positions start as masks, with different probabilities."""

    def token_probs(self):
        return torch.tensor([[0.0, 0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.0, 0.3, 0.7]], dtype=torch.float64)


BY_POSITION = PositionFrequencies(Vocab(3), ((0.6, 0.3, 0.1), (0.1, 0.2, 0.7)))
SOURCES = (BY_POSITION, HalfMasked(Vocab(3, 1)), TwoMasks(Vocab(3, 2)))
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)


def law(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(0)


@dataclass(frozen=True)
class OnePosition(Source):
    """The distribution of one position of a source, for sequences of one token."""

    probs_here: tuple[float, ...] = ()

    def token_probs(self):
        return torch.tensor(self.probs_here, dtype=torch.float64)


def one_position(source: Source, i: int) -> Source:
    return OnePosition(source.vocab, tuple(source.token_probs()[i].tolist()))


@cache
def rough(source: Source, prediction=None) -> Oracle:
    flow, space = hf.Flow(source, prediction=prediction or Evidence()), Space(source.vocab, LENGTH)
    generator = torch.Generator().manual_seed(5)
    probs = torch.rand(len(space.states), LENGTH, 3, generator=generator, dtype=torch.float64) + 0.2
    table = exact.Table(space, probs / probs.sum(-1, keepdim=True))
    return Oracle(flow, law(9), LENGTH, model=table)


# the source


def test_every_position_is_drawn_from_its_own_distribution():
    u = torch.rand(5, 7, LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[0, 0] = 0.0
    tokens = BY_POSITION.at(u)
    for i in range(LENGTH):
        alone = hf.BagOfWords(Vocab(3), BY_POSITION.frequencies[i])
        assert torch.equal(tokens[..., i], alone.at(u[..., i]))
        assert torch.equal(BY_POSITION.probs(tokens)[..., i], alone.probs(tokens[..., i]))
    position = torch.arange(70) % LENGTH
    rows = BY_POSITION.of_rows(position)
    assert torch.equal(rows.at(u.flatten()), tokens.flatten())
    assert torch.equal(rows.probs(tokens.flatten()), BY_POSITION.probs(tokens).flatten())
    assert torch.equal(rows.probs_on(torch.device("cpu"))[:LENGTH], BY_POSITION.probs_on(torch.device("cpu")))
    assert hf.Uniform(Vocab(3)).of_rows(position) == hf.Uniform(Vocab(3))


def test_questions_about_a_source_are_answered_for_each_position():
    half = HalfMasked(Vocab(3, 1))
    assert half.disjoint_positions.tolist() == [True, False]
    assert (half.disjoint, half.full, half.constant, half.shared) == (False, False, False, False)
    assert TwoMasks(Vocab(3, 2)).disjoint
    assert BY_POSITION.full
    x = torch.tensor([[0, 0], [3, 2]])
    assert half.comes_from_data(x).tolist() == [[True, False], [False, False]]
    assert Carry().shift(x, torch.full((2, 1), 0.5), half).tolist() == [[torch.inf, 0.0], [0.0, 0.0]]
    entropy = sum(float(torch.special.entr(one).sum()) for one in BY_POSITION.token_probs()) / LENGTH
    assert BY_POSITION.entropy == pytest.approx(entropy)


def test_frequencies_are_those_of_the_rows():
    rows = torch.tensor([[0, 2], [0, 1], [1, 2]])
    found = PositionFrequencies.of(Vocab(3), rows, smoothing=1.0)
    assert found.token_probs() == pytest.approx(torch.tensor([[3, 2, 1], [1, 2, 3]]) / 6)
    fitted = PositionFrequencies.fit(torch.tensor([[3, 0], [1, 2]]))
    assert fitted.token_probs()[0, 0] == pytest.approx(0.9995)


@pytest.mark.parametrize(
    ("frequencies", "message"),
    [
        (((0.5, 0.5), (0.5, 0.6)), "their sum at position 1 is 1.1"),
        (((0.5, 0.5), (1.0,)), r"one number per data token \(2\) for each position, got rows of 2, 1 numbers"),
        ((), "got no position"),
    ],
)
def test_wrong_frequencies_are_refused(frequencies, message):
    with pytest.raises(ValueError, match=message):
        PositionFrequencies(Vocab(2), frequencies)


def test_another_length_is_one_message_everywhere(tmp_path):
    flow, x1 = hf.Flow(BY_POSITION), torch.zeros(2, 3, dtype=torch.int64)
    message = "PositionFrequencies has a distribution for each of 2 positions, got sequences of 3 tokens"

    def network(xt, t):
        return torch.zeros(*xt.shape, 3)

    corpus = hf.data.rows(torch.zeros(8, 3, dtype=torch.int64), vocab=3, cache=tmp_path)
    calls = (
        lambda: BY_POSITION.sample(4, 3),
        lambda: BY_POSITION.probs(x1),
        lambda: hf.generate(network, flow, n=1, length=3),
        lambda: hf.nll_bound(network, flow, x1),
        lambda: reversal_bound(network, flow, x1),
        lambda: Oracle(flow, law(27), 3),
        lambda: hf.train(hf.Transformer(flow.vocab, "micro"), flow, corpus, out=tmp_path / "run", steps=1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert not (tmp_path / "run").exists()


# the oracle


@each_source
def test_a_perfect_network_has_the_law_of_the_data_and_a_tight_b1(source):
    q, flow = law(9), hf.Flow(source)
    oracle = Oracle(flow, q, LENGTH, model=Perfect(flow, q, LENGTH))
    assert oracle.law() == pytest.approx(q, abs=1e-8)
    assert oracle.law(eta=1) == pytest.approx(q, abs=1e-8)
    hops = (q[:, None] * (1 - source.probs(oracle.space.data, torch.float64))).sum()
    assert oracle.jumps() == pytest.approx(float(hops), abs=1e-8)
    assert exact.bound(oracle, eta=1) == pytest.approx(-q.log(), abs=1e-8)
    assert bool((exact.bound(oracle) > -q.log() - 1e-8).all())


@each_source
def test_with_a_network_without_context_every_quantity_is_a_sum_over_positions(source):
    logits = torch.randn(LENGTH, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = law(3, 1), law(3, 2)
    data = (q[0][:, None] * q[1]).flatten()
    joint = Oracle(hf.Flow(source), data, LENGTH, model=lambda xt, t: logits.expand(len(xt), -1, -1))
    alone = [
        Oracle(hf.Flow(one_position(source, i)), q[i], 1, model=lambda xt, t, i=i: logits[i].expand(len(xt), 1, 3))
        for i in range(LENGTH)
    ]

    def summed(quantity):
        first, second = (quantity(oracle) for oracle in alone)
        return (first[:, None] + second).flatten()

    quantities = [exact.bound, lambda o: exact.bound(o, eta=1), lambda o: exact.bound(o, steps=4, eta=0.5), Oracle.nll]
    if source.full:
        quantities.append(exact.kappa_bound)
    for quantity in quantities:
        assert quantity(joint) == pytest.approx(summed(quantity), abs=1e-8)
    assert joint.jumps() == pytest.approx(sum(oracle.jumps() for oracle in alone), abs=1e-8)
    assert joint.jumps(steps=4) == pytest.approx(sum(oracle.jumps(steps=4) for oracle in alone), abs=1e-8)
    cost = 1 - torch.eye(source.vocab.size, dtype=torch.float64)
    costs = sum(exact.kantorovich_cost(oracle, cost) for oracle in alone)
    assert exact.kantorovich_cost(joint, cost) == pytest.approx(costs, abs=1e-12)


def test_the_bound_for_the_few_hops_sampler_is_tight_if_the_data_is_the_source():
    q = (BY_POSITION.token_probs()[0][:, None] * BY_POSITION.token_probs()[1]).flatten()
    flow = hf.Flow(BY_POSITION)
    oracle = Oracle(flow, q, LENGTH, model=Perfect(flow, q, LENGTH))
    assert exact.kappa_bound(oracle) == pytest.approx(-q.log(), abs=1e-8)


# estimates and samples


@each_source
def test_bounds_agree_with_the_oracle(source):
    oracle = rough(source)
    flow, network, x1, how = oracle.flow, oracle.model, oracle.space.data, {"draws": 512, "seed": 2}
    bounds = [
        (hf.nll_bound(network, flow, x1, **how), exact.bound(oracle)),
        (hf.nll_bound(network, flow, x1, eta=1, **how), exact.bound(oracle, eta=1)),
        (hf.nll_bound(network, flow, x1, eta=0.5, steps=4, **how), exact.bound(oracle, eta=0.5, steps=4)),
        (hf.nll_bound(network, flow, x1, steps=4, refresh=2.0, **how), exact.bound(oracle, steps=4, refresh=2.0)),
        (hf.precise_perplexity(network, flow, x1, **how), exact.implied_nll(oracle)),
    ]
    if source.full:
        bounds.append((hf.kappa_bound(network, flow, x1, **how), exact.kappa_bound(oracle)))
    for estimate, wanted in bounds:
        assert abs(estimate.nats - float(wanted.mean())) < 4 * estimate.draw_stderr, estimate
    found = reversal_bound(network, flow, x1, steps=3, paths=600, eta=0.5, seed=1)
    assert torch.tensor(found.each) == pytest.approx(oracle.nll(steps=3, eta=0.5), abs=0.12)


@pytest.mark.parametrize("prediction", [Evidence(), Carry(), Plain()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(("eta", "refresh"), [(0.0, 0.0), (0.7, 1.5)])
@each_source
def test_samples_have_the_law_of_the_oracle(source, eta, refresh, prediction):
    oracle = rough(source, prediction)
    sampler = hf.Euler(4, refresh=refresh)
    out = hf.generate(oracle.model, oracle.flow, n=8_000, length=LENGTH, sampler=sampler, eta=eta, seed=4)
    seen = (out.tokens * torch.tensor([3, 1])).sum(1).bincount(minlength=9)
    assert chisquare(seen, oracle.law(eta=eta, steps=4, refresh=refresh) * 8_000).pvalue > 1e-4
    jumps = oracle.jumps(eta=eta, steps=4, refresh=refresh)
    assert abs(float(out.jumps.mean()) - jumps) <= 4 * float(out.jumps.std()) / 8_000**0.5 + 1e-9


def test_where_data_tokens_stay_only_the_first_redraw_of_a_position_is_an_event():
    oracle = rough(HalfMasked(Vocab(3, 1)))
    out = hf.generate(oracle.model, oracle.flow, n=200, length=LENGTH, steps=8, seed=1)
    assert (out.redraws[:, 0] == 1).all()
    assert float(out.redraws[:, 1].double().mean()) > 1.5


def test_a_transformer_is_trained_with_a_coupling_and_a_head_for_x0(tmp_path):
    rows = torch.arange(64)[:, None] // torch.tensor([16, 4, 1]) % 3
    corpus = hf.data.rows(rows, vocab=3, cache=tmp_path)
    source = PositionFrequencies.of(Vocab(3), rows, smoothing=1.0)
    flow = hf.Flow(source, coupling=hf.ExactOT())
    model = hf.Transformer(flow.vocab, "micro", predict_x0=True)
    keys = {"batch": 8, "steps": 3, "workers": 0, "threads": 1, "eval_samples": 2, "eval_rows": 2, "eval_steps": 2}
    hf.train(model, flow, corpus, out=tmp_path / "run", **keys)
    found = hf.from_pretrained(tmp_path / "run")
    assert found.flow == flow
    assert reversal_bound(found.model, found.flow, rows[:4], steps=2, paths=2).nats > 0
    half = hf.Flow(HalfMasked(Vocab(3, 1)), coupling=hf.ExactOT())
    pairs = hf.data.rows(rows[:, :2], vocab=3, cache=tmp_path)
    with pytest.raises(ValueError, match="predict_x0 needs a source that draws the same tokens at every position"):
        hf.train(hf.Transformer(half.vocab, "micro", predict_x0=True), half, pairs, out=tmp_path / "half", **keys)
