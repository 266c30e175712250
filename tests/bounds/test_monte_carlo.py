import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from toys import generator

from hopflow.bounds.monte_carlo import Count, Forced, TimePoint, continuous
from hopflow.paths import stratified
from hopflow.schedules import EXAMPLES, Cosine, Linear, Polynomial, Positional

L = 3
PATTERNS = torch.cartesian_prod(*([torch.tensor([False, True])] * L))  # which positions are noisy
POSITIONAL = Positional((Linear(), Cosine(), Polynomial(2.0)))
FORCED = [
    Forced(0.0),
    Forced(0.5),
    Forced(0.8),
    Forced(1.0),
    Forced(0.4, 0.4),
    Forced(0.0, 1.0),
    Forced(0.5, 0.5),
]


class Integrand:
    """A random f(1-k, noisy positions), smooth in 1-k; it vanishes `without` so many noisy positions."""

    def __init__(self, seed: int, without: int | None = None) -> None:
        self.table = torch.randn(2**L, 4, generator=generator(seed), dtype=torch.float64)
        if without is not None:
            self.table[PATTERNS.sum(1) == without] = 0

    def __call__(self, rest: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
        row = self.table[(noisy.long() * torch.tensor([4, 2, 1])).sum(-1)]
        clock = rest.expand(*noisy.shape).mean(-1)
        return row[..., 0] + row[..., 1] * clock + row[..., 2] * torch.sin(5 * clock) + row[..., 3] * clock**2

    def integral(self, schedule) -> float:
        """∫ E[f] along the path, per unit of k where the schedule is shared, else of t."""
        x, w = np.polynomial.legendre.leggauss(60)
        x, w = torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)
        rest = schedule.rest(x[:, None]) if isinstance(schedule, Positional) else x[:, None]
        rest = rest.expand(-1, L)
        chance = torch.where(PATTERNS, rest[:, None], 1 - rest[:, None]).prod(-1)  # (nodes, patterns)
        values = self(rest[:, None].expand(-1, len(PATTERNS), -1), PATTERNS.expand(len(x), -1, -1))
        return float((w[:, None] * chance * values).sum())


def check(by, schedule, without) -> None:
    n = 100_000
    f = Integrand(3, without)
    u = 1 - torch.rand(n, generator=generator(0), dtype=torch.float64)
    draw = by.draw(continuous(schedule), u, L, generator(1))
    values = draw.weight * f(draw.point.rest, draw.noisy)
    assert draw.noisy.shape == (n, L)
    assert torch.isfinite(draw.weight).all()
    assert (draw.weight > 0).all()
    error = float(values.mean()) - f.integral(schedule)
    assert abs(error) <= 4 * float(values.std()) / n**0.5


def never_drawn(by: Forced) -> int | None:
    """How many noisy positions a draw cannot have, if one is always forced."""
    return 0 if by.noise == 1 else L if by.data == 1 else None


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=["linear", "cosine"])
@pytest.mark.parametrize("by", FORCED, ids=repr)
def test_forced_draws_have_the_mean_of_the_path(by, schedule):
    check(by, schedule, never_drawn(by))


@pytest.mark.parametrize("by", FORCED, ids=repr)
def test_forced_draws_have_the_mean_of_the_path_on_position_specific_schedules(by):
    check(by, POSITIONAL, never_drawn(by))


@pytest.mark.parametrize("by", [Count(), Count(1.0), Forced(), Forced(grade=3.0)], ids=repr)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_strata_weigh_their_points_so_that_means_are_kept(by, count):
    """∫ of u^p from 0 to 1 is 1/(1+p), singular or not; and a constant is had without error."""
    at = by.strata(40_000, count, generator(0))
    edges = (torch.arange(count + 1, dtype=torch.float64) / count) ** by.grade
    assert ((at.u > edges[:-1]) & (at.u <= edges[1:] + 1e-15)).all()
    torch.testing.assert_close(at.u, edges[:-1] + at.place * edges.diff(), rtol=0, atol=1e-12)
    for power in (0.0, 1.0, -0.3):
        values = (at.weight * at.u**power).mean(1)
        error = float(values.mean()) - 1 / (1 + power)
        assert abs(error) <= 4 * float(values.std()) / len(values) ** 0.5 + 1e-12
    torch.testing.assert_close(float(at.weight.mean()), 1.0)


@pytest.mark.parametrize("grade", [0.5, math.inf, math.nan])
def test_a_grade_below_one_or_not_finite_is_refused(grade):
    for by in (Count, Forced):
        with pytest.raises(ValueError, match="must be ≥ 1 and finite"):
            by(grade=grade)


def test_counted_draws_have_the_mean_of_the_path_for_what_only_noise_costs():
    check(Count(), Linear(), without=0)


@settings(max_examples=40)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
def test_a_forced_weight_is_the_density_of_the_path_over_that_of_the_draw(noise, data, seed):
    noise, data = noise * (1 - data), data
    u = 1 - torch.rand(20, generator=generator(seed), dtype=torch.float64)
    draw = Forced(noise, data).draw(continuous(Linear()), u, L, generator(seed))
    m = draw.noisy.sum(1)
    density = (1 - noise - data) + noise * m / (L * u) + data * (L - m) / (L * (1 - u))
    torch.testing.assert_close(draw.weight, 1 / density)


def test_with_forced_noise_a_cost_of_one_over_rest_per_noisy_position_stays_bounded():
    u = torch.logspace(-14, 0, 10_000, dtype=torch.float64)
    draw = Forced(0.8).draw(continuous(Linear()), u, L, generator(0))
    cost = draw.weight * draw.noisy.sum(1) / u
    assert (cost <= L / 0.8 + 1e-9).all()
    plain = Forced(0.0).draw(continuous(Linear()), u, L, generator(0))
    assert (plain.weight * plain.noisy.sum(1) / u).max() > 10 * L


@pytest.mark.parametrize("by", [Forced(0.8), Forced(0.4, 0.4), Count()], ids=repr)
@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_weights_are_finite_and_never_negative_at_the_very_ends(by, schedule):
    u = torch.tensor([1e-300, 1e-17, 1e-12, 0.5, 1 - 1e-12, 1 - 2.0**-53, 1.0], dtype=torch.float64).repeat(20)
    draw = by.draw(continuous(schedule), u, 4, generator(0))
    assert torch.isfinite(draw.weight).all()
    assert (draw.weight >= 0).all()
    assert ((draw.point.t >= 0) & (draw.point.t <= 1)).all()


def test_forced_noise_makes_a_position_noisy_and_forced_data_makes_one_data():
    tiny, almost = (torch.full((500,), x, dtype=torch.float64) for x in (1e-12, 1 - 1e-12))
    assert (Forced(1.0).draw(continuous(Linear()), tiny, L, generator(0)).noisy.sum(1) == 1).all()
    assert (Forced(0.0, 1.0).draw(continuous(Linear()), almost, L, generator(0)).noisy.sum(1) == L - 1).all()


@pytest.mark.parametrize(("noise", "data"), [(-0.1, 0.0), (0.0, -0.1), (0.8, 0.3), (1.1, 0.0)])
def test_forcing_probabilities_out_of_range_are_refused(noise, data):
    with pytest.raises(ValueError, match=rf"sum ≤ 1, got noise={noise} and data={data}"):
        Forced(noise, data)


def test_counted_draws_have_every_number_of_noisy_positions_equally_often():
    length, n = 6, 60_000
    u = 1 - torch.rand(n, generator=generator(0), dtype=torch.float64)
    draw = Count().draw(continuous(Linear()), u, length, generator(1))
    m = draw.noisy.sum(1)
    counts = torch.bincount(m, minlength=length + 1)
    assert counts[0] == 0
    assert chisquare(counts[1:].numpy()).pvalue > 0.001
    for j in range(1, length + 1):  # 1-k | m ~ Beta(m, L-m+1)
        rest = draw.point.rest[m == j, 0]
        assert float(rest.mean()) == pytest.approx(j / (length + 1), abs=4 * float(rest.std()) / len(rest) ** 0.5)
        variance = j * (length + 1 - j) / ((length + 1) ** 2 * (length + 2))
        assert float(rest.var()) == pytest.approx(variance, rel=0.1)
    each = draw.noisy.double().mean(0)  # no position is preferred
    assert ((each - (length + 1) / (2 * length)).abs() < 4 * 0.5 / n**0.5).all()


def test_a_counted_weight_is_l_over_m_times_rest():
    u = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    draw = Count().draw(continuous(Linear()), u, 4, generator(0))
    assert draw.noisy.sum(1).tolist() == [1, 3, 4]
    expected = 4 * draw.point.rest[:, 0] / torch.tensor([1, 3, 4])
    torch.testing.assert_close(draw.weight, expected)


def test_the_same_seed_gives_the_same_draws():
    u = stratified(4, 8, generator(0)).flatten()
    for by in (Forced(), Forced(0.4, 0.4), Count()):
        first, second = (by.draw(continuous(Cosine()), u, 5, generator(7)) for _ in range(2))
        assert torch.equal(first.noisy, second.noisy)
        assert torch.equal(first.weight, second.weight)


def test_rows_of_a_draw_are_those_rows():
    u = stratified(4, 8, generator(0)).flatten()
    draw = Forced().draw(continuous(POSITIONAL), u, L, generator(0))
    some = draw.rows(slice(3, 7))
    assert torch.equal(some.noisy, draw.noisy[3:7])
    assert torch.equal(some.weight, draw.weight[3:7])
    for part in ("t", "rest", "noise", "speed"):
        assert torch.equal(getattr(some.point, part), getattr(draw.point, part)[3:7])


def test_a_point_moves_to_a_device_in_float64():
    column = torch.ones(2, 1)
    point = TimePoint(column[:, 0], column, column, column).to(torch.device("cpu"))
    assert {getattr(point, part).dtype for part in ("t", "rest", "noise", "speed")} == {torch.float64}
