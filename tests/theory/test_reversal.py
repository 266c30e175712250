"""The reversal bound, theory.md (B_R): with the library's own factors, E w over all paths is the exact probability."""

import math
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
import toys
from cases import SOURCES as ALL_SOURCES
from cases import Ramp, name
from torch import Tensor

from hopflow import exact
from hopflow.bounds.reversal import is_consistent, reversal_bound
from hopflow.bounds.reversal_paths import ReversedPaths
from hopflow.couplings import ExactOT
from hopflow.exact import Joint, Oracle, Perfect, Reversal, Space, predictive_x0
from hopflow.flow import Flow
from hopflow.predictions import Carry, Evidence, Plain, Prediction
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.sources import BagOfWords, Mask, MultiMask, Uniform
from hopflow.velocities import Eta
from hopflow.vocab import Vocab

SOURCES = {
    "one mask": (Mask(Vocab(3, 1)), 2),
    "two masks": (MultiMask(Vocab(2, 2)), 2),
    "five masks": (MultiMask(Vocab(3, 5)), 1),
    "uniform": (Uniform(Vocab(3)), 2),
    "frequencies": (BagOfWords(Vocab(2), (0.7, 0.3)), 3),
    "a token that is not drawn": (BagOfWords(Vocab(3), (0.6, 0.4, 0.0)), 2),
    "data and masks": (Ramp(Vocab(2, 1)), 2),
}
SCHEDULES = (Linear(), Polynomial(2.0), Cosine(), None)
NETWORKS = ("perfect", "perturbed", "rough")
STEPS = (1, 3, 17, 1, 3, 3, 1, 3)
MANY = 100
"""Steps of every twentieth flow."""
OTHERS: tuple[tuple[Prediction, Eta, float], ...] = (
    (Evidence(), 0.0, 1.0),
    (Evidence(), 0.0, 1.0),
    (Evidence(), 0.6, 1.0),
    (Plain(), 0.0, 1.0),
    (Evidence(), 2.5, 1.0),
    (Carry(), 0.0, 1.0),
    (Evidence(), lambda t: 1.5 * t, 0.5),
    (Plain(), 1.0, 1.0),
    (Evidence(), 0.0, 0.0),
)


@dataclass(frozen=True, eq=False)
class Case:
    """A flow with a network and, for coupled pairs, a network for x0."""

    oracle: Oracle
    steps: int
    eta: Eta = 0.0
    gamma: float = 1.0
    x0: object = None

    @property
    def walk(self) -> ReversedPaths:
        model, flow = self.oracle.model, self.oracle.flow
        return ReversedPaths(model, flow, self.steps, self.eta, gamma=self.gamma, x0=self.x0 and self.x0.network)

    @property
    def reversal(self) -> Reversal:
        return Reversal(self.oracle, self.steps, self.eta, self.gamma, self.x0 and self.x0.law)


@dataclass(frozen=True, eq=False)
class ExactX0:
    """p_{0|t} of an oracle's pairs, for the oracle and as a network."""

    oracle: Oracle

    @cache  # noqa: B019
    def at(self, t: float) -> Tensor:
        return predictive_x0(self.oracle, self.oracle.at(t))

    def law(self, moment) -> Tensor:
        return self.at(float(moment.t))

    def network(self, xt: Tensor, t: Tensor) -> Tensor:
        return self.at(float(on_grid(t)[0])).log()[0][self.oracle.space.ids(xt)]


TIMES = torch.tensor(sorted({n / steps for steps in (*STEPS, MANY) for n in range(steps + 1)}), dtype=torch.float64)


def on_grid(t: Tensor) -> Tensor:
    """The n/N in float64 that a clock in float32 stands for."""
    return TIMES[(t.double()[:, None] - TIMES).abs().argmin(1)]


def noisy(model, space: Space, size: float, seed: int):
    """The logits of a network plus fixed noise."""
    noise = toys.Clocked.random(space, seed, size)
    return lambda xt, t: model(xt, t) + noise(xt, on_grid(t))


def steps_of(number: int) -> int:
    return MANY if number % 20 == 9 else STEPS[number % len(STEPS)]


def independent(number: int) -> Case:
    name = list(SOURCES)[number % len(SOURCES)]
    source, length = SOURCES[name]
    schedule = SCHEDULES[number % 4] or Positional((Linear(), Cosine(), Polynomial(2.0))[:length])
    prediction, eta, gamma = OTHERS[number % len(OTHERS)]
    flow = Flow(source, schedule, prediction)
    space = Space(source.vocab, length)
    q = toys.dirichlet(source.vocab.data**length, seed=number, sharpness=1.5)
    kind = NETWORKS[number % 3]
    perfect, rough = Perfect(flow, q, length), toys.Clocked.random(space, number, 1.5)

    def model(xt, t):
        return perfect(xt, on_grid(t))

    if kind == "perturbed":
        model = noisy(model, space, 0.3, number)
    elif kind == "rough":
        model = lambda xt, t: rough(xt, on_grid(t))  # noqa: E731
    return Case(Oracle(flow, q, length, model), steps_of(number), eta, gamma)


def coupled(number: int) -> Case:
    """Pairs of a random coupling: the true p_{1|t}, with noise in two of three, and the true p_{0|t}."""
    source = (Uniform(Vocab(2)), BagOfWords(Vocab(3), (0.5, 0.3, 0.2)), MultiMask(Vocab(2, 2)))[number % 3]
    length = 1 if source.vocab.size == 4 else 2
    space = Space(source.vocab, length)
    schedule = SCHEDULES[number % 4] or Positional((Cosine(), Linear())[:length])
    flow = Flow(source, schedule, Carry() if source.disjoint else Plain())
    joint = toys.random_joint(space, number, space.law(source.token_probs()))
    true = Oracle(flow, joint.matrix(space).sum(0), length, None, joint)
    laws = cache(lambda t: true.predictive(true.at(t))[0][0].log().clamp(min=-60))

    def model(xt, t):
        return laws(float(on_grid(t)[0]))[space.ids(xt)]

    network = model if number % 3 == 0 else noisy(model, space, 0.5 * (number % 3), number)
    return Case(replace(true, model=network), steps_of(number), x0=ExactX0(true))


CASES = [*map(independent, range(63)), *map(coupled, range(12))]


def factors(case: Case, n: int) -> tuple[Tensor, Tensor]:
    """The library's log K_θ(x_{n+1}|x_n) and log b(x_n|x_{n+1}), a row per x_{n+1} and a column per x_n."""
    walk, states = case.walk, case.oracle.space.states
    new, xt = states.repeat_interleave(len(states), 0), states.repeat(len(states), 1)
    forth = walk.forward(n, xt, new, walk.odds(n, xt, new)).sum(1)
    odds = walk.odds(n + 1, new, new) if n + 1 < case.steps else None
    back = walk.backward(n, new, odds).log_prob(xt).sum(1)
    return forth.view(len(states), -1), back.view(len(states), -1)


@pytest.mark.parametrize("part", range(15))
def test_the_mean_weight_over_all_paths_is_the_samplers_probability(part):
    """On 75 flows, to 1e-10; where the reversal cannot propose some paths it is less, and the oracle says by how much.

    The bound with one path is above the exact value on each of them.
    """
    for case in CASES[part::15]:
        flow, data = case.oracle, case.oracle.space.data
        mean = law = torch.eye(len(flow.space.states), dtype=torch.float64)[flow.space.ids(data)]
        price = torch.zeros(len(data), dtype=torch.float64)
        for n in range(case.steps - 1, -1, -1):
            forth, back = factors(case, n)
            reached = law.sum(0) > 0
            assert float((back.exp().sum(1) - 1)[reached].abs().max()) < 1e-11
            log_w = torch.where(back > -math.inf, forth - back, 0.0)
            chance = back.exp()
            mean = mean @ (chance * log_w.exp())
            per_state = torch.where(chance > 0, chance * log_w, 0.0).sum(1)
            price = price - torch.where(law > 0, law * per_state, 0.0).sum(1)
            law = law @ chance
        mean = mean @ flow.source_law
        price = price - torch.where(law > 0, law * flow.source_law.log(), 0.0).sum(1)
        exact_law = flow.law(case.eta, case.steps)
        if is_consistent(flow.flow):
            torch.testing.assert_close(mean, exact_law, atol=1e-10, rtol=0)
        else:
            torch.testing.assert_close(mean, case.reversal.mean_weight(), atol=1e-10, rtol=0)
            assert bool((mean <= exact_law + 1e-10).all())
        torch.testing.assert_close(price, case.reversal.bound(), atol=1e-8, rtol=1e-10)
        assert bool((price >= -exact_law.log() - 1e-10).all())


@pytest.mark.parametrize("number", [0, 1, 3, 4, 12, 13, 27, 46, 64, 65])
def test_whole_paths_weigh_as_the_product_of_their_steps(number):
    """Also where calls are saved, as for masks, whose weights are computed in another order."""
    case = replace(CASES[number], steps=3)
    space = case.oracle.space
    few = torch.randint(len(space.states), (4000, 4), generator=toys.generator(5))
    ids = torch.cat([few[:, :3], space.ids(space.data)[few[:, 3:] % len(space.data)]], 1)  # paths end in data
    by_steps = case.oracle.source_law.log()[ids[:, 0]]
    for n in range(3):
        forth, back = factors(case, n)
        by_steps = by_steps + (forth - back)[ids[:, n + 1], ids[:, n]]
    weighed = case.walk.log_weights_of([space.states[column] for column in ids.unbind(1)])
    possible = torch.isfinite(by_steps)
    assert int(possible.sum()) > 3
    torch.testing.assert_close(weighed[possible], by_steps[possible], atol=1e-9, rtol=0)


@pytest.mark.parametrize("source", ALL_SOURCES, ids=name)
@pytest.mark.parametrize("eta", [0.0, 0.5, 3.0])
def test_without_context_every_weight_is_the_exact_probability(source, eta):
    """The reversed kernel is then Bayes' rule for every step and η; no enumeration is needed."""
    logits = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
    x1 = torch.randint(3, (6, 16), generator=toys.generator(3))
    flow = Flow(source, Cosine())
    found = reversal_bound(lambda xt, t: logits.expand(*xt.shape, 3), flow, x1, steps=12, paths=3, eta=eta)
    target = logits.log_softmax(0)[x1].sum(1, keepdim=True).expand(-1, 3)
    torch.testing.assert_close(found.log_weights, target, atol=1e-12, rtol=0)


def copies() -> Oracle:
    """Three sequences of four equal tokens from uniform noise, with the perfect network."""
    flow, space = Flow(Uniform(Vocab(3))), Space(Vocab(3), 4)
    q = (space.data == space.data[:, :1]).all(1).double() / 3
    return Oracle(flow, q, 4, Perfect(flow, q, 4))


def test_for_a_perfect_network_one_path_is_close_to_the_exact_value():
    """Strongly dependent data, 128 steps: bn is nearly a nat too high, the reversal 0.02."""
    flow = copies()
    nll = flow.nll(steps=128)
    assert flow.mean(exact.bound(flow, steps=128) - nll) > 0.7
    assert 0 < flow.mean(Reversal(flow, 128).bound() - nll) < 0.02


def test_for_a_perfect_coupled_network_one_path_is_close_to_the_exact_value():
    space = Space(Vocab(3), 2)
    joint = toys.random_joint(space, 8, torch.full((9,), 1 / 9, dtype=torch.float64))
    flow = toys.oracle("uniform", length=2, network=None, joint=joint)
    excess = Reversal(flow, 128, x0=partial(predictive_x0, flow)).bound() - flow.nll(steps=128)
    assert 0 < flow.mean(excess) < 0.02


def test_pairs_of_exact_transport_need_the_posterior_of_x0():
    """OT batches of 16, counted; perfect networks for x1 and x0. With x0 redrawn from the source the bound is loose."""
    source, length, generator = Uniform(Vocab(2)), 3, toys.generator(1)
    space, q = Space(source.vocab, length), toys.dirichlet(8, seed=2)
    counts = torch.full((8, 8), 1e-3, dtype=torch.float64)
    for _ in range(400):
        x1 = space.data[torch.multinomial(q, 16, True, generator=generator)]
        pairs = ExactOT().pair(torch.randint(2, x1.shape, generator=generator), x1)
        counts.index_put_((space.ids(pairs.x0), space.ids(pairs.x1)), torch.ones(16).double(), accumulate=True)
    joint = Joint.of(space, counts / counts.sum())
    true = Oracle(
        Flow(source, prediction=Plain(), coupling=ExactOT()), counts.sum(0) / counts.sum(), length, None, joint
    )
    laws = cache(lambda t: true.predictive(true.at(t))[0][0].log())
    flow = replace(true, model=lambda xt, t: laws(round(float(t[0]) * 32) / 32)[space.ids(xt)])
    nll, posterior = flow.nll(steps=32), ExactX0(true)
    assert flow.mean(Reversal(flow, 32).bound() - nll) > 0.2
    one = flow.mean(Reversal(flow, 32, x0=posterior.law).bound() - nll)
    assert 0 < one < 0.06
    ids = torch.multinomial(flow.q, 100, True, generator=generator)
    x0 = lambda xt, t: posterior.at(round(float(t[0]) * 32) / 32).log()[0][space.ids(xt)]  # noqa: E731
    found = reversal_bound(flow.model, flow.flow, space.data[ids], steps=32, paths=8, x0=x0)
    log_mean = found.log_weights.logsumexp(1) - math.log(8) + nll[ids]
    eight = log_mean.exp() - 1 - log_mean  # its mean is that of -log_mean, because E w is exact
    assert float(eight.mean()) < 0.01


@pytest.mark.slow
def test_drawn_paths_of_a_perfect_network_are_as_close():
    flow = copies()
    x1 = flow.space.data[flow.q > 0].repeat(40, 1)
    found = reversal_bound(flow.model, flow.flow, x1, steps=128, paths=2)
    target = float(Reversal(flow, 128).bound()[flow.q > 0].mean())
    assert abs(found.with_paths(1).nats - target) < 4 * found.with_paths(1).draw_stderr
