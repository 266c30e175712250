"""Bounds under a coupling need its information: KL(π(·|x1) ‖ p0) ≤ E KL(T_j ‖ uniform) ≤ log n.  theory.md §4"""

import math

import pytest
import torch
import toys

from hopflow import exact
from hopflow.costs import Hamming
from hopflow.couplings import ExactOT, Independent, SinkhornOT
from hopflow.exact import Joint, Oracle, Space
from hopflow.flow import Flow
from hopflow.sources import BagOfWords, MultiMask, Uniform
from hopflow.transport.assignment import assignment
from hopflow.transport.plan_sampling import Permutation, rounded
from hopflow.transport.sinkhorn import sinkhorn
from hopflow.vocab import Vocab

SOURCES = [Uniform(Vocab(2)), BagOfWords(Vocab(2), (0.8, 0.2)), MultiMask(Vocab(2, 2))]


def hard(x0, x1):
    return torch.eye(len(x0), dtype=torch.float64)[assignment(Hamming().matrix(x0, x1))]


def entropic(x0, x1):
    return sinkhorn(Hamming().matrix(x0, x1).double(), 0.3).plan()


def permuted(x0, x1):
    """The law of each data row's pick by Permutation: that of the rounded plan."""
    return torch.from_numpy(rounded(entropic(x0, x1), 12) / 2.0**12)


def soft(x0, x1):
    return (-Hamming().matrix(x0, x1).double() / 0.7).softmax(1)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("plan", [hard, soft, entropic, permuted])
@pytest.mark.parametrize("rows", [[[0, 1], [1, 1]], [[0, 0], [0, 1], [1, 0]]], ids=["n=2", "n=3"])
def test_the_divergence_of_the_chosen_row_is_at_most_the_information_at_most_log_n(source, plan, rows):
    x1 = torch.tensor(rows)
    chosen, information = exact.chosen_rows(source, x1, plan)
    law = Space(source.vocab, 2).law(source.token_probs())
    torch.testing.assert_close(chosen.sum(1), torch.ones(len(x1), dtype=torch.float64))
    kl = torch.where(chosen > 0, chosen * (chosen / law).log(), 0.0).sum(1)
    assert bool((kl <= information + 1e-12).all())
    assert bool((information <= math.log(len(x1)) + 1e-12).all())
    if plan is hard:
        torch.testing.assert_close(information, torch.full_like(information, math.log(len(x1))))
    if not source.disjoint:
        assert float(kl.max()) > 1e-3  # the coupling does tell something


def test_the_papers_number_is_no_bound_under_a_coupling():
    """V = 2, L = 1, identity coupling, perfect network: 0 instead of log 2.  theory.md §4"""
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    identity = Joint(torch.tensor([[0], [1]]), torch.tensor([[0], [1]]), half)
    flow = Oracle(Flow(Uniform(Vocab(2))), half, 1, None, identity)
    assert exact.coupled(flow) == pytest.approx(0.0, abs=1e-12)
    assert exact.mutual_information(identity, flow.space) == pytest.approx(math.log(2))
    assert flow.cross_entropy() == pytest.approx(math.log(2), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_with_the_mutual_information_it_is_a_bound_again(name, seed):
    space = Space(toys.source(name, seed=seed).vocab, 2)
    law = toys.oracle(name, seed=seed).source_law
    joint = toys.random_joint(space, seed, law)
    flow = toys.oracle(name, seed=seed, joint=joint)
    assert exact.coupled(flow) + exact.mutual_information(joint, space) >= flow.cross_entropy() - 1e-8


@pytest.mark.parametrize("name", toys.SOURCES)
def test_independent_pairs_have_no_information_and_the_coupled_number_is_b0(name):
    flow = toys.oracle(name)
    product = Joint.of(flow.space, flow.source_law[:, None] * flow.q[None, :])
    assert exact.mutual_information(product, flow.space) == pytest.approx(0.0, abs=1e-12)
    coupled = toys.oracle(name, joint=product)
    assert exact.coupled(coupled) == pytest.approx(flow.mean(exact.bound(flow)), abs=1e-9)


def test_a_permutation_reports_log_n():
    x = torch.randint(0, 2, (6, 3), generator=toys.generator(0))
    assert ExactOT().pair(x, x.flip(0)).information == pytest.approx(math.log(6))


def test_what_a_coupling_reports_is_the_information_of_its_plan():
    x0, x1 = torch.randint(0, 2, (2, 6, 3), generator=toys.generator(0))
    t = sinkhorn(Hamming().matrix(x0, x1).double(), 0.3).plan()
    by_hand = sum(float(p) * math.log(6 * float(p)) for p in t.flatten()) / 6
    assert SinkhornOT(eps=0.3).pair(x0, x1).information == pytest.approx(by_hand, abs=1e-4)
    assert SinkhornOT(eps=0.3, draw=Permutation()).pair(x0, x1).information == pytest.approx(by_hand, abs=1e-3)
    assert Independent().pair(x0, x1).information == 0.0
