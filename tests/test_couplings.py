import math
from dataclasses import dataclass

import ot as pot
import pytest
import torch
from scipy.stats import chisquare
from toys import generator
from unchecked import unchecked

from hopflow.costs import Cost, Hamming, OneStepLikelihood, SquaredEmbedding
from hopflow.couplings import EXAMPLES, ExactOT, Independent, Rectified, SinkhornOT
from hopflow.transport.assignment import best_engine
from hopflow.transport.cost_matrix import CostMatrix
from hopflow.transport.plan_sampling import Permutation, Rows
from hopflow.transport.sinkhorn import sinkhorn

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
def test_exact_ot_costs_no_more_than_independent_pairs_and_random_permutations(cost):
    x0, x1 = rows(0), rows(1)
    pairs = ExactOT(cost).pair(x0, x1, embedding=table())
    assert pairs.cost < pairs.independent_cost
    matrix = cost.matrix(x0, x1, table()).double()
    for i in range(200):
        order = torch.randperm(N, generator=generator(100 + i))
        assert float(matrix[torch.arange(N), order].mean()) >= pairs.cost - 1e-9


@each_cost
def test_exact_ot_costs_what_pot_finds(cost):
    x0, x1 = rows(0), rows(1)
    matrix = cost.matrix(x0, x1, table().double()).double().numpy()
    mass = torch.full((N,), 1 / N, dtype=torch.float64).numpy()
    pairs = ExactOT(cost).pair(x0, x1, embedding=table().double())
    assert pairs.cost == pytest.approx(float(pot.emd2(mass, mass, matrix)), abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, N])
def test_the_information_of_exact_ot_is_the_choice_among_the_source_rows(n):
    assert ExactOT().pair(rows(0, n), rows(1, n)).information == pytest.approx(math.log(n))


def test_exact_ot_pairs_one_source_row_with_one_data_row():
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


SINKHORN = [SinkhornOT(eps=0.05), SinkhornOT(eps=0.05, draw=Permutation())]
each_sinkhorn = pytest.mark.parametrize("coupling", SINKHORN, ids=repr)


def network(xt, t):
    return torch.sin(xt[..., None] * torch.arange(1.0, V + 1) + xt.float().mean(1)[:, None, None])


@pytest.mark.parametrize("cost", [*COSTS, OneStepLikelihood()], ids=repr)
@pytest.mark.parametrize("draw", [Rows(), Permutation()], ids=repr)
def test_sinkhorn_pairs_report_what_they_pay_and_what_their_plan_knows(cost, draw):
    x0, x1 = rows(0), rows(1)
    pairs = SinkhornOT(cost, 0.05, draw).pair(x0, x1, generator(2), embedding=table(), network=network)
    matrix = cost.matrix(x0, x1, table(), network).double()
    assert torch.equal(pairs.x1, x1)
    assert {tuple(row) for row in pairs.x0.tolist()} <= {tuple(row) for row in x0.tolist()}
    paid = cost.paired(pairs.x0, pairs.x1, table(), network).double()
    assert pairs.cost == pytest.approx(float(paid.mean()))
    assert pairs.independent_cost == pytest.approx(float(matrix.mean()), rel=1e-6)
    plan = sinkhorn(matrix, 0.05)
    assert pairs.information == pytest.approx(float(plan.information), abs=2e-3)
    assert 0 <= pairs.marginal_error <= 1e-3
    assert pairs.verdict.solver == "sinkhorn"
    assert pairs.verdict.converged
    assert pairs.verdict.iterations > 0


def test_by_permutation_no_row_is_lost_and_by_rows_some_are():
    x0, x1 = torch.arange(N * L).view(N, L), rows(1)
    by_permutation, by_rows = (
        SinkhornOT(eps=1.0, draw=draw).pair(x0, x1, generator(2)).x0 for draw in (Permutation(), Rows())
    )
    assert sorted(by_permutation.tolist()) == x0.tolist()
    assert len({tuple(row) for row in by_rows.tolist()}) < N


@each_sinkhorn
def test_the_source_marginal_is_preserved(coupling):
    """Over many batches each token of the pairs' x0 is as frequent as in the source."""
    gen, law = generator(4), torch.tensor([0.5, 0.3, 0.2])
    chosen = []
    for _ in range(150):
        x0 = torch.multinomial(law, N * L, True, generator=gen).view(N, L)
        x1 = torch.multinomial(law.flip(0), N * L, True, generator=gen).view(N, L)
        chosen.append(coupling.pair(x0, x1, gen).x0[0])  # one row a batch: rows of a batch may repeat
    seen = torch.stack(chosen).flatten().bincount(minlength=V)
    assert chisquare(seen, law * seen.sum()).pvalue > 0.001 / 2


@each_sinkhorn
def test_another_seed_draws_other_pairs(coupling):
    assert not torch.equal(
        coupling.pair(rows(0), rows(1), generator(1)).x0, coupling.pair(rows(0), rows(1), generator(2)).x0
    )


@pytest.mark.parametrize("coupling", [*EXAMPLES, SinkhornOT(SquaredEmbedding(), 0.1)], ids=repr)
def test_rows_meet_only_within_their_group_and_the_information_is_that_of_the_group(coupling):
    group = torch.randint(5, (N,), generator=generator(6)) * 3 - 7
    x0 = rows(0)
    x0[:, 0] = group + 100  # the first token tells the group
    x1 = rows(1)
    pairs = coupling.pair(x0, x1, generator(2), group=group, embedding=table(120))
    assert torch.equal(pairs.x0[:, 0], group + 100)
    assert torch.equal(pairs.x1, x1)
    counts = torch.stack([(group == label).sum() for label in group])
    most = float(counts.double().log().mean())
    assert pairs.information <= most + 1e-9
    if isinstance(coupling, ExactOT):
        assert pairs.information == pytest.approx(most)
        inside = (group[:, None] == group[None, :]).double() / counts[:, None]
        assert pairs.independent_cost == pytest.approx(float((Hamming().matrix(x0, x1) * inside).sum(1).mean()))
        assert pairs.cost >= coupling.pair(x0, x1).cost


def test_one_group_is_no_group_and_groups_of_one_leave_rows_where_they_are():
    x0, x1 = rows(0), rows(1)
    one = ExactOT().pair(x0, x1, group=torch.full((N,), 9))
    assert one.cost == ExactOT().pair(x0, x1).cost
    alone = ExactOT().pair(x0, x1, group=torch.arange(N).flip(0))
    assert torch.equal(alone.x0, x0)
    assert alone.information == 0.0


def test_row_and_column_constants_leave_the_pairs_as_they_are():
    """The cross term and the full cost differ by constants of rows and columns; pairs come out the same."""

    @dataclass(frozen=True)
    class Full(SquaredEmbedding):
        def cost_matrix(self, x0, x1, embedding=None, network=None):
            return CostMatrix(SquaredEmbedding().matrix(x0, x1, embedding, network))

    e = table().double()
    for coupling in (ExactOT, SinkhornOT):
        first, second = (
            coupling(cost).pair(rows(0), rows(1), generator(1), embedding=e) for cost in (Full(), COSTS[1])
        )
        assert torch.equal(first.x0, second.x0)
        assert first.independent_cost == pytest.approx(second.independent_cost)


def test_sinkhorn_tends_to_exact_pairs_and_to_independent_ones():
    x0, x1 = rows(0, 12, 40), rows(1, 12, 40)
    exact = ExactOT().pair(x0, x1)
    assert SinkhornOT(eps=1e-4, draw=Permutation(), tol=1e-2).pair(x0, x1).cost == pytest.approx(exact.cost, abs=0.1)
    assert SinkhornOT(eps=1e3).pair(x0, x1).information == pytest.approx(0.0, abs=1e-6)


def test_a_plan_that_has_not_converged_warns_and_is_marked():
    coupling = SinkhornOT(eps=1e-3, tol=1e-12, max_iterations=3)
    with pytest.warns(RuntimeWarning, match=r"marginal error of .* Raise eps or max_iterations or use ExactOT"):
        pairs = coupling.pair(rows(0), rows(1), generator(0))
    assert not pairs.verdict.converged
    assert pairs.marginal_error > 1e-12


def test_the_exact_pairs_name_their_engine():
    assert ExactOT().pair(rows(0), rows(1)).verdict.solver == best_engine()


def test_the_learned_cost_is_lowered():
    pairs = ExactOT(OneStepLikelihood()).pair(rows(0), rows(1), network=network)
    assert pairs.cost < pairs.independent_cost


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, math.inf])
def test_eps_must_be_positive(eps):
    with pytest.raises(ValueError, match="eps must be positive"):
        SinkhornOT(eps=eps)


@pytest.mark.parametrize("coupling", EXAMPLES, ids=repr)
@pytest.mark.parametrize("shapes", [((4, 3), (5, 3)), ((4, 3), (4, 2)), ((0, 3), (0, 3)), ((3, 0), (3, 0))])
def test_batches_that_do_not_fit_or_are_empty_are_refused(coupling, shapes):
    x0, x1 = (torch.zeros(shape, dtype=torch.long) for shape in shapes)
    with pytest.raises(ValueError, match="must have the same shape"):
        unchecked(type(coupling).match_by_group)(coupling, x0, x1)


def test_a_group_needs_a_label_for_every_row():
    with pytest.raises(ValueError, match="one label per row \\(32\\)"):
        unchecked(ExactOT.match_by_group)(ExactOT(), rows(0), rows(1), group=torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("coupling", [ExactOT, SinkhornOT])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_table_with_a_bad_number_never_gives_pairs(coupling, bad):
    e = table()
    e[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        coupling(SquaredEmbedding()).pair(rows(0), rows(1), embedding=e)


@pytest.mark.parametrize("coupling", [ExactOT, SinkhornOT])
def test_half_precision_tables_whose_costs_exceed_half_precision_are_paired_in_float32(coupling):
    e = (200 * table()).half()
    pairs = coupling(SquaredEmbedding()).pair(rows(0), rows(1), generator(0), embedding=e)
    assert 65504 < pairs.cost < pairs.independent_cost


def test_a_cost_that_overflows_in_half_precision_is_refused():
    @dataclass(frozen=True)
    class Overflowing(Cost):
        def dissimilarity(self, a, b, embedding=None):
            return (a - b).abs().half() * 60000

    with pytest.raises(ValueError, match="NaN or infinite"):
        ExactOT(Overflowing()).pair(rows(0), rows(1))


TRANSPORTS = [
    ExactOT(SquaredEmbedding()),
    *(SinkhornOT(SquaredEmbedding(), 0.05, draw) for draw in (Rows(), Permutation())),
]


# the last bits of a part of a matrix are not those of the matrix of a part; a permutation is drawn from them
@pytest.mark.parametrize(
    ("coupling", "grouped"), [*((one, False) for one in TRANSPORTS), *((one, True) for one in TRANSPORTS[:2])], ids=repr
)
def test_the_matrix_of_the_cost_is_all_that_a_transport_needs(coupling, grouped):
    """Where it is computed, and of how many rows at once, changes no pair and no number."""
    x0, x1, e = rows(0, vocab=40), rows(1, vocab=40), table(40)
    group = torch.randint(3, (N,), generator=generator(6)) if grouped else None
    split = coupling.cost.cost_matrix(x0, x1, e)
    found = coupling.solve_by_group(split, generator(2), group)
    pairs = coupling.pair(x0, x1, generator(2), embedding=e, group=group)
    assert torch.equal(x0[found.order], pairs.x0)
    for name in ("cost", "independent_cost", "marginal_error", "information"):
        assert getattr(found, name) == pytest.approx(getattr(pairs, name), rel=1e-5, abs=1e-9)
    assert found.cost == pytest.approx(float(coupling.cost.paired(pairs.x0, x1, e).mean()), rel=1e-6)


@pytest.mark.parametrize("coupling", [ExactOT, SinkhornOT])
def test_a_coupling_by_a_name_is_refused(coupling):
    made = object.__new__(coupling)  # beneath the checks of types that the tests put around it
    object.__setattr__(made, "cost", "hamming")
    with pytest.raises(ValueError, match=r"cost must be a SequenceCost, e.g. Hamming\(\), got 'hamming'"):
        made.__post_init__()


def test_the_facts_of_a_coupling_name_its_cost():
    assert ExactOT(Hamming()).facts == {"coupling": "ExactOT", "cost": "Hamming"}
    assert Rectified("pairs").facts == {"coupling": "Rectified"}
