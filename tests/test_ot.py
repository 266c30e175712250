import numpy as np
import ot as pot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopflow.ot import assignment
from toys import generator

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
def test_no_linear_programme_pays_less(cost):
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


def test_one_row_meets_one_row():
    assert assignment(torch.tensor([[3.0]])).tolist() == [0]


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
    with pytest.raises(ValueError, match=r"as many rows as columns; got a cost of shape \("):
        _unchecked(assignment)(torch.zeros(shape))


def _unchecked(function):
    """The function itself, beneath the checks that the tests put around it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
