"""The finite-step kernel (F_N) keeps p_{t|1}, and (B_N) is one kernel's divergence.  theory.md §3, §5"""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.predictions import Plain
from hopflow.sampling.generate import generate
from hopflow.schedules import Cosine, Linear, Polynomial
from hopflow.velocities import kernel, step_sizes


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [Linear(), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 3.0])
def test_towards_x1_the_path_law_is_kept_at_every_step(name, schedule, steps, eta):
    source = toys.source(name)
    p0, v = source.token_probs(), source.vocab.size
    eye, xt = torch.eye(v, dtype=torch.float64), torch.arange(v)
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    rest = schedule.rest(t)
    strength = torch.full((v,), eta, dtype=torch.float64)
    for x1 in range(source.vocab.data):
        law = p0
        for n in range(steps):
            now = rest[n].expand(v)
            r, s = step_sizes(now, now - rest[n + 1], strength)
            law = law @ kernel(eye[x1].expand(v, v), xt, p0, 1 - now, now, r, s)
            torch.testing.assert_close(law, (1 - rest[n + 1]) * eye[x1] + rest[n + 1] * p0, atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("eta", [0.0, 1.0, 3.0])
def test_sequences_drawn_towards_x1_follow_the_path_at_every_step(name, steps, eta):
    """A network that knows x1, drawn by events with thinning: xt has the law of the path at each t."""
    flow = toys.Flow(toys.source(name), prediction=Plain())
    x1, v, n = 1, flow.vocab.size, 3_000

    def knows(xt, t):
        logits = torch.full((*xt.shape, flow.vocab.data), -torch.inf)
        logits[..., x1] = 0
        return logits

    run = generate(knows, flow, n=n, length=1, steps=steps, eta=eta, trajectory=True, seed=3)
    for step in range(0, steps + 1, max(1, steps // 7)):
        t = step / steps
        seen = torch.bincount(run.at(t).flatten(), minlength=v).double() / n
        law = (1 - t) * flow.source.token_probs()
        law[x1] += t
        assert ((seen - law).abs() <= 5 * (law * (1 - law) / n).sqrt() + 1e-12).all(), t


def test_the_split_into_two_kernels_would_give_a_looser_bound():
    """One redraw kernel and one corrector kernel in turn: the same path law, but a larger sum of divergences.

    theory.md (F_N)
    """
    flow = toys.oracle("uniform", network=None, seed=2)
    steps = 32
    together = flow.mean(exact.bound(flow, eta=1.0, steps=steps))
    split = torch.zeros(len(flow.space.data), dtype=torch.float64)
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    for n in range(steps):
        now, after = flow.at(float(t[n])), flow.at(float(t[n + 1]))
        zero = torch.zeros_like(now.rest)
        gain = now.rest - after.rest
        split += _divergence(flow, now, lambda p, m=now, g=gain, z=zero: flow.kernels(p, m, g, z))
        if n + 1 < steps:
            _, s = step_sizes(now.rest, gain, torch.ones_like(now.rest))
            split += _divergence(flow, after, lambda p, m=after, s=s: _corrector(flow, p, m, s))
    assert flow.mean(split) > together + 0.1


def _divergence(flow, moment, rates):
    terms = exact.bounds._per_target(flow, rates, flow.probs(moment))
    return exact.bounds._mean_given_x1(flow, moment.rest, terms)[0]


def _corrector(flow, p, moment, s):
    like = p.shape[:-1]
    k, rest, s = (value[:, None].expand(like) for value in (moment.k, moment.rest, s))
    return kernel(p, flow.space.states.expand(like), flow.p0, k, rest, torch.zeros_like(s), s)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_n_step_law_of_a_perfect_network_is_off_by_one_over_n(name):
    flow = toys.oracle(name, network=None, data=2)
    for eta in (0.0, 1.0):
        coarse, fine = (float((flow.law(eta=eta, steps=n) - flow.q).abs().max()) for n in (16, 64))
        assert fine < 0.35 * coarse or coarse < 1e-9
