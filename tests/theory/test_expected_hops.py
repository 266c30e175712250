"""Jumps are predicted before training: E d_H of each coupling on uniform 3-symbol sequences.  theory.md §2

L = 128, n = 64. Independent pairs differ at 2/3 of the positions; the other targets are means over many batches, of an
independent implementation. `Permutation` has the plan as its mean, so its figures are those of `Rows`.
"""

import math
from functools import cache

import pytest
import torch
import toys

from hopflow.couplings import Coupling, ExactOT, Independent, SinkhornOT
from hopflow.transport.plan_sampling import Permutation

BATCHES = 60

EXPECTED = [
    (Independent(), 2 / 3 * 128, 0.2),
    (ExactOT(), 73.57, 0.15),
    (SinkhornOT(eps=0.1), 82.65, 0.2),
    (SinkhornOT(eps=0.01), 74.15, 0.2),
    (SinkhornOT(eps=0.1, draw=Permutation()), 82.65, 0.2),
    (SinkhornOT(eps=0.01, draw=Permutation()), 74.15, 0.2),
]


@cache
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    gen = toys.generator(0)
    return [tuple(torch.randint(3, (2, 64, 128), generator=gen)) for _ in range(BATCHES)]


@cache
def pairs(coupling: Coupling):
    gen = toys.generator(1)
    return [coupling.pair(x0, x1, gen) for x0, x1 in batches()]


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


@pytest.mark.parametrize(("coupling", "hops", "within"), EXPECTED, ids=lambda value: str(value)[:60])
def test_the_expected_hamming_distance_is_the_known_one(coupling, hops, within):
    found = [p.cost for p in pairs(coupling)]
    assert mean(found) == pytest.approx(hops, abs=within)
    assert mean(float((p.x0 != p.x1).sum(1).double().mean()) for p in pairs(coupling)) == pytest.approx(mean(found))
    if coupling != Independent():
        assert mean(p.independent_cost for p in pairs(coupling)) == pytest.approx(2 / 3 * 128, abs=0.1)


@pytest.mark.parametrize(("eps", "nats"), [(0.1, 0.129), (0.01, 2.86)])
@pytest.mark.parametrize("draw", [SinkhornOT().draw, Permutation()], ids=repr)
def test_the_information_of_a_plan_is_far_below_log_n(eps, nats, draw):
    """Figures of theory.md §4 for Morse, whose three symbols are nearly as frequent."""
    found = mean(p.information for p in pairs(SinkhornOT(eps=eps, draw=draw)))
    assert found == pytest.approx(nats, rel=0.03)
    assert found < math.log(64)


def test_no_permutation_undercuts_exact_transport_and_eps_orders_the_means():
    small, large = SinkhornOT(eps=0.01, draw=Permutation()), SinkhornOT(eps=0.1, draw=Permutation())
    for exact, other in zip(pairs(ExactOT()), pairs(small), strict=True):
        assert exact.cost <= other.cost
    means = [mean(p.cost for p in pairs(coupling)) for coupling in (ExactOT(), small, large, Independent())]
    assert means == sorted(means)


@pytest.mark.parametrize("coupling", [SinkhornOT(eps=0.1), SinkhornOT(eps=0.01)], ids=repr)
def test_the_mean_cost_of_both_picks_is_that_of_the_plan(coupling):
    """Paired batch by batch: the difference of the two is noise."""
    permuted = SinkhornOT(eps=coupling.eps, draw=Permutation())
    differences = torch.tensor([a.cost - b.cost for a, b in zip(pairs(coupling), pairs(permuted), strict=True)])
    assert abs(float(differences.mean())) < 4 * float(differences.std()) / math.sqrt(BATCHES)
