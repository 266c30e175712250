"""Control variates: of mean zero, fitted elsewhere, and worth their trouble."""

import pytest
import torch
from toys import generator

from hopflow.bounds.control_variates import (
    legendre_columns,
    noisy_coverage,
    position_columns,
    stratum_trends,
    subtract_controls,
)
from hopflow.bounds.integrands import Integral, Precise, Proposal, Rates, Steps
from hopflow.bounds.monte_carlo import Count, Draws, Forced
from hopflow.schedules import Cosine, Linear, Polynomial, Positional

L, N = 4, 60_000
POSITIONAL = Positional((Linear(), Cosine(), Polynomial(2.0), Polynomial(0.5)))
INTEGRALS: list[tuple[Integral, Draws]] = [
    (Rates(Cosine(), 0.0), Count()),
    (Rates(Linear(), 0.0), Forced()),
    (Rates(Linear(), 0.0, end=0.1), Forced()),
    (Rates(POSITIONAL, 0.0), Forced()),
    (Steps(Polynomial(2.0), 5, 1.0), Forced()),
    (Precise(Linear()), Forced(noise=0.2)),
    (Proposal(Cosine()), Forced()),
]


def within_four_errors(values: torch.Tensor, target: float) -> bool:
    """The mean of rows, column by column."""
    values = values.flatten(1)
    return bool(((values.mean(0) - target).abs() <= 4 * values.std(0) / len(values) ** 0.5 + 1e-12).all())


@pytest.mark.parametrize(("integral", "by"), INTEGRALS, ids=str)
def test_every_position_is_counted_once_on_average(integral, by):
    at = by.strata(N, 2, generator(0))
    draw = by.draw(integral.clock, at.u.flatten(), L, generator(1)).reweighted(at.weight.repeat(N))
    assert within_four_errors(noisy_coverage(draw).view(N, 2, L).mean(1), 1.0)


@pytest.mark.parametrize("by", [Count(), Forced()], ids=str)
@pytest.mark.parametrize("count", [1, 3, 40])
def test_stratum_trends_and_legendre_columns_have_mean_zero(by, count):
    at = by.strata(N // count, count, generator(0))
    assert within_four_errors(stratum_trends(at).mean(1), 0.0)
    assert within_four_errors(legendre_columns(at).mean(1), 0.0)
    assert stratum_trends(at).shape[-1] <= 32


def test_the_usual_nats_of_a_position_come_from_the_other_replicates_only():
    cover = torch.rand(6, 2, 3, L, generator=generator(0), dtype=torch.float64)
    nats, x1 = cover * torch.arange(1.0, L + 1), torch.randint(3, (6, L), generator=generator(1))
    first = position_columns(cover, nats, x1)
    nats[:, 1] = 7.0
    again = position_columns(cover, nats, x1)
    assert torch.equal(first[:, 1], again[:, 1])  # replicate 1 sees replicate 0
    assert not torch.equal(first[:, 0, :, 2], again[:, 0, :, 2])
    assert torch.equal(first[:, 0, :, :2], again[:, 0, :, :2])


def noisy(n: int, seed: int, columns: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of mean 5 that are mostly the first columns, with noise of size 1."""
    x = torch.randn(n, 2, 4, columns, generator=generator(seed), dtype=torch.float64)
    noise = torch.randn(n, 2, 4, generator=generator(seed + 1), dtype=torch.float64)
    return 5 + 3 * x[..., 0] - x[..., 1] + noise, x


def test_what_columns_explain_is_gone_and_the_mean_is_kept():
    values, columns = noisy(4000, 0)
    left = subtract_controls(values, columns)
    assert float(left.var()) == pytest.approx(1, rel=0.05)
    assert abs(float(left.mean()) - 5) < 4 / left.numel() ** 0.5


def test_a_fit_does_not_bias_the_mean_however_small_the_sample():
    """A fit on the draws themselves need not keep it: values here are the cubes of their column."""
    x = torch.randn(2000 * 16, 2, 4, 1, generator=generator(0), dtype=torch.float64)
    parts = [subtract_controls(x[..., 0].pow(3), x) for x in x.split(16)]
    means = torch.stack([part.mean() for part in parts])
    assert abs(float(means.mean())) < 4 * float(means.std()) / len(means) ** 0.5


def test_half_the_sequences_never_see_their_own_fit():
    values, columns = noisy(64, 2)
    left = subtract_controls(values, columns)
    values[0] += 100.0 * torch.randn(2, 4, generator=generator(9), dtype=torch.float64)
    again = subtract_controls(values, columns)
    assert torch.equal(again[2::2], left[2::2])
    assert not torch.equal(again[1::2], left[1::2])


def test_too_few_draws_are_left_as_they_are_and_dead_columns_are_not_used():
    values, columns = noisy(4, 3)
    assert torch.equal(subtract_controls(values, columns), values)
    values, columns = noisy(400, 4)
    dead = torch.full_like(columns[..., :1], 3.0) + 1e-14 * columns[..., :1]
    torch.testing.assert_close(
        subtract_controls(values, torch.cat([dead, columns], -1)), subtract_controls(values, columns)
    )


def test_an_infinite_value_stays_infinite():
    values, columns = noisy(64, 5)
    values[3, 0, 0] = torch.inf
    assert torch.equal(subtract_controls(values, columns), values)


def test_a_column_needs_its_draws_in_the_strata_where_it_is_not_zero():
    """64 draws in all, and four of them in the one stratum where the column lives."""
    values = torch.randn(8, 2, 16, generator=generator(6), dtype=torch.float64)
    columns = torch.zeros(8, 2, 16, 1, dtype=torch.float64)
    columns[:, :, 0, 0] = torch.randn(8, 2, generator=generator(7), dtype=torch.float64)
    values[:, :, 0] += 3 * columns[:, :, 0, 0]
    assert torch.equal(subtract_controls(values, columns), values)
    assert not torch.equal(
        subtract_controls(values.repeat(8, 1, 1), columns.repeat(8, 1, 1, 1)), values.repeat(8, 1, 1)
    )


def test_a_fit_that_raises_the_noise_of_the_other_half_is_not_used():
    """The slope of the even sequences is the opposite of that of the odd ones."""
    _, columns = noisy(64, 8)
    values = torch.randn(64, 2, 4, generator=generator(9), dtype=torch.float64)
    values[::2] += 3 * columns[::2, ..., 0]
    values[1::2] -= 3 * columns[1::2, ..., 0]
    assert torch.equal(subtract_controls(values, columns), values)
