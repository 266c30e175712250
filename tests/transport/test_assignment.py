import numpy as np
import ot as pot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import generator
from unchecked import unchecked

from hopflow.costs import Hamming, SquaredEmbedding
from hopflow.transport import assignment as assignment_module
from hopflow.transport.assignment import ENGINES, assignment, best_engine, certificate

each_engine = pytest.mark.parametrize("engine", ENGINES)
SQUARE = st.integers(1, 7).flatmap(
    lambda n: hnp.arrays(np.float64, (n, n), elements=st.floats(-100, 100, allow_nan=False))
)


def paid(cost: torch.Tensor, order: torch.Tensor) -> float:
    return float(cost[torch.arange(len(order)), order].double().sum())


@given(SQUARE)
def test_an_assignment_uses_every_column_once(cost):
    order = assignment(torch.from_numpy(cost))
    assert sorted(order.tolist()) == list(range(len(cost)))


@given(SQUARE)
def test_no_linear_program_has_a_lower_cost_than_an_assignment(cost):
    cost = cost - cost.min()  # POT calls some problems with negative costs infeasible
    mass = np.full(len(cost), 1 / len(cost))
    plan, log = pot.emd(mass, mass, cost, log=True)
    assert plan.sum() == pytest.approx(1)
    found = paid(torch.from_numpy(cost), assignment(torch.from_numpy(cost))) / len(cost)
    assert found == pytest.approx(log["cost"], abs=1e-9)


@given(SQUARE, st.integers(0, 1000))
def test_no_random_permutation_pays_less(cost, seed):
    cost = torch.from_numpy(cost)
    best = paid(cost, assignment(cost))
    for i in range(20):
        assert paid(cost, torch.randperm(len(cost), generator=generator(seed + i))) >= best - 1e-9


def test_a_hidden_permutation_is_found():
    hidden = torch.randperm(50, generator=generator(0))
    cost = torch.rand(50, 50, generator=generator(1)) + 1
    cost[torch.arange(50), hidden] = 0
    assert torch.equal(assignment(cost), hidden)


@each_engine
@pytest.mark.parametrize("value", [3.0, 0.0, -2.0, 1e300, 1e-300])
def test_an_assignment_of_one_row_is_that_row(value, engine):
    assert assignment(torch.tensor([[value]], dtype=torch.float64), engine).tolist() == [0]


def test_where_all_costs_are_equal_any_permutation_will_do():
    assert sorted(assignment(torch.ones(5, 5)).tolist()) == [0, 1, 2, 3, 4]


def test_the_solver_takes_no_gradient_and_breaks_none():
    cost = torch.rand(4, 4, generator=generator(0), requires_grad=True)
    assert not assignment(cost).requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_cost_that_is_no_number_is_refused_and_points_to_where_it_comes_from(bad):
    cost = torch.zeros(3, 3)
    cost[1, 2] = bad
    with pytest.raises(ValueError, match=r"NaN or infinite.*embeddings or the cost function"):
        assignment(cost)


# A user, without the tests' checked shapes, must meet the ValueError; here jaxtyping may come first.
@pytest.mark.parametrize("shape", [(2, 3), (4,)])
def test_a_cost_that_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match=r"cost must be a square matrix, got shape \("):
        unchecked(assignment)(torch.zeros(shape))


FAMILIES = (
    "real",
    "hamming few tokens",
    "hamming many tokens",
    "embedding",
    "cross term",
    "duplicates",
    "ties",
    "low rank",
)


def problem(family: str, n: int, seed: int) -> torch.Tensor:
    """A random cost of one of the families, in float64, at a scale between 1e-6 and 1e6."""
    gen = generator(seed)
    length, tokens = 1 + seed % 40, 3 if family == "hamming few tokens" else 200
    x0, x1 = torch.randint(tokens, (2, n, length), generator=gen)
    table = torch.randn(tokens, 8, generator=gen, dtype=torch.float64)
    if family == "duplicates":
        x0, x1 = x0[torch.randint(n, (n,), generator=gen) // 2], x1[torch.randint(n, (n,), generator=gen) // 2]
    if family.startswith("hamming"):
        cost = Hamming().matrix(x0, x1).double()
    elif family in ("embedding", "duplicates"):
        cost = SquaredEmbedding().matrix(x0, x1, table)
    elif family == "cross term":
        cost = SquaredEmbedding().cost_matrix(x0, x1, table).pairwise
    elif family == "ties":
        cost = torch.randint(1 + seed % 4, (n, n), generator=gen).double()
    elif family == "low rank":
        cost = torch.rand(n, 1, generator=gen, dtype=torch.float64) * torch.rand(n, generator=gen, dtype=torch.float64)
    else:
        cost = torch.rand(n, n, generator=gen, dtype=torch.float64)
    return cost * 10.0 ** (seed % 13 - 6)


def optimum_of_pot(cost: torch.Tensor) -> float:
    """POT calls some problems with negative costs infeasible, and stops early at its default number of steps."""
    mass, low = np.full(len(cost), 1 / len(cost)), float(cost.min())
    unit = float(cost.max()) - low or 1.0
    value, log = pot.emd2(mass, mass, ((cost - low) / unit).numpy(), numItermax=10_000_000, log=True)
    assert log["warning"] is None
    return (value * unit + low) * len(cost)


def sizes(count: int, largest: int) -> list[int]:
    """Mostly small, some large: up to `largest` with a density that falls as 1/n."""
    return [1 + int(largest ** (((i * 0.6180339887) % 1) ** 1.5)) % largest for i in range(count)]


def compare_with_pot(seeds: range, largest: int) -> None:
    for seed, n in zip(seeds, sizes(len(seeds), largest), strict=True):
        family = FAMILIES[seed % len(FAMILIES)]
        cost = problem(family, n, seed)
        engine = ENGINES[seed // len(FAMILIES) % 2]
        order = assignment(cost, engine)
        assert sorted(order.tolist()) == list(range(n)), (family, n, seed, engine)
        best, unit = optimum_of_pot(cost), float(cost.abs().max())
        within = 1e-9 * max(abs(best), unit)
        assert paid(cost, order) == pytest.approx(best, abs=within), (family, n, seed, engine)


@pytest.mark.parametrize("part", range(4))
def test_two_thousand_random_problems_of_every_family_cost_what_pot_finds(part):
    compare_with_pot(range(500 * part, 500 * (part + 1)), 256)


@pytest.mark.torture
@pytest.mark.parametrize("part", range(20))
def test_twenty_thousand_random_problems_cost_what_pot_finds(part, tries):
    compare_with_pot(range(10_000 + 1000 * part, 10_000 + 1000 * (part + 1)), 1024)
    tries["problems"] += 1000


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_find_the_same_optimum_and_the_same_engine_the_same_permutation(family):
    cost = problem(family, 150, 5)
    orders = [assignment(cost, engine) for engine in (*ENGINES, *ENGINES)]
    assert torch.equal(orders[0], orders[2])
    assert torch.equal(orders[1], orders[3])
    assert paid(cost, orders[0]) == pytest.approx(paid(cost, orders[1]), rel=1e-12)


@each_engine
@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1e6, 1e12, 1e300])
def test_the_unit_of_the_cost_does_not_matter(scale, engine):
    cost = problem("real", 60, 6)
    assert torch.equal(assignment(cost * scale, engine), assignment(cost, engine))


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1.0, 1e6, 1e300])
@pytest.mark.parametrize("family", ["real", "cross term", "ties"])
def test_engines_are_given_small_costs_with_a_zero_in_every_row_and_column(family, scale):
    """lapx starts its searches for a minimum at a million, and calls nothing above it."""
    cost = (problem(family, 50, 6) * scale).numpy()
    reduced = assignment_module._reduced(cost, float(abs(cost).max()), np.float64)
    assert 0 <= reduced.min() <= reduced.max() <= 4
    assert (reduced.min(0) == 0).all()
    assert (reduced.min(1) == 0).all()


@each_engine
def test_row_and_column_constants_change_no_optimal_permutation(engine):
    cost, gen = problem("real", 60, 6), generator(1)
    shifted = cost + 5 * torch.rand(60, 1, generator=gen) - 9 * torch.rand(1, 60, generator=gen)
    assert torch.equal(assignment(shifted, engine), assignment(cost, engine))


@each_engine
def test_the_cost_itself_is_left_as_it_was(engine):
    cost = problem("embedding", 30, 3)
    before = cost.clone()
    assignment(cost, engine)
    assert torch.equal(cost, before)


def test_without_lapx_scipy_solves_and_asking_for_lapx_says_what_to_install(monkeypatch):
    monkeypatch.setattr(assignment_module, "find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "lap", None)
    assert best_engine() == "scipy"
    assert assignment(torch.eye(3)).shape == (3,)
    with pytest.raises(ImportError, match=r"pip install 'hopflow\[ot\]'"):
        assignment(torch.eye(3), "lapx")


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine must be one of scipy, lapx"):
        assignment(torch.eye(3), "auction")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_a_certificate_proves_an_optimal_permutation(family, n):
    cost = problem(family, n, n)
    order = assignment(cost)
    proof = certificate(cost, order)
    assert proof.relative_gap <= 1e-9
    slack = cost - proof.u[:, None] - proof.v[None, :]
    assert float(slack.min()) >= -1e-9 * max(float(cost.abs().max()), 1e-300)
    assert float(proof.u.sum() + proof.v.sum()) == pytest.approx(paid(cost, order) - proof.gap, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("family", ["real", "hamming few tokens", "embedding"])
def test_a_certificate_of_another_permutation_leaves_a_gap_that_bounds_what_could_be_saved(family):
    cost = problem(family, 40, 6 if family == "real" else 39)
    best = assignment(cost)
    worse = best.roll(1)
    proof = certificate(cost, worse, rounds=200)
    assert proof.gap >= paid(cost, worse) - paid(cost, best) - 1e-9 * paid(cost, best)
    assert proof.gap > 0
    assert float((cost - proof.u[:, None] - proof.v[None, :]).min()) >= -1e-9 * float(cost.max())


def test_a_certificate_is_for_permutations():
    with pytest.raises(ValueError, match="every column exactly once"):
        certificate(torch.rand(3, 3, generator=generator(0)), torch.tensor([0, 0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["hamming few tokens", "hamming many tokens", "embedding", "real"])
def test_a_certificate_proves_4096_pairs(family):
    cost = problem(family, 4096, 39)
    assert certificate(cost, assignment(cost)).relative_gap <= 1e-9


@pytest.mark.parametrize("engine", assignment_module.ENGINES)
@pytest.mark.parametrize("kind", ["products", "whole numbers", "near constant", "few that are huge", "far apart"])
def test_a_large_cost_in_float32_is_solved_as_in_float64(engine, kind):
    n, source = assignment_module.FLOAT32_ROWS + 7, generator(3)
    cost = torch.randn(n, 8, generator=source) @ torch.randn(8, n, generator=source)
    if kind == "whole numbers":
        cost = torch.randint(0, 3, (n, n), generator=source).float()
    elif kind == "near constant":
        cost = 1e3 + 1e-3 * cost
    elif kind == "few that are huge":  # pairs that nobody wants
        cost = torch.where(torch.rand(n, n, generator=source) < 0.01, 1e9, torch.rand(n, n, generator=source))
    elif kind == "far apart":
        cost = (5 * torch.randn(n, n, generator=source)).exp()
    single, double = assignment_module.assignment(cost, engine), assignment_module.assignment(cost.double(), engine)
    assert torch.equal(single.sort().values, torch.arange(n))
    paid = [float(cost.double()[torch.arange(n), order].sum()) for order in (single, double)]
    assert paid[0] - paid[1] <= 1e-5 * abs(paid[1])


def test_whole_numbers_are_exact_in_float32_only_below_two_to_the_23(monkeypatch):
    """Pairs of total cost 0 pass no other check of the precision, so that the limit alone decides."""
    monkeypatch.setattr(assignment_module, "FLOAT32_ROWS", 8)
    order = torch.tensor([3, 1, 7, 0, 2, 6, 4, 5])
    for largest, kinds in ((2**23 - 1, [4]), (2**23, [4, 8])):
        cost = torch.full((8, 8), float(largest)).scatter(1, order[:, None], 0.0)
        solve, used = assignment_module._solve("scipy"), []
        monkeypatch.setattr(
            assignment_module, "_solve", lambda _, f=solve, u=used: lambda c: u.append(c.itemsize) or f(c)
        )
        assert torch.equal(assignment(cost), order)
        assert used == kinds
        monkeypatch.undo()
        monkeypatch.setattr(assignment_module, "FLOAT32_ROWS", 8)
