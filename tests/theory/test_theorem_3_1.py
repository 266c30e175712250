"""Theorem 3.1 [theorem1]: the dynamic cost of a convex flow is the Kantorovich cost of its coupling."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.costs import Cost, Embedding, Hamming, SquaredEmbedding, TokenMatrix
from hopflow.couplings import Coupling, ExactOT, Independent, SinkhornOT
from hopflow.exact import Joint, Oracle, Space
from hopflow.flow import Flow
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.transport.plan_sampling import Permutation
from hopflow.transport.sinkhorn import sinkhorn


def dissimilarity(size: int, seed: int) -> torch.Tensor:
    """Random costs; not symmetric, because the theorem does not need it."""
    s = torch.rand(size, size, generator=toys.generator(seed), dtype=torch.float64)
    return s.fill_diagonal_(0.0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [Linear(), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_dynamic_cost_equals_kantorovich_cost_for_random_couplings_and_costs(name, schedule, seed):
    space = Space(toys.source(name).vocab, 2)
    law = toys.oracle(name).source_law
    flow = toys.oracle(name, joint=toys.random_joint(space, seed, law), schedule=schedule)
    s = dissimilarity(space.vocab.size, seed + 10)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_dynamic_and_kantorovich_cost_are_equal_for_independent_pairs_of_three_positions(name):
    flow = toys.oracle(name, data=2, length=3)
    s = dissimilarity(flow.flow.vocab.size, 5)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_dynamic_and_kantorovich_cost_are_equal_on_position_specific_schedules(name):
    schedule = Positional((Linear(), Cosine()))
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 3, toys.oracle(name).source_law)
    flow = toys.oracle(name, joint=joint, schedule=schedule)
    s = dissimilarity(space.vocab.size, 4)
    assert exact.dynamic_cost(flow, s) == pytest.approx(exact.kantorovich_cost(flow, s), abs=1e-8)


def test_independent_pairs_and_their_product_coupling_are_the_same_flow():
    plain = toys.oracle("bag_of_words")
    product = toys.random_joint(plain.space, 0)
    product = type(product).of(plain.space, plain.source_law[:, None] * plain.q[None, :])
    coupled = Oracle(Flow(plain.flow.source), plain.q, 2, None, product)
    moment = plain.moment(torch.tensor([-3.0, 0.2, 4.0], dtype=torch.float64))
    for a, b in zip(plain.predictive(moment), coupled.predictive(moment), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


ONE_WAY = TokenMatrix(((0.0, 1.0, 3.0, 2.0), (2.0, 0.0, 1.0, 1.0), (1.0, 2.0, 0.0, 1.0), (3.0, 0.5, 1.0, 0.0)))
COSTS = [Hamming(), SquaredEmbedding(), Embedding(), ONE_WAY]
COUPLINGS = [
    Independent,
    ExactOT,
    lambda cost: SinkhornOT(cost, eps=0.2),
    lambda cost: SinkhornOT(cost, 0.2, Permutation()),
]
TABLE = torch.randn(4, 3, generator=toys.generator(6), dtype=torch.float64)


def mean_plan(coupling: Coupling, x0: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    """Which source row each data row is given, on average over what the coupling draws."""
    if isinstance(coupling, SinkhornOT):
        return sinkhorn(coupling.cost.matrix(x0, x1, TABLE).double(), coupling.eps, tol=coupling.tol).plan()
    order = coupling.match(x0, x1, embedding=TABLE).order
    return torch.eye(len(x0), dtype=torch.float64)[order]


@pytest.mark.parametrize("name", ["uniform", "multimask"])
@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)
@pytest.mark.parametrize("make", COUPLINGS, ids=["Independent", "ExactOT", "Rows", "Permutation"])
def test_dynamic_and_kantorovich_cost_are_equal_for_each_coupling_and_are_what_its_pairs_report(name, cost, make):
    """All batches of three source rows for three data rows: the joint law of the pairs, then its flow."""
    coupling, source, x1 = make(cost), toys.source(name, data=2), torch.tensor([[0, 0], [0, 1], [1, 1]])
    chosen, _ = exact.chosen_rows(source, x1, lambda x0, x1: mean_plan(coupling, x0, x1))
    space = Space(source.vocab, 2)
    pairs = [Joint(space.states, row.expand(len(space.states), 2), chosen[j]) for j, row in enumerate(x1)]
    joint = Joint(*(torch.cat([getattr(p, field) for p in pairs]) for field in ("x0", "x1")), chosen.flatten() / 3)
    flow = toys.oracle(name, data=2, joint=joint)
    s = table_of(cost, space.vocab.size)
    paid = exact.kantorovich_cost(flow, s)
    assert exact.dynamic_cost(flow, s) == pytest.approx(paid, abs=1e-8)
    if not isinstance(coupling, SinkhornOT):  # whose pairs are drawn; tests/theory/test_expected_hops.py has their mean
        assert paid == pytest.approx(reported(coupling, source, x1), abs=1e-6)
    independent = exact.kantorovich_cost(toys.oracle(name, data=2, joint=product(flow, joint)), s)
    if make is Independent or (name == "multimask" and cost == Hamming()):  # a mask differs from every token
        assert paid == pytest.approx(independent)
    else:
        assert paid < independent


def table_of(cost: Cost, size: int) -> torch.Tensor:
    a = torch.arange(size)[:, None].expand(size, size)
    return cost.dissimilarity(a, a.T, TABLE).double()


def product(flow: Oracle, joint: Joint) -> Joint:
    return Joint.of(flow.space, flow.source_law[:, None] * joint.matrix(flow.space).sum(0)[None])


def reported(coupling: Coupling, source, x1: torch.Tensor) -> float:
    """The mean of Pairs.cost over all batches of source rows."""
    space = Space(source.vocab, 2)
    law = space.law(source.token_probs())
    support = law.nonzero()[:, 0]
    total = 0.0
    for ids in torch.cartesian_prod(support, support, support):
        total += float(law[ids].prod()) * coupling.pair(space.states[ids], x1, embedding=TABLE).cost
    return total
