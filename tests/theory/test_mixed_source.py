"""Mixed: masks and uniform data tokens in one source.  theory.md §3, §5, §7"""

import math

import pytest
import torch
import toys

import hopflow as hf
from hopflow import exact
from hopflow.exact import Oracle, Perfect
from hopflow.flow import Flow
from hopflow.predictions import Carry, Plain
from hopflow.schedules import Cosine, Linear
from hopflow.sources import Mixed
from hopflow.vocab import Vocab

SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0)


def flow_with(uniform: float, masks: int = 1, **parts: object) -> Flow:
    return Flow(Mixed(Vocab(3, masks), uniform), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
@pytest.mark.parametrize("uniform", SHARES)
def test_at_every_share_b1_of_a_perfect_network_is_the_exact_nll(uniform, schedule):
    q = toys.dirichlet(9, seed=4)
    oracle = Oracle(flow_with(uniform, schedule=schedule), q, 2)
    torch.testing.assert_close(exact.bound(oracle, eta=1.0), -q.log(), atol=1e-7, rtol=0)
    assert oracle.mean(exact.bound(oracle, eta=1.0)) == pytest.approx(oracle.entropy, abs=1e-7)


@pytest.mark.parametrize("uniform", SHARES)
def test_at_every_share_the_estimated_b1_of_a_perfect_network_is_the_entropy(uniform):
    q, flow = toys.dirichlet(9, seed=4), flow_with(uniform, masks=2)
    space = exact.Space(flow.vocab, 2)
    x1 = space.data.repeat(8, 1)
    bound = hf.nll_bound(Perfect(flow, q, 2), flow, x1, eta=1, draws=32, seed=1)
    target = float(-q.log().mean())
    assert abs(bound.nats - target) < 4 * bound.stderr + 1e-6
    assert bound.draw_stderr < 0.1


@pytest.mark.parametrize("uniform", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("steps", [1, 6])
def test_bn_is_estimated_at_every_share(uniform, steps):
    oracle = Oracle(flow_with(uniform), toys.dirichlet(9, seed=4), 2, toys.Clocked.random(_space(1), 3))
    for eta in (0.0, 0.5):
        exactly = exact.bound(oracle, eta=eta, steps=steps)
        x1 = oracle.space.data.repeat(8, 1)
        bound = hf.nll_bound(oracle.model, oracle.flow, x1, eta=eta, steps=steps, draws=32, seed=2)
        assert abs(bound.nats - float(exactly.mean())) < 4 * bound.draw_stderr + 1e-6
        assert float((exactly - oracle.nll(eta=eta, steps=steps)).min()) > -1e-9


@pytest.mark.parametrize("uniform", [0.001, 0.1, 1.0])
def test_the_reversal_bound_of_a_perfect_network_is_near_the_exact_value(uniform):
    q, flow = toys.dirichlet(9, seed=4), flow_with(uniform)
    oracle = Oracle(flow, q, 2)
    x1 = oracle.space.data
    bound = hf.reversal_bound(Perfect(flow, q, 2), flow, x1, steps=16, paths=64, seed=3)
    exactly = float(oracle.nll(steps=16).mean())
    assert abs(bound.nats - exactly) < 4 * bound.draw_stderr + 0.01  # -log of a mean of 64 weights is above
    assert bound.draw_stderr < 0.05


@pytest.mark.parametrize("uniform", [0.1, 1.0])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_samples_have_the_law_of_the_oracle_and_contain_no_mask(uniform, eta):
    oracle = Oracle(flow_with(uniform), toys.dirichlet(9, seed=4), 2, toys.Clocked.random(_space(1), 3))
    n = 4000
    out = hf.generate(oracle.model, oracle.flow, n=n, length=2, steps=5, eta=eta, seed=5)
    data = exact.Space(Vocab(3), 2)
    seen = torch.bincount(data.ids(out.tokens), minlength=9).double() / n
    law = oracle.law(eta=eta, steps=5)
    assert ((seen - law).abs() <= 4 * (law * (1 - law) / n).sqrt()).all()
    redraws = out.redraws.sum(1).double().mean()
    assert float(redraws) > 2  # a source token may look like data, so that positions are redrawn more than once


def test_infill_keeps_a_prompt_and_fills_holes_with_data_tokens():
    oracle = Oracle(flow_with(0.1), toys.dirichlet(9, seed=4), 2)
    out = hf.infill(Perfect(oracle.flow, oracle.q, 2), oracle.flow, torch.tensor([[1, -1], [-1, 2]]), steps=8)
    assert out.tokens[0, 0] == 1
    assert out.tokens[1, 1] == 2
    assert int(out.tokens.max()) < 3


def test_at_share_0_it_is_a_mask_and_at_share_1_uniform():
    vocab = Vocab(3, 2)
    assert torch.equal(Mixed(vocab, 0.0).token_probs(), hf.MultiMask(vocab).token_probs())
    assert torch.equal(Mixed(vocab, 1.0).token_probs(), hf.Uniform(vocab).token_probs())
    assert Mixed(vocab, 0.0).disjoint
    assert not Mixed(vocab, 1e-9).disjoint
    assert not Mixed(vocab, 0.5).full
    assert Mixed(vocab, 1.0).full


@pytest.mark.parametrize("prediction", [Plain(), Carry()], ids=str)
def test_without_evidence_the_continuous_bound_is_refused(prediction):
    flow = flow_with(0.1, prediction=prediction)
    with pytest.raises(ValueError, match=r"infinite with .* and Mixed"):
        hf.nll_bound(lambda xt, t: torch.zeros(*xt.shape, 3), flow, torch.zeros(1, 2, dtype=torch.long))


def test_bk_is_refused_with_what_to_use_instead():
    with pytest.raises(ValueError, match=r"Mixed does not\. .*for Mixed, reversal_bound"):
        hf.kappa_bound(lambda xt, t: torch.zeros(*xt.shape, 3), flow_with(0.1), torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("uniform", [-0.1, 1.5, math.nan, math.inf])
def test_a_share_outside_0_and_1_is_refused(uniform):
    with pytest.raises(ValueError, match=r"uniform, .* must lie in \[0, 1\], got"):
        Mixed(Vocab(3, 1), uniform)


def test_a_vocabulary_without_masks_is_refused():
    with pytest.raises(ValueError, match=r"Mixed needs a mask token: pass Vocab\(data=3, masks=1\)"):
        Mixed(Vocab(3))


def _space(masks: int) -> exact.Space:
    return exact.Space(Vocab(3, masks), 2)
