import math

import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from cases import Mixed, name
from hopflow import exact
from hopflow.flow import Flow
from hopflow.predictions import EXAMPLES as PREDICTIONS
from hopflow.predictions import Evidence, Plain
from hopflow.samplers import Euler, Sampler, categorical, generate
from hopflow.schedules import EXAMPLES as SCHEDULES
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.sources import BagOfWords, Mask, MultiMask, Uniform
from hopflow.vocab import Vocab
from toys import Clocked, dirichlet, generator

L = 2
SOURCES = [
    Mask(Vocab(3, 1)),
    MultiMask(Vocab(2, 2)),
    Uniform(Vocab(3)),
    BagOfWords(Vocab(3), (0.6, 0.3, 0.1)),
    Mixed(Vocab(2, 2)),
]
FLAVOURS = [(s, p, n, eta) for s in SOURCES for p in PREDICTIONS for n in (1, 3, 6) for eta in (0.0, 1.0)]
NAMES = [f"{name(s)}-{name(p)}-N={n}-eta={eta:g}" for s, p, n, eta in FLAVOURS]
TRUST = 0.001 / len(FLAVOURS)


def random_table(flow: Flow, seed: int = 0) -> exact.Table:
    space = exact.Space(flow.vocab, L)
    return exact.Table(space, dirichlet(len(space.states), L, flow.vocab.data, seed=seed))


def random_network(flow: Flow, seed: int = 0) -> Clocked:
    return Clocked.random(exact.Space(flow.vocab, L), seed)


def oracle(flow: Flow, network) -> exact.Oracle:
    count = flow.vocab.data**L
    return exact.Oracle(flow, torch.full((count,), 1 / count, dtype=torch.float64), L, network)


def fits(tokens: torch.Tensor, law: torch.Tensor, data: int) -> float:
    """The p-value of these sequences under this law over data sequences; rare ones are counted together."""
    n = len(tokens)
    seen = torch.bincount((tokens * torch.tensor([data, 1])).sum(1), minlength=data**L).double()
    expected = law * n
    rare = expected < 5
    assert float(seen[rare].sum()) <= float(expected[rare].sum()) + 4 * math.sqrt(float(expected[rare].sum())) + 4
    seen, expected = seen[~rare], expected[~rare]
    return float(chisquare(seen, expected * seen.sum() / expected.sum()).pvalue) if len(seen) > 1 else 1.0


def agrees(flow: Flow, network, steps: int, eta, n: int = 20_000) -> None:
    run = generate(network, flow, n=n, length=L, steps=steps, eta=eta, seed=5)
    truth = oracle(flow, network)
    assert fits(run.tokens, truth.law(steps=steps, eta=eta), flow.vocab.data) > TRUST
    jumps = run.jumps.double()
    assert abs(float(jumps.mean()) - truth.jumps(steps=steps, eta=eta)) <= 4 * float(jumps.std()) / math.sqrt(n) + 1e-12
    assert (run.redraws >= run.changes).all()
    assert (run.calls == steps).all()
    assert run.steps == steps
    flow.vocab.check_data(run.tokens)


@pytest.mark.parametrize(("source", "prediction", "steps", "eta"), FLAVOURS, ids=NAMES)
def test_samples_have_exactly_the_law_and_the_jumps_of_n_steps(source, prediction, steps, eta):
    flow = Flow(source, prediction=prediction)
    agrees(flow, random_network(flow), steps, eta)


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_so_it_is_with_a_table(source):
    flow = Flow(source, Cosine())
    agrees(flow, random_table(flow), 4, 0.5)


@pytest.mark.parametrize(
    "schedule", [Polynomial(2.0), Positional((Linear(), Polynomial(3.0)))], ids=["shared", "positional"]
)
@pytest.mark.parametrize("eta", [0.0, 2.0, lambda t: 4 * t], ids=["0", "2", "4t"])
def test_so_it_is_on_other_schedules_and_with_an_eta_that_changes(schedule, eta):
    flow = Flow(Uniform(Vocab(3)), schedule)
    agrees(flow, random_network(flow), 5, eta)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 1024])
def test_the_last_step_redraws_with_probability_exactly_one(schedule, steps):
    events = list(Euler(steps).events(Flow(Uniform(Vocab(3)), schedule), 4, 1.0))
    assert len(events) == steps
    assert float(events[-1].r) == 1.0
    assert float(events[-1].s) == 0.0
    assert [e.t for e in events] == [n / steps for n in range(steps)]
    assert math.prod(1 - float(e.r) for e in events[: steps // 2]) == pytest.approx(
        float(schedule.rest(torch.tensor(steps // 2 / steps, dtype=torch.float64))), rel=1e-9
    )


def test_positions_are_redrawn_as_often_as_the_steps_say():
    flow, n, steps = Flow(Uniform(Vocab(3)), Polynomial(2.0), Plain()), 20_000, 8
    run = generate(random_network(flow), flow, n=n, length=L, steps=steps, seed=1)
    expected = sum(float(e.r) for e in Euler(steps).events(flow, 4, 0.0))
    redraws = run.redraws.double()
    assert float(redraws.mean()) == pytest.approx(expected, abs=4 * float(redraws.std()) / math.sqrt(n * L))


@pytest.mark.parametrize("source", [Mask(Vocab(3, 1)), MultiMask(Vocab(2, 2))], ids=name)
def test_where_data_stays_every_position_hops_exactly_once(source):
    flow = Flow(source)
    run = generate(random_network(flow), flow, n=500, length=L, steps=8, eta=1.0, seed=1)
    assert (run.changes >= 1).all()
    still = generate(random_network(flow), flow, n=500, length=L, steps=8, seed=1)
    assert (still.changes == 1).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("prediction", PREDICTIONS, ids=name)
def test_no_mask_is_left_behind_on_any_schedule(schedule, prediction):
    flow = Flow(Mask(Vocab(5, 1)), schedule, prediction)
    run = generate(lambda xt, t: torch.zeros(*xt.shape, 5), flow, n=64, length=128, steps=8, seed=0)
    flow.vocab.check_data(run.tokens)
    assert (run.x0 == 5).all()


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    flow = Flow(Uniform(Vocab(3)))
    runs = [generate(random_network(flow), flow, n=64, length=L, steps=4, eta=1.0, seed=s) for s in (3, 3, 4)]
    assert torch.equal(runs[0].tokens, runs[1].tokens)
    assert torch.equal(runs[0].changes, runs[1].changes)
    assert not torch.equal(runs[0].tokens, runs[2].tokens)


def test_generating_leaves_the_global_random_state_alone():
    flow = Flow(Uniform(Vocab(3)))
    before = torch.get_rng_state()
    generate(random_network(flow), flow, n=4, length=L, steps=3, eta=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_temperature_0_takes_the_likeliest_token():
    flow = Flow(Uniform(Vocab(3)))
    network = random_network(flow)
    run = generate(network, flow, n=100, length=L, steps=1, temperature=0.0, seed=0)
    assert torch.equal(run.tokens, network(run.x0, torch.zeros(100)).argmax(-1))


def test_temperature_sharpens_or_flattens_the_prediction():
    flow = Flow(Mask(Vocab(3, 1)))
    law = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    for temperature in (0.5, 2.0):
        run = generate(
            lambda xt, t: law.log().expand(*xt.shape, 3),
            flow,
            n=30_000,
            length=1,
            steps=1,
            temperature=temperature,
        )
        seen = torch.bincount(run.tokens.flatten(), minlength=3).double()
        expected = law ** (1 / temperature)
        assert chisquare(seen, expected / expected.sum() * seen.sum()).pvalue > 0.001 / 2


def test_a_network_is_asked_at_the_times_of_the_steps_without_gradients_or_dropout():
    asked = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, xt, t):
            asked.append((t.tolist(), self.training, torch.is_grad_enabled()))
            return self.weight.expand(*xt.shape, 3)

    net = Net().train()
    generate(net, Flow(Uniform(Vocab(3))), n=2, length=5, steps=4)
    assert asked == [([n / 4] * 2, False, False) for n in range(4)]
    assert net.training


def test_half_precision_logits_will_do():
    flow = Flow(Uniform(Vocab(3)))
    run = generate(lambda xt, t: torch.zeros(*xt.shape, 3, dtype=torch.bfloat16), flow, n=8, length=4, steps=4, eta=1.0)
    flow.vocab.check_data(run.tokens)


def test_another_sampler_may_be_given():
    class Twice(Sampler):
        """Every step of Euler's two-step run, and its last once more."""

        def events(self, flow, length, eta):
            steps = list(Euler(2).events(flow, length, eta))
            yield from [*steps, steps[-1]]

    run = generate(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), n=2, length=2, sampler=Twice())
    assert run.steps == 3
    assert run.calls.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n": 0}, "n ≥ 1 sequences of length ≥ 1; got n=0"),
        ({"length": 0}, "length ≥ 1; got n=2, length=0"),
        ({"temperature": -0.5}, "temperature must be ≥ 0"),
        ({"temperature": math.nan}, "temperature must be ≥ 0"),
        ({"steps": 0}, "at least one step; got 0"),
        ({"eta": -1.0}, "eta must be ≥ 0"),
        ({"eta": lambda t: -t - 1}, "eta must be ≥ 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        generate(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), **({"n": 2, "length": 2} | how))


@pytest.mark.parametrize("width", [2, 5])
def test_a_network_over_anything_but_the_data_tokens_is_refused(width):
    with pytest.raises(ValueError, match="data tokens only"):
        generate(lambda xt, t: torch.zeros(*xt.shape, width), Flow(Uniform(Vocab(3, 2))), n=8, length=8)


def test_a_draw_has_the_frequencies_of_its_row():
    law = dirichlet(7, seed=0)
    drawn = categorical(law.log().float().expand(50_000, 7), 1.0, generator(1))
    assert chisquare(torch.bincount(drawn, minlength=7), law * 50_000).pvalue > 0.001


def test_a_token_of_probability_0_is_never_drawn():
    log_p = torch.tensor([0.5, 0.0, 0.5]).log().expand(20_000, 3)
    assert (categorical(log_p, 1.0, generator(0)) != 1).all()
    assert (categorical(log_p, 0.0, None) == 0).all()


def test_draws_are_raced_in_float64(monkeypatch):
    # the statistics behind it take minutes: tests/slow/test_rare_tokens.py
    raced = []
    exponential = torch.Tensor.exponential_

    def recorded(self, *args, **how):
        raced.append(self.dtype)
        return exponential(self, *args, **how)

    monkeypatch.setattr(torch.Tensor, "exponential_", recorded)
    categorical(torch.zeros(2, 5, dtype=torch.bfloat16), 1.0, generator(0))
    assert raced == [torch.float64]


def test_evidence_makes_fewer_hops_than_plain_with_the_same_network():
    hops = [
        generate(
            lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3)), prediction=p), n=200, length=8
        ).changes
        for p in (Evidence(), Plain())
    ]
    assert hops[0].sum() < hops[1].sum()
