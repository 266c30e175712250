import pytest
import torch
from cases import VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import generator

from hopflow.paths import ConvexPath, stratified
from hopflow.schedules import EXAMPLES, Cosine, Linear, Polynomial, Positional
from hopflow.sources import Mask

POSITIONAL = Positional((Linear(), Cosine(), Polynomial(0.5)))


def pairs(n: int, length: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks and data, so that xt shows which of them it took."""
    return Mask(VOCAB).sample(n, length), torch.randint(VOCAB.data, (n, length), generator=generator(0))


@pytest.mark.parametrize("schedule", [*EXAMPLES, POSITIONAL], ids=str)
@pytest.mark.parametrize("t", [0.02, 0.5, 0.9])
def test_each_position_holds_its_data_token_with_chance_k_and_by_itself(schedule, t):
    n = 20_000
    x0, x1 = pairs(n)
    sample = ConvexPath(schedule).sample(x0, x1, torch.full((n,), t), generator(1))
    arrived = sample.xt == x1
    assert (arrived | (sample.xt == x0)).all()
    k = schedule.k(torch.full((1, 1), t, dtype=torch.float64)).expand(1, 3)[0]
    for chance, times in [(k, arrived), (k * k.roll(1), arrived & arrived.roll(1, 1))]:
        share = times.double().mean(0)
        assert ((share - chance).abs() <= 4 * (chance * (1 - chance) / n).sqrt()).all()


@pytest.mark.parametrize("schedule", [*EXAMPLES, POSITIONAL], ids=str)
def test_the_path_starts_at_the_source_and_ends_at_the_data(schedule):
    x0, x1 = pairs(1000)
    t = torch.arange(1000) % 2
    sample = ConvexPath(schedule).sample(x0, x1, t.float(), generator(1))
    assert torch.equal(sample.xt, torch.where(t[:, None] == 0, x0, x1))


@pytest.mark.parametrize(("schedule", "width"), [(Cosine(), 1), (POSITIONAL, 3)], ids=["shared", "positional"])
def test_a_sample_carries_what_it_was_made_of(schedule, width):
    x0, x1 = pairs(4)
    t = torch.tensor([0.0, 0.2, 0.7, 1 - 2.0**-24])
    sample = ConvexPath(schedule).sample(x0, x1, t, generator(1))
    assert sample.x0 is x0
    assert sample.x1 is x1
    assert sample.t is t
    assert sample.rest.shape == sample.dk.shape == (4, width)
    assert torch.equal(sample.rest, schedule.rest(t[:, None]))
    assert torch.equal(sample.dk, schedule.dk(t[:, None]))
    assert (sample.rest[-1] > 0).all()  # 1 - k is not lost next to the data


@given(st.integers(0, 2**31), st.floats(0, 1, width=32))
def test_the_same_seed_gives_the_same_point(seed, t):
    x0, x1 = pairs(5)
    times = torch.full((5,), t)
    first, second = (ConvexPath().sample(x0, x1, times, generator(seed)).xt for _ in range(2))
    assert torch.equal(first, second)


@given(st.integers(0, 2**31), st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_with_the_same_seed_a_position_that_has_arrived_stays_arrived_later(seed, s, t):
    x0, x1 = pairs(5)
    early, late = (ConvexPath().sample(x0, x1, torch.full((5,), u), generator(seed)).xt for u in (min(s, t), max(s, t)))
    assert torch.equal(late[early == x1], x1[early == x1])


@pytest.mark.parametrize("bad", [-0.01, 1.01, float("nan")])
def test_a_time_off_the_path_is_refused(bad):
    x0, x1 = pairs(2)
    with pytest.raises(ValueError, match=r"t must be from 0 \(source\) to 1 \(data\)"):
        ConvexPath().sample(x0, x1, torch.tensor([0.5, bad]))


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(1, 64), st.integers(0, 1000))
def test_stratified_numbers_lie_one_in_each_part(rows, strata, seed):
    u = stratified(rows, strata, generator(seed))
    assert u.shape == (rows, strata)
    assert (u > 0).all()
    assert (u <= 1).all()
    assert torch.equal((u * strata).ceil().long(), torch.arange(1, strata + 1).expand(rows, strata))


def test_stratified_numbers_are_uniform_within_their_part():
    u = stratified(20_000, 4, generator(0))
    inside = u * 4 - torch.arange(4)
    assert ((inside.mean(0) - 0.5).abs() < 4 * (1 / 12 / 20_000) ** 0.5).all()
