import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from toys import generator

from hopflow.costs import Hamming
from hopflow.transport import plan_sampling
from hopflow.transport.plan_sampling import EXAMPLES, Permutation, Rows, information, rounded
from hopflow.transport.sinkhorn import sinkhorn


def plan(n: int, eps: float = 0.1, seed: int = 0) -> torch.Tensor:
    """A Sinkhorn plan between short sequences."""
    x0, x1 = torch.randint(3, (2, n, 16), generator=generator(seed))
    return sinkhorn(Hamming().matrix(x0, x1).double(), eps, tol=1e-9).plan()


def every_outcome(pick: Permutation, t: torch.Tensor, monkeypatch) -> list[tuple[float, torch.Tensor]]:
    """All permutations a pick can draw with their chances, by playing every sequence of coins."""
    outcomes, open_scripts = [], [[]]
    while open_scripts:
        script = open_scripts.pop()
        played = iter(script)
        missing = []

        def coins(count, _, played=played, missing=missing):
            out = [next(played, None) for _ in range(count)]
            missing.extend(coin for coin in out if coin is None)
            return torch.tensor([0.0 if coin is None else coin for coin in out], dtype=torch.float64)

        monkeypatch.setattr(plan_sampling, "_uniform", coins)
        order = pick.draw(t).order
        if missing:  # decide the first coin that the script left open
            open_scripts += [[*script, 0.25], [*script, 0.75]]
        else:
            outcomes.append((0.5 ** len(script), order))
    return outcomes


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_the_mean_of_all_permutations_of_three_rows_is_the_rounded_plan_exactly(bits, monkeypatch):
    t = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.1, 0.5]], dtype=torch.float64)
    outcomes = every_outcome(Permutation(bits), t, monkeypatch)
    assert sum(chance for chance, _ in outcomes) == 1
    mean = sum(chance * torch.eye(3, dtype=torch.float64)[order] for chance, order in outcomes)
    assert torch.equal(mean, torch.from_numpy(rounded(t, bits) / 2.0**bits))
    assert len({tuple(order.tolist()) for _, order in outcomes}) > 2


@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 64])
def test_a_permutation_uses_every_source_row_once(n, eps):
    order = Permutation().draw(plan(n, eps), generator(n)).order
    assert sorted(order.tolist()) == list(range(n))


@pytest.mark.parametrize("pick", EXAMPLES, ids=repr)
def test_over_many_draws_each_data_row_meets_each_source_row_as_often_as_the_plan_says(pick):
    t, draws, gen = plan(8, 0.05), 1000, generator(1)
    counts = sum(torch.eye(8)[pick.draw(t, gen).order] for _ in range(draws)).double()
    for seen, law in zip(counts, t, strict=True):
        likely = law * draws >= 5
        seen, law = (torch.cat([v[likely], v[~likely].sum()[None]]) for v in (seen, law))
        keep = law > 0
        assert chisquare(seen[keep], draws * law[keep] / law[keep].sum()).pvalue > 0.001 / 16


def test_at_64_rows_the_mean_of_the_permutations_is_the_plan():
    """By Monte Carlo: squared distance of the mean from the plan, against what independent draws would leave."""
    t, draws, gen = plan(64, 0.05), 400, generator(2)
    mean = sum(torch.eye(64, dtype=torch.float64)[Permutation().draw(t, gen).order] for _ in range(draws)) / draws
    off = (mean - t).square().sum()
    expected = (t * (1 - t)).sum() / draws
    assert float(off) == pytest.approx(float(expected), rel=0.1)


@pytest.mark.parametrize("bits", [10, 20])
@pytest.mark.parametrize("n", [1, 3, 64])
def test_a_rounded_plan_has_exact_sums_and_stays_near(n, bits):
    t = plan(n)
    units = rounded(t, bits)
    assert (units.sum(0) == 2**bits).all()
    assert (units.sum(1) == 2**bits).all()
    assert (units >= 0).all()
    assert np.abs(units / 2.0**bits - t.numpy()).sum(1).max() <= 2 * n * 2.0**-bits + 1e-8


def test_a_plan_whose_columns_are_off_is_mended_before_it_is_rounded():
    t = torch.tensor([[0.9, 0.1], [0.9, 0.1]], dtype=torch.float64)
    units = rounded(t, 8)
    assert (units.sum(0) == 256).all()
    assert (units.sum(1) == 256).all()


@pytest.mark.parametrize("pick", EXAMPLES, ids=repr)
def test_the_information_of_a_pick_is_that_of_its_plan(pick):
    t = plan(32, 0.05)
    by_hand = sum(float(p) * math.log(float(p) * 32) for p in t.flatten() if p > 0) / 32
    assert information(t) == pytest.approx(by_hand, abs=1e-12)
    assert pick.draw(t, generator(0)).information == pytest.approx(by_hand, abs=2e-3)
    assert by_hand < math.log(32)


def test_a_certain_plan_leaves_no_choice_and_has_information_log_n():
    certain = torch.eye(6, dtype=torch.float64)[[3, 1, 0, 5, 4, 2]]
    for pick in EXAMPLES:
        picked = pick.draw(certain, generator(0))
        assert picked.order.tolist() == [3, 1, 0, 5, 4, 2]
        assert picked.information == pytest.approx(math.log(6))


@pytest.mark.parametrize("pick", EXAMPLES, ids=repr)
def test_the_same_generator_draws_the_same(pick):
    first, second = (pick.draw(plan(16), generator(3)).order for _ in range(2))
    assert torch.equal(first, second)
    assert any(not torch.equal(first, pick.draw(plan(16), generator(s)).order) for s in range(4, 8))


def test_rows_with_all_their_mass_on_one_source_row_never_draw_another():
    t = torch.zeros(1000, 4, dtype=torch.float64)
    t[:, 2] = 1
    assert (Rows().draw(torch.cat([t, torch.zeros(1000, 996)], 1), generator(0)).order == 2).all()


def test_a_source_row_without_mass_is_never_drawn_not_even_by_a_zero(monkeypatch):
    monkeypatch.setattr(plan_sampling, "_uniform", lambda count, _: torch.zeros(count, dtype=torch.float64))
    t = torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert Rows().draw(t).order.tolist() == [1, 0, 2]


@pytest.mark.parametrize("bits", [0, 51])
def test_bits_are_from_1_to_50(bits):
    with pytest.raises(ValueError, match="an integer from 1 to 50"):
        Permutation(bits)
