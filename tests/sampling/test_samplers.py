"""What may move when: the events of each sampler, without a network."""

import math

import pytest
import torch
from cases import Ramp, name
from scipy.stats import chisquare, kstest

from hopflow.flow import Flow
from hopflow.predictions import EXAMPLES as PREDICTIONS
from hopflow.predictions import Carry, Evidence, Plain
from hopflow.sampling.random_draws import RandomStreams
from hopflow.sampling.samplers import EXAMPLES, CosineGrid, Euler, EvenGrid, GivenGrid, RandomOrder
from hopflow.schedules import EXAMPLES as SCHEDULES
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.sources import BagOfWords, Mask, MultiMask, Uniform
from hopflow.velocities import eta_at, step_sizes
from hopflow.vocab import Vocab

UNIFORM, MASK = Uniform(Vocab(3)), Mask(Vocab(3, 1))


def events(sampler, flow, n=2000, length=2, eta=0.0, seed=0, free=None):
    free = torch.ones(n, length, dtype=torch.bool) if free is None else free
    return sampler.events(flow, eta, free, RandomStreams(seed, range(len(free))))


def grid_of(found, kind, shape):
    """How many events of one kind each (row, step, position) has."""
    mine = found.is_corrector == kind
    out = torch.zeros(shape, dtype=torch.int64)
    return out.index_put((found.row[mine], found.step[mine], found.position[mine]), torch.tensor(1), accumulate=True)


@pytest.mark.parametrize("eta", [0.0, 1.0, lambda t: 3 * t], ids=["0", "1", "3t"])
@pytest.mark.parametrize("schedule", [*SCHEDULES, Positional((Linear(), Polynomial(3.0)))], ids=name)
@pytest.mark.parametrize("steps", [1, 9])
def test_each_step_redraws_and_proposes_with_its_chance_and_never_both(schedule, steps, eta):
    n, flow = 2000, Flow(UNIFORM, schedule)
    found = events(Euler(steps), flow, n, eta=eta)
    redraws, proposals = (grid_of(found, kind, (n, steps, 2)) for kind in (False, True))
    assert int((redraws + proposals).max()) == 1
    t = EvenGrid().times(steps)
    rest = schedule.rest(t[:, None])
    chances = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
    for seen, chance in zip((redraws, proposals), chances, strict=True):
        chance = chance.expand(steps, 2)
        error = (chance * (1 - chance) / n).sqrt()
        assert ((seen.double().mean(0) - chance).abs() <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("steps", [1, 2, 1024, 100_000])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_last_step_redraws_every_position(schedule, steps):
    found = events(Euler(steps), Flow(UNIFORM, schedule), n=3, eta=1.0)
    last = found.step == steps - 1
    assert not found.is_corrector[last].any()
    assert sorted(zip(found.row[last].tolist(), found.position[last].tolist(), strict=True)) == [
        (row, position) for row in range(3) for position in range(2)
    ]


def test_one_step_is_independent_of_another():
    # the waiting times to an event are drawn, not the steps one by one: their law must not remember anything
    n, steps = 40_000, 4
    flow = Flow(UNIFORM, Polynomial(2.0))
    seen = grid_of(events(Euler(steps), flow, n, length=1, eta=1.0), False, (n, steps, 1))[:, :3, 0]
    codes = torch.bincount((seen * torch.tensor([4, 2, 1])).sum(1), minlength=8)
    rest = flow.schedule.rest(EvenGrid().times(steps))
    r = ((rest[:-1] - rest[1:]) / rest[:-1])[:3]
    law = [math.prod(float(r[j] if code >> (2 - j) & 1 else 1 - r[j]) for j in range(3)) for code in range(8)]
    assert chisquare(codes, torch.tensor(law) * n).pvalue > 0.001


def test_times_and_what_is_left_are_those_of_the_step():
    schedule = Positional((Linear(), Polynomial(3.0)))
    found = events(Euler(7), Flow(UNIFORM, schedule), eta=1.0)
    t = EvenGrid().times(7)
    assert torch.equal(found.t, t[found.step])
    assert torch.equal(found.rest, schedule.rest(t[:, None])[found.step, found.position])


@pytest.mark.parametrize("grid", [CosineGrid(), GivenGrid((0, 0.1, 0.9, 1))], ids=name)
def test_a_grid_moves_the_steps(grid):
    steps = 3
    found = events(Euler(steps, grid), Flow(UNIFORM))
    assert set(found.t.tolist()) <= set(grid.times(steps).tolist())
    r = grid.times(steps).diff() / (1 - grid.times(steps)[:-1])
    seen = grid_of(found, False, (2000, steps, 2)).double().mean((0, 2))
    assert ((seen - r).abs() <= 5 * (r * (1 - r) / 4000).sqrt() + 1e-12).all()


@pytest.mark.parametrize("prediction", PREDICTIONS, ids=name)
@pytest.mark.parametrize("source", [MASK, MultiMask(Vocab(2, 2)), UNIFORM, Ramp(Vocab(2, 2))], ids=name)
def test_only_where_a_data_token_stays_does_a_position_end_with_its_first_redraw(source, prediction):
    found = events(Euler(64), Flow(source, prediction=prediction), n=200, eta=1.0)
    redraws = grid_of(found, False, (200, 64, 2)).sum(1)
    assert (redraws >= 1).all()
    assert bool((redraws == 1).all()) == prediction.keeps_data_tokens(source)
    if prediction.keeps_data_tokens(source):  # and nothing is proposed after it
        last = torch.zeros(200, 2, dtype=torch.int64).index_put(
            (found.row[~found.is_corrector], found.position[~found.is_corrector]), found.step[~found.is_corrector]
        )
        assert (found.step[found.is_corrector] < last[found.row, found.position][found.is_corrector]).all()


@pytest.mark.parametrize("sampler", EXAMPLES, ids=lambda sampler: sampler.label)
def test_nothing_happens_where_a_token_is_fixed(sampler):
    free = torch.rand(50, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    found = events(sampler, Flow(MASK), free=free)
    assert free[found.row, found.position].all()
    moved = torch.zeros_like(free).index_put((found.row, found.position), torch.tensor(True))
    assert torch.equal(moved, free)


@pytest.mark.parametrize("sampler", EXAMPLES, ids=lambda sampler: sampler.label)
def test_the_events_of_a_sequence_do_not_depend_on_those_beside_it(sampler):
    flow, free = Flow(MASK), torch.ones(8, 5, dtype=torch.bool)
    whole = sampler.events(flow, 0.0, free, RandomStreams(3, range(8)))
    alone = sampler.events(flow, 0.0, free[:1], RandomStreams(3, [6]))
    mine = whole.row == 6
    for field in ("step", "position", "t", "rest", "is_corrector", "token", "accept"):
        assert torch.equal(getattr(whole, field)[mine], getattr(alone, field)), field


@pytest.mark.parametrize("steps", [1, 5, 1024])
@pytest.mark.parametrize("sampler", [Euler, None], ids=["euler", "random order"])
def test_sequences_without_a_free_position_have_no_events(sampler, steps):
    chosen = RandomOrder(steps) if sampler is None else sampler(steps)
    assert len(events(chosen, Flow(MASK), free=torch.zeros(3, 4, dtype=torch.bool)).row) == 0


@pytest.mark.parametrize(
    ("source", "prediction", "eta", "expected"),
    [
        (MASK, Evidence(), 0.0, 120.3),
        (MultiMask(Vocab(3, 3)), Carry(), 0.0, 120.3),
        (MASK, Plain(), 0.0, 328.3),
        (UNIFORM, Evidence(), 0.0, 328.3),
        (UNIFORM, Evidence(), 0.25, 429),
        (UNIFORM, Evidence(), 0.5, 492),
        (UNIFORM, Evidence(), 1.0, 584),
        (UNIFORM, Evidence(), 2.0, 704),
    ],
    ids=lambda value: value if isinstance(value, float) else name(value),
)
def test_1024_steps_take_as_many_calls_as_the_theory_says(source, prediction, eta, expected):
    n = 64
    found = events(Euler(1024), Flow(source, prediction=prediction), n, length=128, eta=eta)
    turns = torch.unique(found.row * 1024 + found.step) // 1024
    calls = torch.bincount(turns, minlength=n).double()
    assert float(calls.mean()) == pytest.approx(expected, abs=4 * float(calls.std()) / math.sqrt(n) + 0.5)


def test_random_order_is_a_uniform_order_at_sorted_uniform_times():
    n, length, schedule = 20_000, 3, Polynomial(2.0)
    found = events(RandomOrder(), Flow(MASK, schedule), n, length)
    assert torch.equal(found.step.view(n, length).sort(1).values, torch.arange(length).expand(n, -1))
    orders = (found.step.view(n, length) * torch.tensor([9, 3, 1])).sum(1)
    assert chisquare(torch.unique(orders, return_counts=True)[1]).pvalue > 0.001
    k = schedule.k(found.t).view(n, length)
    assert kstest(k.flatten(), "uniform").pvalue > 0.001
    assert torch.equal(k.argsort(1).argsort(1), found.step.view(n, length))


def test_random_order_with_a_schedule_for_each_position_follows_their_times():
    schedule = Positional((Linear(), Polynomial(4.0), Polynomial(0.3)))
    found = events(RandomOrder(), Flow(MASK, schedule), 20_000, 3)
    t = found.t.view(-1, 3)
    for i in range(3):  # P(T_i ≤ t) = k_i(t)
        assert kstest(schedule.k(t)[:, i], "uniform").pvalue > 0.0003
    assert torch.equal(t.argsort(1).argsort(1), found.step.view(-1, 3))


def test_several_positions_a_call_share_the_time_of_the_first():
    one, four = (events(RandomOrder(k), Flow(MASK), 5, 10, seed=2) for k in (1, 4))
    assert torch.equal(four.step, one.step // 4)
    times = {(r, turn): t for r, turn, t in zip(one.row.tolist(), one.step.tolist(), one.t.tolist(), strict=True)}
    assert four.t.tolist() == [
        times[r, 4 * turn] for r, turn in zip(four.row.tolist(), four.step.tolist(), strict=True)
    ]


def test_what_a_sampler_gives_is_labelled():
    assert Euler(8).label == "8 Euler steps"
    assert Euler(8, CosineGrid()).label == "8 Euler steps on CosineGrid"
    assert Euler.at((0, 0.3, 1)).label == "2 Euler steps at 0, 0.3"  # rows of other times have another label
    assert RandomOrder().label == "random order, exact in continuous time"
    assert "approximate" in RandomOrder(2).label


@pytest.mark.parametrize(
    ("source", "prediction", "eta"),
    [(UNIFORM, Evidence(), 0.0), (MASK, Plain(), 0.0), (BagOfWords(Vocab(2), (0.5, 0.5)), Carry(), 0.0)],
    ids=lambda value: name(value),
)
def test_random_order_is_refused_where_a_data_token_may_move(source, prediction, eta):
    with pytest.raises(ValueError, match=r"needs a disjoint source.*Use Euler"):
        events(RandomOrder(), Flow(source, prediction=prediction), eta=eta)


@pytest.mark.parametrize("eta", [1.0, lambda t: t], ids=["1", "t"])
def test_random_order_has_no_corrector(eta):
    with pytest.raises(ValueError, match="no corrector"):
        events(RandomOrder(), Flow(MASK), eta=eta)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Euler(0), "steps must be an integer ≥ 1, got 0"),
        (lambda: Euler(True), "an integer ≥ 1, got True"),
        (lambda: RandomOrder(0), "per_call must be an integer ≥ 1, got 0"),
        (lambda: Euler(3, GivenGrid((0, 1))), "make 1 steps, not 3"),
        (lambda: Euler.at((0, 0.5)), "increase from 0 to 1"),
        (lambda: Euler.at((0, 0.5, 0.5, 1)), "increase from 0 to 1"),
        (lambda: Euler.at(()), "increase from 0 to 1|steps must be"),
    ],
)
def test_invalid_samplers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_of_another_length_is_refused():
    for sampler in (Euler(2), RandomOrder()):
        with pytest.raises(ValueError, match="position"):
            events(sampler, Flow(MASK, Positional((Linear(), Cosine()))), length=3)
