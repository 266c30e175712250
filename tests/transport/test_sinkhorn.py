import math
from itertools import pairwise

import ot as pot
import pytest
import torch
from toys import generator
from unchecked import unchecked

from hopflow.transport.assignment import assignment
from hopflow.transport.sinkhorn import sinkhorn

N = 24


def random_cost(seed: int = 0, n: int = N, m: int | None = None, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(n, m or n, generator=generator(seed), dtype=torch.float64).to(dtype)


def whole_cost(seed: int = 0, n: int = N) -> torch.Tensor:
    """Hamming distances: whole numbers with many ties."""
    x0, x1 = torch.randint(3, (2, n, 20), generator=generator(seed))
    return (x0[None] != x1[:, None]).sum(-1).double()


def paid(plan, cost: torch.Tensor) -> float:
    return float((plan.plan().double() * cost.double()).sum(-1).mean())


@pytest.mark.parametrize("eps", [0.03, 0.1, 1.0])
def test_the_sinkhorn_plan_is_pots(eps):
    cost = random_cost()
    mass = torch.full((N,), 1 / N, dtype=torch.float64).numpy()
    expected = pot.sinkhorn(mass, mass, (cost / cost.max()).numpy(), eps, stopThr=1e-12, numItermax=100_000)
    found = sinkhorn(cost, eps, tol=1e-11).plan() / N
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-9, rtol=0)


def plain_sinkhorn(cost: torch.Tensor, eps: float, rounds: int) -> torch.Tensor:
    """The textbook's iteration in the log domain, for as long as one likes; the law over columns of each row."""
    s = -cost / (eps * cost.max())
    g = torch.zeros_like(cost[0])
    for _ in range(rounds):
        f = -torch.logsumexp(s + g, 1)
        g = math.log(cost.shape[0] / cost.shape[1]) - torch.logsumexp(s + f[:, None], 0)
    return torch.softmax(s + g, 1)


@pytest.mark.parametrize("shape", [(N, N), (20, 31)])
@pytest.mark.parametrize(("eps", "rounds"), [(0.02, 4000), (0.1, 500), (2.0, 50)])
def test_kernels_and_stages_find_the_plan_of_the_plain_iteration(eps, rounds, shape):
    cost = random_cost(2, *shape)
    found = sinkhorn(cost, eps, tol=1e-12, max_iterations=100_000)
    torch.testing.assert_close(found.plan(), plain_sinkhorn(cost, eps, rounds), atol=1e-9, rtol=0)


@pytest.mark.parametrize("n", [64, 512])
def test_in_float32_the_marginals_are_right_to_a_millionth_by_a_float64_count(n):
    """As they are in float64; the plan itself is off by the rounding of cost/eps: 6e-8/0.01 of an entry."""
    x0, x1 = torch.randn(2, n, 40, generator=generator(3))
    cost = torch.cdist(x1, x0).square()
    single, double = (sinkhorn(c, 0.01, tol=1e-6) for c in (cost, cost.double()))
    assert single.converged
    rows = single.plan().double()
    error = (rows.sum(1) - 1).abs().mean() + (rows.mean(0) - 1 / n).abs().sum()
    assert float(error) < 1e-6
    assert float((rows - double.plan()).abs().max()) < 1e-4


@pytest.mark.parametrize("shape", [(N, N), (5, 9), (9, 5), (1, 1), (1, 4), (4, 1)])
def test_rows_are_laws_and_columns_have_equal_mass_also_for_other_shapes(shape):
    plan = sinkhorn(random_cost(1, *shape), 0.05)
    assert plan.converged
    rows = plan.plan()
    torch.testing.assert_close(rows.sum(1), torch.ones(shape[0], dtype=torch.float64))
    assert float((rows.mean(0) - 1 / shape[1]).abs().sum()) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 1e-2, 0.1, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("kind", ["random", "whole", "constant", "zero", "huge", "tiny", "one far row", "offset"])
def test_sinkhorn_is_stable_for_every_eps_and_cost(kind, eps, dtype):
    largest = 1e37 if dtype == torch.float32 else 1e300
    cost = {
        "random": random_cost(),
        "whole": whole_cost(),
        "constant": torch.full((N, N), 7.0),
        "zero": torch.zeros(N, N),
        "huge": random_cost() * largest,
        "tiny": random_cost() * 1e-30,
        "one far row": random_cost() + 1e4 * torch.eye(N)[0][:, None],
        "offset": random_cost() + 1e3,
    }[kind].to(dtype)
    plan = sinkhorn(cost, eps, tol=1e-2, max_iterations=2000)
    assert torch.isfinite(plan.plan()).all()
    assert torch.isfinite(plan.f).all()
    assert torch.isfinite(plan.g).all()
    assert plan.converged
    assert float(plan.marginal_error) <= 1e-2
    if kind in ("constant", "zero"):
        torch.testing.assert_close(plan.plan(), torch.full_like(cost, 1 / N))


@pytest.mark.parametrize("cost", [random_cost(), whole_cost()], ids=["random", "whole"])
def test_from_eps_to_nought_it_tends_to_the_exact_cost_and_for_large_eps_to_the_independent_one(cost):
    least = float(cost.gather(1, assignment(cost)[:, None]).mean())
    costs = [paid(sinkhorn(cost, eps, tol=1e-4), cost) for eps in (1e-4, 1e-3, 1e-2, 0.1, 1.0, 1e3)]
    assert all(a <= b + 1e-4 * float(cost.max()) for a, b in pairwise(costs))
    # the plan pays at most eps·log n (in units of the largest cost) more than the optimum
    assert costs[0] == pytest.approx(least, abs=1e-4 * math.log(N) * float(cost.max()) + 2e-4 * float(cost.max()))
    assert costs[-1] == pytest.approx(float(cost.mean()), rel=1e-3)


def test_the_sinkhorn_potentials_determine_the_plan_and_their_value_is_near_its_cost():
    cost = random_cost()
    found = sinkhorn(cost, 0.02, tol=1e-9)
    reg = float(found.reg)
    assert reg == pytest.approx(0.02 * float(cost.max()))
    plan = ((found.f[:, None] + found.g - cost) / reg).exp() / N
    torch.testing.assert_close(plan, found.plan())
    value = paid(found, cost) + reg * float(found.information)
    assert value - float(found.f.mean() + found.g.mean()) == pytest.approx(float(found.dual_gap), abs=1e-12)
    assert abs(float(found.dual_gap)) < 1e-8
    early = sinkhorn(cost, 0.02, max_iterations=1)
    assert abs(float(early.dual_gap)) > 1e-5


def test_row_and_column_constants_change_nothing_at_a_given_scale():
    cost, gen = random_cost(), generator(3)
    shifted = cost + 10 * torch.rand(N, 1, generator=gen) - 20 * torch.rand(1, N, generator=gen)
    first, second = (sinkhorn(c, 0.02, scale=1.0, tol=1e-10).plan() for c in (cost, shifted))
    torch.testing.assert_close(first, second, atol=1e-8, rtol=0)


def test_a_batch_is_solved_as_its_parts_are():
    cost = torch.stack([random_cost(0), 100 * random_cost(1), whole_cost(2), torch.zeros(N, N)]).view(2, 2, N, N)
    many = sinkhorn(cost, 0.02, tol=1e-9)
    assert many.iterations.shape == many.converged.shape == (2, 2)
    assert bool(many.converged.all())
    for i in range(4):
        one = sinkhorn(cost.view(4, N, N)[i], 0.02, tol=1e-9)
        torch.testing.assert_close(many.plan().view(4, N, N)[i], one.plan(), atol=1e-8, rtol=0)
        assert int(many.iterations.view(4)[i]) <= int(one.iterations) + 8


def test_a_start_from_potentials_needs_fewer_iterations():
    cost = random_cost()
    cold = sinkhorn(cost, 0.05, tol=1e-8)
    warm = sinkhorn(cost + 1e-4 * random_cost(9), 0.05, tol=1e-8, potentials=(cold.f, cold.g))
    again = sinkhorn(cost, 0.05, tol=1e-8, potentials=(cold.f, cold.g))
    assert int(again.iterations) <= 8 < int(warm.iterations) < int(cold.iterations)
    assert warm.converged


def test_a_bad_start_ends_at_the_same_plan():
    cost = random_cost()
    wild = 1e3 * torch.randn(2, N, generator=generator(1), dtype=torch.float64)
    found = sinkhorn(cost, 0.05, tol=1e-8, potentials=(wild[0], wild[1]))
    torch.testing.assert_close(found.plan(), sinkhorn(cost, 0.05, tol=1e-8).plan(), atol=1e-7, rtol=0)


def test_a_plan_that_has_not_converged_says_so_and_its_rows_are_laws_all_the_same():
    plan = sinkhorn(whole_cost(), 1e-3, tol=1e-12, max_iterations=10)
    assert not plan.converged
    assert float(plan.marginal_error) > 1e-12
    assert int(plan.iterations) <= 10 + 5  # one iteration at least for each stage
    torch.testing.assert_close(plan.plan().sum(1), torch.ones(N, dtype=torch.float64))


def test_the_information_of_a_sinkhorn_plan_is_the_divergence_from_a_uniform_choice():
    plan = sinkhorn(random_cost(), 0.02)
    rows = plan.plan()
    by_hand = sum(float(p) * math.log(float(p) * N) for p in rows.flatten()) / N
    assert float(plan.information) == pytest.approx(by_hand, abs=1e-12)
    assert 0 < by_hand < math.log(N)
    assert float(sinkhorn(torch.zeros(N, N), 0.1).information) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_costs_are_solved_in_float32(dtype):
    assert sinkhorn(random_cost(dtype=dtype), 0.1).plan().dtype == torch.float32


def test_a_cost_beyond_half_precision_is_refused_and_told_why():
    with pytest.raises(ValueError, match=r"NaN or infinite.*largest float16 number is 65504"):
        sinkhorn((random_cost() * 1e6).half(), 0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_cost_that_is_no_number_is_refused(bad):
    cost = random_cost()
    cost[3, 4] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        sinkhorn(cost, 0.1)


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, math.inf])
def test_eps_must_be_positive(eps):
    with pytest.raises(ValueError, match="eps must be positive"):
        sinkhorn(random_cost(), eps)


def test_a_cost_without_its_constants_must_be_given_its_scale():
    with pytest.raises(ValueError, match=r"pass scale="):
        sinkhorn(random_cost() - 5, 0.1)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (4,)])
def test_a_cost_without_rows_or_columns_is_refused(shape):
    with pytest.raises(ValueError, match="at least one row and column"):
        unchecked(sinkhorn)(torch.zeros(shape), 0.1)
