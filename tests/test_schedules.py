import pytest
import torch
from cases import name
from hypothesis import given, settings
from hypothesis import strategies as st

from hopflow.schedules import EXAMPLES, Cosine, Linear, Polynomial, Positional, check_time

POSITIONAL = Positional((Linear(), Cosine(), Polynomial(0.5)))
EVERY = (*EXAMPLES, Polynomial(3.0), POSITIONAL)
TIMES = st.floats(0, 1)
each = pytest.mark.parametrize("schedule", EVERY, ids=lambda s: name(s) if s is POSITIONAL else repr(s))


def at(*t: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Times as a column (N, 1), which shared and positional schedules both take."""
    return torch.tensor(t, dtype=dtype)[:, None]


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_k_runs_from_exactly_0_to_exactly_1(schedule, dtype):
    ends = at(0, 1, dtype=dtype)
    width = len(schedule.schedules) if isinstance(schedule, Positional) else 1
    assert schedule.k(ends).tolist() == [[0.0] * width, [1.0] * width]
    assert schedule.rest(ends).tolist() == [[1.0] * width, [0.0] * width]


@each
@settings(max_examples=40)
@given(TIMES, TIMES)
def test_k_never_falls_and_rest_is_what_is_left(schedule, t, u):
    times = at(min(t, u), max(t, u))
    k, rest = schedule.k(times), schedule.rest(times)
    assert (k[1] >= k[0]).all()
    assert (rest[1] <= rest[0]).all()
    torch.testing.assert_close(k + rest, torch.ones_like(k), rtol=0, atol=4e-16)


@each
@settings(max_examples=40)
@given(st.floats(0.01, 0.99))
def test_dk_is_the_derivative_of_k(schedule, t):
    h = 1e-6
    slope = (schedule.k(at(t + h)) - schedule.k(at(t - h))) / (2 * h)
    torch.testing.assert_close(schedule.dk(at(t)), slope, rtol=1e-6, atol=1e-8)


@each
@settings(max_examples=40)
@given(TIMES)
def test_inverse_gives_back_the_time_of_k(schedule, t):
    k = schedule.k(at(t))
    torch.testing.assert_close(schedule.inverse(k), torch.full_like(k, t), rtol=0, atol=1e-14)


@each
@settings(max_examples=40)
@given(TIMES)
def test_time_gives_back_the_time_of_rest(schedule, t):
    rest = schedule.rest(at(t))
    time = schedule.time(rest)
    assert ((time >= 0) & (time <= 1)).all()
    if t > 0.2:  # nearer to 0 a flat k leaves too few digits in 1 - k to give t back
        torch.testing.assert_close(time, torch.full_like(rest, t), rtol=0, atol=1e-14)
    if not isinstance(schedule, Positional):  # whose time is each position's own
        torch.testing.assert_close(schedule.rest(time), rest, rtol=0, atol=1e-15)


@each
@settings(max_examples=40)
@given(st.floats(0, 1))
def test_inverse_and_time_agree_wherever_both_are_given(schedule, k):
    inverse, time = schedule.inverse(at(k)), schedule.time(1 - at(k))
    torch.testing.assert_close(schedule.k(inverse), schedule.k(time), rtol=0, atol=1e-14)


@each
@pytest.mark.parametrize("left", [2.0**-24, 2.0**-23, 2.0**-20, 2.0**-10])
def test_rest_keeps_its_digits_near_the_end_in_float32(schedule, left):
    t = 1 - at(left, dtype=torch.float32)
    torch.testing.assert_close(schedule.rest(t).double(), schedule.rest(t.double()), rtol=1e-5, atol=0)


@pytest.mark.parametrize("schedule", [Polynomial(0.5), Cosine()], ids=repr)
def test_one_minus_k_would_not_keep_them(schedule):
    t = 1 - at(2.0**-24, dtype=torch.float32)
    wrong = (1 - schedule.k(t)).double() / schedule.rest(t.double()) - 1
    assert (wrong.abs() > 0.05).all()


@each
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 1024, 100_000])
def test_the_redraws_of_a_run_leave_exactly_what_the_schedule_says(schedule, steps):
    t = torch.arange(steps + 1, dtype=torch.float64)[:, None] / steps
    k = schedule.k(t)
    r = schedule.redraw(k[:-1], k[1:])
    assert ((r >= 0) & (r <= 1)).all()
    survivors = torch.log1p(-r).cumsum(0).exp()
    torch.testing.assert_close(survivors, schedule.rest(t[1:]), rtol=1e-9, atol=1e-14)


@each
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 1024, 100_000])
def test_the_last_step_redraws_with_probability_exactly_one(schedule, steps):
    k = schedule.k(at((steps - 1) / steps, 1))
    assert (schedule.redraw(k[:1], k[1:]) == 1).all()


def test_at_the_end_a_redraw_is_certain_not_undefined():
    one = torch.ones(2)
    assert Linear().redraw(one, one).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_all_positions_of_a_shared_schedule_are_at_the_same_point_per_unit_of_k(schedule):
    rest = torch.tensor([1e-7, 0.25, 1.0], dtype=torch.float64)
    t, every, speed = schedule.point(rest, torch.tensor([0, 5, 2]))
    assert every.tolist() == rest[:, None].tolist()
    assert speed.tolist() == [[1.0]] * 3
    torch.testing.assert_close(schedule.rest(t), rest, rtol=1e-8, atol=0)


def test_a_point_of_a_positional_schedule_has_the_asked_rest_at_the_asked_position():
    rest = torch.tensor([0.3, 0.3, 0.3, 0.9], dtype=torch.float64)
    position = torch.tensor([0, 1, 2, 1])
    t, every, speed = POSITIONAL.point(rest, position)
    torch.testing.assert_close(every.gather(1, position[:, None])[:, 0], rest)
    torch.testing.assert_close(every, POSITIONAL.rest(t[:, None]))
    torch.testing.assert_close(speed, POSITIONAL.dk(t[:, None]))


def test_each_position_of_a_positional_schedule_follows_its_own():
    t = at(0.1, 0.7)
    for method in ("k", "rest", "dk", "time", "inverse"):
        columns = [getattr(s, method)(t) for s in POSITIONAL.schedules]
        assert torch.equal(getattr(POSITIONAL, method)(t), torch.cat(columns, 1))


@pytest.mark.parametrize("n", [0.0, -1.0, float("nan")])
def test_a_polynomial_that_does_not_rise_is_refused(n):
    with pytest.raises(ValueError, match="n must be > 0"):
        Polynomial(n)


def test_a_positional_schedule_without_positions_is_refused():
    with pytest.raises(ValueError, match="one schedule per position"):
        Positional(())


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan")])
def test_a_time_off_the_path_is_refused(bad):
    with pytest.raises(ValueError, match=r"t must be from 0 \(source\) to 1"):
        check_time(torch.tensor([0.5, bad]))


def test_the_examples_show_every_shared_schedule():
    assert {name(s) for s in EXAMPLES} == {"Linear", "Polynomial", "Cosine"}
