"""Networks with labels: each label has its own flow, and couplings stay within labels."""

from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch
from scipy.stats import chisquare

import hopflow as hf
from hopflow import exact
from hopflow.bounds.reversal import reversal_bound, reversal_certificate
from hopflow.couplings import Coupling
from hopflow.exact import Joint, Oracle, Perfect, Space
from hopflow.vocab import Vocab

LABELS, LENGTH = 3, 2
SOURCES = (hf.Mask(Vocab(3, 1)), hf.Uniform(Vocab(3)), hf.BagOfWords(Vocab(3), (0.6, 0.3, 0.1)), hf.Mixed(Vocab(3, 1)))
EVERY = torch.arange(9).repeat(LABELS)
"""All data sequences, once for each label, as indices."""
LABEL = torch.arange(LABELS).repeat_interleave(9)


def laws(seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    """A distribution over all data sequences for each label."""
    logits = torch.randn(LABELS, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (spread * logits).softmax(1)


@dataclass(frozen=True, eq=False)
class Conditional:
    """A network of one table for each label, and a further one for no label."""

    networks: tuple
    labels: int = LABELS

    def __call__(self, xt, t, labels):
        every = torch.stack([network(xt, t) for network in self.networks])
        return every[labels, torch.arange(len(xt))]


@cache
def perfect(source) -> tuple[hf.Flow, Conditional]:
    flow = hf.Flow(source)
    q = torch.cat([laws(), laws().mean(0, keepdim=True)])
    return flow, Conditional(tuple(Perfect(flow, one, LENGTH) for one in q))


@cache
def rough(source) -> tuple[hf.Flow, Conditional, tuple[Oracle, ...]]:
    """A network that is not perfect, with the oracle of each label."""
    flow, space = hf.Flow(source), Space(source.vocab, LENGTH)
    generator = torch.Generator().manual_seed(5)
    probs = torch.rand(LABELS + 1, len(space.states), LENGTH, 3, generator=generator, dtype=torch.float64) + 0.2
    tables = tuple(exact.Table(space, one / one.sum(-1, keepdim=True)) for one in probs)
    oracles = tuple(Oracle(flow, q, LENGTH, model=table) for q, table in zip(laws(), tables, strict=False))
    return flow, Conditional(tables), oracles


def of_label(network: Conditional, label: int):
    return lambda xt, t: network(xt, t, torch.full((len(xt),), label))


# the oracle


@pytest.mark.parametrize("label", range(LABELS))
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_a_perfect_network_has_the_conditional_law_hops_and_bounds_of_each_label(source, label):
    flow, network = perfect(source)
    q = laws()[label]
    oracle = Oracle(flow, q, LENGTH, model=of_label(network, label))
    assert oracle.law() == pytest.approx(q, abs=1e-8)
    hops = (q[:, None] * (1 - source.probs(oracle.space.data, torch.float64))).sum()
    assert Oracle(flow, q, LENGTH).jumps() == pytest.approx(float(hops), abs=1e-8)
    assert oracle.jumps() == pytest.approx(float(hops), abs=1e-8)
    assert exact.bound(oracle, eta=1) == pytest.approx(-q.log(), abs=1e-8)
    assert exact.bound(oracle) == pytest.approx(exact.bound(Oracle(flow, q, LENGTH)), abs=1e-8)
    if source.full:
        assert exact.kappa_bound(oracle) == pytest.approx(exact.kappa_bound(Oracle(flow, q, LENGTH)), abs=1e-8)


@cache
def joint_of(coupling: Coupling, grouped: bool) -> tuple[Joint, ...]:
    """The pairs (x0, x1) of each of two labels, over all OT batches of two rows of each label; L = 1, V = 2."""
    q = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    pi = torch.zeros(2, 2, 2, dtype=torch.float64)
    for rows in product(range(2), repeat=8):
        x0, x1 = torch.tensor(rows[:4])[:, None], torch.tensor(rows[4:])[:, None]
        chance = q[group, x1[:, 0]].prod() / 16
        pairs = coupling.pair(x0, x1, torch.Generator().manual_seed(1), group=group if grouped else None)
        for label, a, b in zip(group, pairs.x0[:, 0], pairs.x1[:, 0], strict=True):
            pi[label, a, b] += chance / 2
    return tuple(Joint.of(Space(Vocab(2), 1), one) for one in pi), q


def test_ot_within_labels_keeps_the_law_of_each_label_and_ot_across_labels_does_not():
    flow = hf.Flow(hf.Uniform(Vocab(2)), coupling=hf.ExactOT())
    apart = {}
    for grouped in (True, False):
        joints, q = joint_of(hf.ExactOT(), grouped)
        found = [Oracle(flow, one, 1, joint=joint).law() for one, joint in zip(q, joints, strict=True)]
        apart[grouped] = [float((law - one).abs().sum() / 2) for law, one in zip(found, q, strict=True)]
        gains = [float((joint.weight * (joint.x0 != joint.x1)[:, 0]).sum()) for joint in joints]
        assert max(gains) < 0.5  # both couplings save hops: independent pairs have 0.5
    assert max(apart[True]) < 1e-8
    # total variation between the samples of a label and its data, with a perfect network
    assert apart[False] == pytest.approx([0.0957, 0.0779], abs=1e-3)


# estimates


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_bounds_of_sequences_with_different_labels_agree_with_the_oracle_of_each_label(source):
    flow, network, oracles = rough(source)
    x1 = oracles[0].space.data[EVERY]
    how = {"labels": LABEL, "draws": 256, "seed": 2}
    bounds = [
        (hf.nll_bound(network, flow, x1, **how), exact.bound),
        (hf.nll_bound(network, flow, x1, eta=1, **how), lambda oracle: exact.bound(oracle, eta=1)),
        (hf.nll_bound(network, flow, x1, steps=4, **how), lambda oracle: exact.bound(oracle, steps=4)),
    ]
    if source.full:
        bounds.append((hf.kappa_bound(network, flow, x1, **how), exact.kappa_bound))
    for estimate, quantity in bounds:
        wanted = torch.cat([quantity(oracle) for oracle in oracles])
        assert abs(estimate.nats - float(wanted.mean())) < 4 * estimate.draw_stderr, estimate
        apart = torch.tensor(estimate.each) - wanted
        assert float(apart.square().mean().sqrt()) < 8 * estimate.draw_stderr * len(x1) ** 0.5  # of each sequence, too


@pytest.mark.parametrize("source", SOURCES[:2], ids=lambda source: type(source).__name__)
def test_samples_of_each_label_have_the_law_of_its_oracle(source):
    flow, network, oracles = rough(source)
    labels = torch.arange(12_000) % LABELS
    out = hf.generate(network, flow, n=len(labels), length=LENGTH, steps=3, labels=labels, seed=4)
    for label, oracle in enumerate(oracles):
        seen = (out.tokens[labels == label] * torch.tensor([3, 1])).sum(1).bincount(minlength=9)
        assert chisquare(seen, oracle.law(steps=3) * 4_000).pvalue > 1e-4


@pytest.mark.parametrize("source", SOURCES[:2], ids=lambda source: type(source).__name__)
def test_the_reversal_bound_uses_the_label_of_each_sequence(source):
    flow, network, oracles = rough(source)
    x1 = oracles[0].space.data[EVERY]
    found = reversal_bound(network, flow, x1, steps=3, paths=400, labels=LABEL, seed=1)
    wanted = torch.cat([oracle.nll(steps=3) for oracle in oracles])
    assert torch.tensor(found.each) == pytest.approx(wanted, abs=0.15)
    swapped = reversal_bound(network, flow, x1, steps=3, paths=400, labels=LABEL.flip(0), seed=1)
    assert float((torch.tensor(swapped.each) - wanted).abs().max()) > 0.3


def test_the_reversal_certificate_contains_the_exact_value_of_samples_with_labels():
    flow, network, oracles = rough(hf.Uniform(Vocab(3)))
    labels, how = torch.arange(96) % LABELS, {"n": 96, "length": LENGTH, "steps": 3, "seed": 3}
    upper, lower = reversal_certificate(network, flow, labels=labels, paths=64, **how)
    drawn = hf.generate(network, flow, labels=labels, **how)
    nll = torch.stack([oracle.nll(steps=3) for oracle in oracles])
    exactly = float(nll[labels, (drawn.tokens * torch.tensor([3, 1])).sum(1)].mean())
    assert lower.nats - 4 * lower.draw_stderr < exactly < upper.nats + 4 * upper.draw_stderr
    assert upper.nats - lower.nats < 0.05


def test_the_information_of_a_coupled_bound_is_that_of_the_groups():
    flow, network, oracles = rough(hf.Uniform(Vocab(3)))
    x1, how = oracles[0].space.data[EVERY], {"labels": LABEL, "minibatch": 27, "draws": 32, "seed": 1}
    apart = hf.coupled_bound(network, flow, x1, hf.ExactOT(), **how).nats
    apart -= hf.coupled_number(network, flow, x1, hf.ExactOT(), **how).nats
    assert apart == pytest.approx(torch.tensor(9.0).log().item(), rel=1e-6)
