"""Monte Carlo estimators of the bounds against the oracle."""

import math

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.coupled import coupled_bound, coupled_number
from hopflow.bounds.estimate import Estimate
from hopflow.bounds.estimator import BoundEstimator
from hopflow.bounds.integrands import Rates, Steps
from hopflow.bounds.literal import literal_second_bound
from hopflow.bounds.monte_carlo import Count, Forced
from hopflow.bounds.nll import kappa_bound, nll_bound
from hopflow.costs import Hamming, OneStepLikelihood
from hopflow.couplings import ExactOT, Independent
from hopflow.exact import Oracle, Space
from hopflow.flow import Flow
from hopflow.paths import PathSample
from hopflow.predictions import Carry, Plain
from hopflow.schedules import Cosine, Linear, Positional
from hopflow.scores import Scores
from hopflow.sources import BagOfWords
from hopflow.transport.assignment import assignment
from hopflow.vocab import Vocab

ETAS = {"0": 0.0, "1": 1.0, "eta(t)": lambda t: 0.5 + t}


def data(flow: Oracle, n: int, seed: int) -> torch.Tensor:
    """Sequences from the flow's data law."""
    return flow.space.data[torch.multinomial(flow.q, n, replacement=True, generator=toys.generator(seed))]


def per_sequence(flow: Oracle, values: torch.Tensor, x1: torch.Tensor) -> float:
    """The mean of exact values over these very sequences: only draw noise is left."""
    return float(values[Space(Vocab(flow.flow.vocab.data), flow.length).ids(x1)].mean())


def agrees(estimate: Estimate, target: float) -> bool:
    return abs(estimate.nats - target) < 4 * estimate.draw_stderr


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", ETAS.values(), ids=ETAS)
@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
def test_the_estimate_agrees_with_the_oracle(name, eta, schedule):
    flow = toys.oracle(name, schedule=schedule)
    x1 = data(flow, 600, 0)
    estimate = nll_bound(flow.model, flow.flow, x1, eta=eta, draws=16, batch=4096)
    assert agrees(estimate, per_sequence(flow, exact.bound(flow, eta=eta), x1))
    assert estimate.is_bound


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("prediction", [Plain(), Carry()], ids=str)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_n_step_bound_agrees_with_the_oracle_under_any_prediction(name, prediction, eta):
    flow = toys.oracle(name, prediction=prediction, schedule=Cosine())
    x1 = data(flow, 600, 1)
    estimate = nll_bound(flow.model, flow.flow, x1, eta=eta, steps=7, draws=16, batch=4096)
    assert agrees(estimate, per_sequence(flow, exact.bound(flow, eta=eta, steps=7), x1))
    assert estimate.quantity == "bn"


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_plain_sampler_that_stops_early_agrees_with_the_oracle(name):
    flow = toys.oracle(name, prediction=Plain())
    x1 = data(flow, 600, 2)
    estimate = nll_bound(flow.model, flow.flow, x1, eta=0.5, end=0.02, draws=16, batch=4096)
    assert agrees(estimate, per_sequence(flow, exact.bound(flow, eta=0.5, end=0.02), x1))


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_position_specific_schedules_agree_with_the_oracle(name, eta):
    flow = toys.oracle(name, schedule=Positional((Linear(), Cosine())))
    x1 = data(flow, 600, 3)
    estimate = nll_bound(flow.model, flow.flow, x1, eta=eta, draws=16, batch=4096)
    assert agrees(estimate, per_sequence(flow, exact.bound(flow, eta=eta), x1))
    steps = nll_bound(flow.model, flow.flow, x1, eta=eta, steps=6, draws=16, batch=4096)
    assert agrees(steps, per_sequence(flow, exact.bound(flow, eta=eta, steps=6), x1))


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
@pytest.mark.parametrize("schedule", [Linear(), Positional((Linear(), Cosine()))], ids=lambda s: type(s).__name__)
def test_the_kappa_bound_agrees_with_the_oracle(name, schedule):
    flow = toys.oracle(name, schedule=schedule)
    x1 = data(flow, 600, 4)
    estimate = kappa_bound(flow.model, flow.flow, x1, draws=16, batch=4096)
    assert agrees(estimate, per_sequence(flow, exact.kappa_bound(flow), x1))


@pytest.mark.parametrize("name", ["mask", "multimask"])
def test_forced_noise_and_the_count_estimator_have_the_same_mean(name):
    flow = toys.oracle(name, length=3, data=2)
    x1 = data(flow, 600, 5)
    target = per_sequence(flow, exact.bound(flow), x1)
    for by in (Count(), Forced(), Forced(noise=1.0), Forced(noise=0.5, data=0.2)):
        assert agrees(nll_bound(flow.model, flow.flow, x1, by=by, draws=16, batch=4096), target)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_unigram_control_variate_keeps_the_mean_and_lowers_the_draw_noise(name):
    """A network that knows the token frequencies, and a little more."""
    unigram = torch.tensor([0.7, 0.25, 0.05], dtype=torch.float64)
    more = toys.Clocked.random(toys.oracle(name).space, 7, size=0.3)
    flow = toys.oracle(name, network=lambda xt, t: unigram.log() + more(xt, t))
    x1 = data(flow, 600, 6)
    target = per_sequence(flow, exact.bound(flow, eta=1.0), x1)
    plain = nll_bound(flow.model, flow.flow, x1, eta=1.0, draws=16, batch=4096)
    counts = 1000 * unigram  # counts do as well as frequencies
    controlled = nll_bound(flow.model, flow.flow, x1, eta=1.0, unigram=counts, draws=16, batch=4096)
    assert agrees(controlled, target)
    # how rare the noisy tokens are is known anyway, and with a disjoint source the unigram network knows no more
    assert controlled.draw_stderr < (1.05 if flow.flow.source.disjoint else 0.8) * plain.draw_stderr


@pytest.mark.parametrize(
    ("name", "cost"), [("uniform", Hamming()), ("multimask", Hamming()), ("multimask", OneStepLikelihood())], ids=str
)
def test_the_coupled_numbers_agree_with_enumeration_of_the_coupling(name, cost):
    """The coupled number over all batches of two source rows equals the oracle's under the law of the chosen rows."""
    flow = toys.oracle(name, data=2, length=1)
    rows = torch.tensor([[0], [1]])

    def order(x0, x1):
        return torch.eye(2, dtype=torch.float64)[assignment(cost.matrix(x0, x1, network=flow.model))]

    chosen, _ = exact.chosen_rows(flow.flow.source, rows, order)
    joint = exact.Joint.of(flow.space, chosen.T / 2)
    target = exact.coupled(Oracle(flow.flow, torch.tensor([0.5, 0.5], dtype=torch.float64), 1, flow.model, joint))
    x1 = rows.repeat(150, 1)
    number = coupled_number(flow.model, flow.flow, x1, ExactOT(cost), minibatch=2, draws=16, batch=4096)
    bound = coupled_bound(flow.model, flow.flow, x1, ExactOT(cost), minibatch=2, draws=16, batch=4096)
    assert abs(number.nats - target) < 4 * number.stderr
    assert bound.nats == pytest.approx(number.nats + math.log(2))
    assert (number.is_bound, bound.is_bound) == (False, True)
    assert (number.quantity, bound.quantity) == ("coupled", "coupled_info")
    assert number.n == 150  # minibatches are the independent units


def test_independent_pairs_make_the_coupled_number_a_bound():
    flow = toys.oracle("uniform")
    number = coupled_number(flow.model, flow.flow, data(flow, 64, 0), Independent(), minibatch=8)
    assert number.is_bound


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_error_falls_as_one_over_the_square_root_of_n(name):
    flow = toys.oracle(name)
    few, many = (
        nll_bound(flow.model, flow.flow, data(flow, n, 7), eta=1.0, draws=8, batch=4096) for n in (1000, 16_000)
    )
    assert few.stderr / many.stderr == pytest.approx(4, rel=0.25)
    assert few.draw_stderr / many.draw_stderr == pytest.approx(4, rel=0.25)


CASES = {
    "count": {"by": Count()},
    "forced": {"by": Forced()},
    "forced b1": {"by": Forced(), "eta": 1.0},
    "control": {"eta": 1.0, "unigram": torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)},
    "steps": {"steps": 6},
}


MILD, WILD = 0.5, 3.0  # logits of this size: a network near the truth, and one that contradicts its data
COVERED = [
    (name, case, MILD) for name in toys.SOURCES for case in CASES if case != "count" or toys.source(name).disjoint
]  # the count estimator is for disjoint sources
COVERED += [(name, case, WILD) for name in ("uniform", "bag_of_words") for case in ("forced", "forced b1")]
QUICK = (("mask", "count", MILD), ("multimask", "steps", MILD), ("uniform", "forced", MILD))
QUICK += (("bag_of_words", "control", MILD), ("bag_of_words", "forced b1", WILD))
"""Each estimator once; the other cases are slow tests."""


@pytest.mark.parametrize(
    ("name", "case", "size"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in COVERED],
)
def test_95_percent_intervals_hold_the_exact_value_93_5_to_96_5_percent_of_the_time(name, case, size, monkeypatch):
    """2,000 repeats of an estimate from 256 sequences with 4 draws each, in one vectorized run."""
    flow = toys.oracle(name, network=toys.Clocked.random(toys.oracle(name).space, 11, size=size))
    repeats, sequences = 2000, 256
    x1 = data(flow, repeats * sequences, 8)
    tables: list[torch.Tensor] = []
    make = Estimate.of.__func__  # type: ignore[attr-defined]

    def keep(cls: type, draws: torch.Tensor, **what: object) -> Estimate:
        tables.append(draws)
        return make(cls, draws, **what)

    monkeypatch.setattr(Estimate, "of", classmethod(keep))
    whole = nll_bound(flow.model, flow.flow, x1, draws=4, batch=1 << 17, **CASES[case])
    (table,) = tables
    what = {"quantity": "b", "length": 2, "eta": 0.0, "is_bound": True, "calls": 4}
    arguments = {key: value for key, value in CASES[case].items() if key in ("eta", "steps")}
    target = flow.mean(exact.bound(flow, **arguments))
    intervals = [make(Estimate, part, **what).interval() for part in table.split(sequences)]
    held = sum(low <= target <= high for low, high in intervals) / repeats
    assert 0.935 <= held <= 0.965
    assert abs(whole.nats - target) < 4 * whole.stderr


@pytest.mark.parametrize("name", toys.SOURCES)
def test_draw_noise_is_the_error_for_a_fixed_set_of_sequences(name):
    """Over many seeds the estimate of one fixed set scatters by draw_stderr."""
    flow = toys.oracle(name)
    x1 = data(flow, 64, 9)
    estimates = [nll_bound(flow.model, flow.flow, x1, draws=4, seed=seed, batch=4096) for seed in range(150)]
    scatter = float(torch.tensor([e.nats for e in estimates]).std())
    promised = math.sqrt(sum(e.draw_stderr**2 for e in estimates) / len(estimates))
    assert scatter == pytest.approx(promised, rel=0.25)


def test_one_sequence_alone_gets_its_error_from_sixteen_replicates():
    flow = toys.oracle("uniform")
    estimate = nll_bound(flow.model, flow.flow, flow.space.data[:1], draws=64)
    assert estimate.freedom == 15
    assert agrees(estimate, float(exact.bound(flow)[0]))


def test_the_result_does_not_depend_on_the_batch_size():
    flow = toys.oracle("bag_of_words")
    x1 = data(flow, 50, 0)
    a, b = (nll_bound(flow.model, flow.flow, x1, eta=1.0, batch=batch) for batch in (7, 1000))
    assert a.nats == pytest.approx(b.nats, abs=1e-12)


def test_float32_networks_give_the_float64_value_near_the_end():
    """The same draws through float32 logits: the careful formulas lose nothing that matters."""
    flow = toys.oracle("bag_of_words")
    x1 = data(flow, 200, 0)
    wide = nll_bound(flow.model, flow.flow, x1, eta=1.0, draws=64)
    narrow = nll_bound(lambda xt, t: flow.model(xt, t).float(), flow.flow, x1, eta=1.0, draws=64)
    assert narrow.nats == pytest.approx(wide.nats, rel=1e-5)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_integrand_in_float32_at_1e_7_from_the_end(name):
    """1-k = 1e-7 and k = 2^-20: rates of order 1e7 whose divergence is of order 1."""
    flow = toys.oracle(name)
    for rest in (1e-7, 1 - 2**-20):  # the latter is a float32 number: k is as exact as 1-k
        u = torch.full((400,), rest, dtype=torch.float64)
        draw = Forced().draw(Rates(Linear(), 1.0).clock, u, 2, toys.generator(0))
        x1 = data(flow, 400, 1)
        x0 = flow.flow.source.sample(400, 2, generator=toys.generator(2))
        narrow, wide = (
            BoundEstimator(lambda xt, t, d=d: flow.model(xt, t).to(d), flow.flow, 2, 0, 64)._values(
                Rates(Linear(), 1.0), draw, x0, x1
            )
            for d in (torch.float32, torch.float64)
        )
        torch.testing.assert_close(narrow, wide, rtol=2e-4, atol=1e-6)


def test_bad_input_is_named_with_the_way_out():
    flow = toys.oracle("uniform")
    model, x1 = flow.model, flow.space.data
    plain = Flow(flow.flow.source, prediction=Plain())
    with pytest.raises(ValueError, match=r"infinite with Plain.*steps=N.*end=1e-3.*Evidence"):
        nll_bound(model, plain, x1)
    with pytest.raises(ValueError, match=r"infinite with Plain.*Evidence"):
        kappa_bound(model, plain, x1)
    with pytest.raises(ValueError, match="eta must be ≥ 0"):
        nll_bound(model, flow.flow, x1, eta=-0.5)
    with pytest.raises(ValueError, match="steps must be an integer ≥ 1"):
        nll_bound(model, flow.flow, x1, steps=0)
    with pytest.raises(ValueError, match="end, the 1-k at which the sampler stops, must be ≥ 0"):
        nll_bound(model, flow.flow, x1, end=1.0)
    with pytest.raises(ValueError, match="out of range"):
        nll_bound(model, flow.flow, x1 + 5)
    with pytest.raises(ValueError, match="x1 must contain at least one sequence"):
        nll_bound(model, flow.flow, x1[:0])
    with pytest.raises(ValueError, match="draws must be an integer ≥ 2"):
        nll_bound(model, flow.flow, x1, draws=1)
    with pytest.raises(ValueError, match=r"Count needs a disjoint source.*Forced"):
        nll_bound(model, flow.flow, x1, by=Count())
    with pytest.raises(ValueError, match=r"Count needs a disjoint source.*no steps"):
        nll_bound(toys.oracle("mask").model, toys.oracle("mask").flow, x1, steps=6, by=Count())
    with pytest.raises(ValueError, match="different samplers"):
        nll_bound(model, flow.flow, x1, steps=6, end=0.1)
    with pytest.raises(ValueError, match="with position-specific schedules pass steps=N"):
        nll_bound(model, Flow(flow.flow.source, schedule=Positional((Linear(), Cosine()))), x1, end=0.1)
    with pytest.raises(ValueError, match="2 schedules, but the sequences have 3 positions"):
        nll_bound(model, Flow(flow.flow.source, schedule=Positional((Linear(), Cosine()))), x1.repeat(1, 2)[:, :3])
    with pytest.raises(ValueError, match="finite"):
        nll_bound(model, flow.flow, x1, eta=math.inf)
    with pytest.raises(ValueError, match="must be an integer ≥ 1, got 0"):
        nll_bound(model, flow.flow, x1, batch=0)
    with pytest.raises(ValueError, match="minibatch must be an integer from 1 to"):
        coupled_bound(model, flow.flow, x1, ExactOT(), minibatch=128)
    with pytest.raises(ValueError, match="the network returned NaN"):
        nll_bound(lambda xt, t: torch.full((*xt.shape, 3), math.nan), flow.flow, x1)
    with pytest.raises(ValueError, match="eta=1"):
        nll_bound(model, flow.flow, x1, unigram=torch.ones(3) / 3)
    with pytest.raises(ValueError, match="positive frequencies"):
        nll_bound(model, flow.flow, x1, eta=1.0, unigram=torch.tensor([0.0, 0.5, 0.5]))
    with pytest.raises(ValueError, match=r"minibatches of 4.*x1\[:8\]"):
        coupled_bound(model, flow.flow, x1, ExactOT(), minibatch=4)
    masked = toys.oracle("mask")
    with pytest.raises(ValueError, match=r"draws every data token and no mask.*nll_bound\(eta=0\)"):
        kappa_bound(masked.model, masked.flow, masked.space.data)
    with pytest.raises(ValueError, match="single-mask"):
        literal_second_bound(model, flow.flow, x1)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_a_target_that_underflows_has_a_finite_price(name):
    """log P(x1) = -120: P is 0 in float32, its logarithm is not; with η(t) = 0, and with p0(x1) = 0."""
    source = toys.source(name) if name == "uniform" else BagOfWords(Vocab(3), (0.5, 0.5, 0.0))
    x1 = torch.full((16, 2), 2)
    logits = torch.tensor([0.0, 0.0, -120.0])

    def network(dtype: torch.dtype) -> object:
        return lambda xt, t: logits.to(dtype).expand(*xt.shape, 3)

    eta = (lambda t: torch.zeros_like(t)) if name == "uniform" else 1.0
    narrow, wide = (nll_bound(network(d), Flow(source), x1, eta=eta) for d in (torch.float32, torch.float64))
    assert narrow.nats == pytest.approx(wide.nats, rel=1e-4)
    assert narrow.nats > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("refresh", "stays"), [(0, 1.0), (1, 76 / 81)])
def test_a_step_whose_corrector_is_capped_pays_all_nats_by_which_the_network_denies_a_token(dtype, refresh, stays):
    """Where r + s = 1 and p0(xt) = 0, the probability to stay is P(xt) = e^-60 times that of K[δ_x1]."""
    xt, logits = torch.tensor([[2]]), torch.tensor([[[0.0, 0.0, -60.0]]], dtype=dtype)
    steps = Steps(Linear(), steps=9, eta=4.0, refresh=refresh)  # r = 1/6 and s = 5/6 in the fourth step
    point = steps.clock(torch.tensor([0.6], dtype=torch.float64), torch.tensor([0]))
    sample = PathSample(xt, xt, xt, point.t, point.rest.to(dtype), torch.ones(1, 1, dtype=dtype))
    nats = steps.terms(Scores.from_logits(logits, sample, Plain(), toys.source("mask")), point)
    to_mask = -(1 - stays) * math.log(13)  # 13 times as likely as by K[δ_x1]
    assert float(nats) == pytest.approx(stays * (60 + math.log(2)) + to_mask, rel=1e-6)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_what_the_network_calls_impossible_has_an_infinite_bound(name):
    logits = torch.tensor([0.0, 0.0, -math.inf])
    x1 = torch.tensor([[0, 2]]).repeat(64, 1)
    estimate = nll_bound(lambda xt, t: logits.expand(*xt.shape, 3), Flow(toys.source(name)), x1)
    assert estimate.nats == math.inf


def test_a_token_the_source_never_draws_has_no_kappa_bound():
    flow = Flow(BagOfWords(Vocab(3), (0.5, 0.5, 0.0)))
    with pytest.raises(ValueError, match="smooth"):
        kappa_bound(lambda xt, t: torch.zeros(*xt.shape, 3), flow, torch.zeros(2, 2, dtype=torch.long))


def test_the_estimate_names_the_float_type_of_the_logits():
    flow = toys.oracle("mask")
    x1 = data(flow, 40, 0)
    assert nll_bound(flow.model, flow.flow, x1).dtype == "float64"
    assert nll_bound(lambda xt, t: flow.model(xt, t).bfloat16(), flow.flow, x1).dtype == "bfloat16"


def test_the_network_is_called_as_often_as_the_estimate_says():
    flow = toys.oracle("mask")
    rows = 0

    def counting(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        nonlocal rows
        rows += len(xt)
        return flow.model(xt, t)

    estimate = nll_bound(counting, flow.flow, data(flow, 40, 0), draws=10)
    assert rows == 40 * estimate.calls == 400
