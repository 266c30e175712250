import math
from dataclasses import dataclass

import ot as pot
import pytest
import torch

from hopflow.costs import Cost, Hamming, SquaredEmbedding
from hopflow.couplings import EXAMPLES, ExactOT, Independent
from toys import generator

N, L, V = 32, 12, 3


@dataclass(frozen=True)
class Apart(Cost):
    """A newcomer's cost: how far apart two ids are."""

    def dissimilarity(self, a, b, embedding=None):
        return (a - b).abs().float()


def rows(seed: int, n: int = N, length: int = L, vocab: int = V) -> torch.Tensor:
    return torch.randint(vocab, (n, length), generator=generator(seed))


def table(vocab: int = V) -> torch.Tensor:
    return torch.randn(vocab, 4, generator=generator(5))


COSTS = [Hamming(), SquaredEmbedding(), Apart()]
each_cost = pytest.mark.parametrize("cost", COSTS, ids=repr)


def test_independent_pairs_are_left_alone():
    x0, x1 = rows(0), rows(1)
    pairs = Independent().pair(x0, x1, generator(2))
    assert torch.equal(pairs.x0, x0)
    assert torch.equal(pairs.x1, x1)
    assert pairs.cost == pairs.independent_cost == pytest.approx(float((x0 != x1).sum(1).double().mean()))
    assert (pairs.marginal_error, pairs.information) == (0.0, 0.0)


@each_cost
def test_optimal_transport_keeps_every_row_exactly_once_and_the_order_of_the_data(cost):
    x0, x1 = rows(0, vocab=V), rows(1)
    pairs = ExactOT(cost).pair(x0, x1, generator(2), embedding=table())
    assert torch.equal(pairs.x1, x1)
    assert sorted(pairs.x0.tolist()) == sorted(x0.tolist())
    assert pairs.marginal_error == 0.0


@each_cost
def test_the_cost_it_reports_is_the_cost_of_its_pairs(cost):
    x0, x1 = rows(0), rows(1)
    pairs = ExactOT(cost).pair(x0, x1, embedding=table())
    per_pair = cost.dissimilarity(pairs.x0, pairs.x1, table()).sum(1).double()
    assert pairs.cost == pytest.approx(float(per_pair.mean()), rel=1e-5)
    assert pairs.independent_cost == pytest.approx(float(cost.matrix(x0, x1, table()).double().mean()), rel=1e-6)


@each_cost
def test_it_is_no_dearer_than_independent_pairs_nor_than_random_permutations(cost):
    x0, x1 = rows(0), rows(1)
    pairs = ExactOT(cost).pair(x0, x1, embedding=table())
    assert pairs.cost < pairs.independent_cost
    matrix = cost.matrix(x0, x1, table()).double()
    for i in range(200):
        order = torch.randperm(N, generator=generator(100 + i))
        assert float(matrix[torch.arange(N), order].mean()) >= pairs.cost - 1e-9


@each_cost
def test_it_pays_what_pot_pays(cost):
    x0, x1 = rows(0), rows(1)
    matrix = cost.matrix(x0, x1, table().double()).double().numpy()
    mass = torch.full((N,), 1 / N, dtype=torch.float64).numpy()
    pairs = ExactOT(cost).pair(x0, x1, embedding=table().double())
    assert pairs.cost == pytest.approx(float(pot.emd2(mass, mass, matrix)), abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, N])
def test_its_information_is_the_choice_among_the_source_rows(n):
    assert ExactOT().pair(rows(0, n), rows(1, n)).information == pytest.approx(math.log(n))


def test_one_pair_is_a_pair():
    x0, x1 = rows(0, 1), rows(1, 1)
    pairs = ExactOT().pair(x0, x1)
    assert torch.equal(pairs.x0, x0)
    assert pairs.cost == pairs.independent_cost == float((x0 != x1).sum())


def test_identical_rows_cost_nothing_together():
    x = rows(0)
    assert ExactOT().pair(x[torch.randperm(N, generator=generator(1))], x).cost == 0.0
    same = torch.ones(N, L, dtype=torch.long)
    assert ExactOT().pair(same, same).cost == 0.0


def test_a_cost_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="NaN or infinite"):
        ExactOT(SquaredEmbedding()).pair(rows(0), rows(1), embedding=torch.full((V, 2), float("nan")))


@pytest.mark.filterwarnings("error")
def test_a_models_own_embedding_may_be_given_as_it_is():
    embedding = torch.nn.Parameter(table())
    pairs = ExactOT(SquaredEmbedding()).pair(rows(0), rows(1), embedding=embedding)
    assert pairs.cost < pairs.independent_cost
    assert embedding.grad is None


def test_the_embedding_cost_asks_for_its_table():
    with pytest.raises(ValueError, match="needs the embedding table"):
        ExactOT(SquaredEmbedding()).pair(rows(0), rows(1))


@pytest.mark.parametrize("coupling", EXAMPLES, ids=repr)
def test_the_same_batch_is_paired_in_the_same_way(coupling):
    first, second = (coupling.pair(rows(0), rows(1), generator(3)).x0 for _ in range(2))
    assert torch.equal(first, second)
