import math
from itertools import pairwise

import pytest
import torch
from cases import SOURCES, VOCAB, name
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import dirichlet

from hopflow.schedules import EXAMPLES as SCHEDULES
from hopflow.velocities import divergence, eta_at, kernel, step_sizes, still_noise, velocity

V = VOCAB.size
ETAS = st.sampled_from([0.0, 0.25, 1.0, 2.0, 50.0])
TOKENS = torch.arange(V)
each = pytest.mark.parametrize("source", SOURCES, ids=name)


def every(value: float) -> torch.Tensor:
    """A number at each of V rows, one row per token that xt may be."""
    return torch.full((V,), value, dtype=torch.float64)


def network_law(seed: int) -> torch.Tensor:
    """P for each xt: data tokens only."""
    return torch.cat([dirichlet(V, VOCAB.data, seed=seed), torch.zeros(V, VOCAB.masks, dtype=torch.float64)], 1)


def arrow(x1: int) -> torch.Tensor:
    """δ_x1 for each xt."""
    return torch.eye(V, dtype=torch.float64)[x1].expand(V, V)


def rates(p, p0, k, eta):
    return velocity(p, TOKENS, p0, every(k), every(1 - k), eta)


def step(p, p0, k, k_next, eta):
    """The whole kernel, rows xt, and its r and s."""
    r, s = step_sizes(every(1 - k), every(k_next - k), every(eta))
    return kernel(p, TOKENS, p0, every(k), every(1 - k), r, s), r, s


def path_law(p0, x1, k):
    return (1 - k) * p0 + k * torch.eye(V, dtype=torch.float64)[x1]


@each
@settings(max_examples=40)
@given(st.floats(0.01, 0.99), ETAS, st.integers(0, 50))
def test_rates_are_not_negative_and_leave_from_xt_only(source, k, eta, seed):
    v = rates(network_law(seed), source.token_probs(), k, eta)
    assert (v >= 0).all()
    assert (v.diagonal() == 0).all()


@each
@settings(max_examples=40)
@given(st.floats(0.01, 0.99), ETAS, st.floats(0, 1))
def test_a_mixture_of_predictions_moves_with_the_mixture_of_rates(source, k, eta, share):
    p, q, p0 = network_law(0), network_law(1), source.token_probs()
    mixed = share * rates(p, p0, k, eta) + (1 - share) * rates(q, p0, k, eta)
    torch.testing.assert_close(rates(share * p + (1 - share) * q, p0, k, eta), mixed, rtol=1e-10, atol=1e-12)


@each
def test_without_corrector_the_rate_is_the_papers(source):
    p, k = network_law(0), 0.3
    expected = p / (1 - k)
    v = rates(p, source.token_probs(), k, 0.0)
    torch.testing.assert_close(v, expected - torch.diag(expected.diagonal()))


@each
@pytest.mark.parametrize("eta", [0.0, 0.25, 1.0, 2.0])
def test_the_rate_towards_x1_generates_its_path(source, eta):
    """d/dk p_{k|1} = Σ_y p(y) v(x, y) - p(x) Σ_y v(y, x)."""
    p0, k = source.token_probs(), 0.4
    for x1 in range(VOCAB.data):
        law = path_law(p0, x1, k)
        flux = law[:, None] * rates(arrow(x1), p0, k, eta)
        change = path_law(p0, x1, 1.0) - p0  # the path is linear in k
        torch.testing.assert_close(flux.sum(0) - flux.sum(1), change, rtol=0, atol=1e-13)


@each
@pytest.mark.parametrize("k", [1e-12, 1e-7, 0.3, 1 - 1e-7, 1 - 1e-12])
def test_rho_and_one_minus_rho_are_both_exact(source, k):
    p0, rest = source.token_probs(), torch.tensor(1 - k, dtype=torch.float64)
    k = 1 - rest
    rho, other = still_noise(k, rest, p0)
    torch.testing.assert_close(rho, k / (k + rest * p0))
    torch.testing.assert_close(other, rest * p0 / (k + rest * p0), rtol=1e-14, atol=0)


def test_a_state_of_probability_0_has_no_nan():
    zero, one = torch.zeros(1), torch.ones(1)
    assert [float(x) for x in still_noise(zero, one, zero)] == [0.0, 0.0]


@each
@settings(max_examples=40)
@given(st.floats(0, 0.999), st.floats(0, 1), ETAS, st.integers(0, 50))
def test_every_row_of_a_kernel_is_a_law(source, k, share, eta, seed):
    k_next = k + max(share, 1e-6) * (1 - k)
    rows, _, _ = step(network_law(seed), source.token_probs(), k, k_next, eta)
    assert (rows >= -1e-15).all()
    torch.testing.assert_close(rows.sum(1), torch.ones(V, dtype=torch.float64))


@each
@settings(max_examples=40)
@given(st.floats(0, 0.999), st.floats(0, 1), ETAS)
def test_the_kernel_towards_x1_carries_one_point_of_the_path_to_the_next(source, k, share, eta):
    k_next = k + max(share, 1e-6) * (1 - k)
    p0 = source.token_probs()
    for x1 in range(VOCAB.data):
        rows, _, _ = step(arrow(x1), p0, k, k_next, eta)
        torch.testing.assert_close(path_law(p0, x1, k) @ rows, path_law(p0, x1, k_next), rtol=0, atol=1e-12)


@each
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("eta", [0.0, 2.0])
def test_a_whole_run_of_kernels_ends_at_x1_through_every_point_of_its_path(source, schedule, steps, eta):
    p0, x1 = source.token_probs(), 1
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    rest = schedule.rest(t)
    law = p0
    for now, after in pairwise(rest):
        r, s = step_sizes(now.expand(V), (now - after).expand(V), every(eta))
        law = law @ kernel(arrow(x1), TOKENS, p0, (1 - now).expand(V), now.expand(V), r, s)
        torch.testing.assert_close(law, path_law(p0, x1, 1 - after), rtol=0, atol=1e-12)
    assert float(law[x1]) == pytest.approx(1, abs=1e-12)


@each
@settings(max_examples=40)
@given(st.floats(0.001, 0.99), st.floats(0.01, 1), st.integers(0, 50))
def test_at_eta_1_the_kernel_is_the_posterior_of_d3pm(source, k, share, seed):
    """Noising from k' to k keeps a token with chance k/k', else draws it from p0; Bayes turns that around."""
    k_next, p0, p = k + share * (1 - k), source.token_probs(), network_law(seed)
    keep = k / k_next
    noising = keep * torch.eye(V, dtype=torch.float64) + (1 - keep) * p0  # [x', x]
    expected = torch.zeros(V, V, dtype=torch.float64)
    possible = torch.ones(V, dtype=torch.bool)
    for x1 in range(VOCAB.data):
        seen = path_law(p0, x1, k)
        possible &= seen > 0
        posterior = noising.T * path_law(p0, x1, k_next) / seen[:, None]  # [x, x']
        expected += p[:, x1, None] * posterior.nan_to_num()
    rows, _, _ = step(p, p0, k, k_next, 1.0)
    torch.testing.assert_close(rows[possible], expected[possible], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 1024, 100_000])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_last_step_redraws_for_certain_and_proposes_nothing(schedule, steps):
    rest = schedule.rest(torch.tensor([(steps - 1) / steps, 1.0], dtype=torch.float64))
    r, s = step_sizes(rest[:1], rest[:1] - rest[1:], torch.tensor([5.0], dtype=torch.float64))
    assert (float(r), float(s)) == (1.0, 0.0)


@settings(max_examples=40)
@given(st.floats(1e-6, 1), st.floats(0, 1), st.floats(0, 100))
def test_redraws_and_proposals_share_one_die(rest, share, eta):
    r, s = step_sizes(*(torch.tensor(x, dtype=torch.float64) for x in (rest, share * rest, eta)))
    assert 0 <= float(r) <= 1
    assert 0 <= float(s) <= 1 - float(r) + 1e-15


def test_a_step_that_goes_nowhere_does_nothing():
    # at k = 0 too, where a flat schedule stays for a step or more: Polynomial(8) with 1024 steps
    rest, gain, eta = (torch.tensor([1.0, 0.5], dtype=torch.float64) * x for x in (1.0, 0.0, 1.0))
    r, s = step_sizes(rest, gain, eta)
    assert r.tolist() == s.tolist() == [0.0, 0.0]


SIZES = [sign * 10.0**e for e in range(-7, 4) for sign in (1, -1) if sign > 0 or e < 0]


@pytest.mark.parametrize("g", [*SIZES, 0.0499, 0.0501, -0.0499, -0.0501, -0.999])
@pytest.mark.parametrize("c", [1e-7, 1.0, 1e7])
def test_the_divergence_keeps_its_digits_in_float32(c, g):
    c32 = torch.tensor([c])
    difference = c32 * g
    found = divergence(c32, c32 + difference, difference).double()
    wide = (difference.double() / c32.double()).clamp(min=-1 + 1e-12)
    exact = c32.double() * (wide - torch.log1p(wide))
    torch.testing.assert_close(found, exact, rtol=2e-4, atol=0)


@pytest.mark.parametrize("g", [1e-5, 1e-4])
def test_the_plain_formula_would_lose_them(g):
    c = torch.tensor([1.0])
    v = c * (1 + g)
    plain = float(c * torch.log(c / v) - c + v)
    assert abs(plain / (g * g / 2) - 1) > 0.1


@settings(max_examples=40)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_divergence_is_the_formula_and_never_negative(c, v):
    c, v = (torch.tensor([x], dtype=torch.float64) for x in (c, v))
    found = divergence(c, v, v - c)
    assert float(found) >= 0
    torch.testing.assert_close(found, c * torch.log(c / v) - c + v, rtol=1e-6, atol=1e-11)


def test_where_there_is_no_c_what_is_left_is_v_and_where_there_is_no_v_it_is_infinite():
    c, v = torch.tensor([0.0, 0.0, 2.0]), torch.tensor([3.0, 0.0, 0.0])
    assert divergence(c, v, v - c).tolist() == [3.0, 0.0, torch.inf]


def test_gradients_of_the_divergence_are_finite_on_both_sides_of_its_switch():
    c = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    v = torch.tensor([3.0, 1.0, 1.04, 1.06, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: divergence(c, v, v - c), (v,))


def test_eta_may_be_a_number_or_a_function_of_t():
    t = torch.tensor([0.0, 0.5, 1.0])
    assert eta_at(2.0, t).tolist() == [2.0, 2.0, 2.0]
    assert eta_at(lambda t: 1 - t, t).tolist() == [1.0, 0.5, 0.0]
    assert eta_at(lambda t: torch.tensor(0.5), t).tolist() == [0.5, 0.5, 0.5]
    assert eta_at(lambda t: 0.5, t).tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    "eta", [-1.0, math.nan, math.inf, lambda t: t - 0.5], ids=["negative", "nan", "inf", "function"]
)
def test_an_eta_that_is_negative_or_not_finite_is_refused(eta):
    with pytest.raises(ValueError, match=r"eta must be ≥ 0 and finite \(0 = fewest hops"):
        eta_at(eta, torch.tensor([0.0, 0.9]))
