"""reversal_bound and its certificate: draws, errors, saved calls and refusals, against the oracle."""

import math

import pytest
import torch
import toys
from cases import Ramp

import hopflow as hf
from hopflow.bounds.reversal import ReversalEstimate, reversal_bound, reversal_certificate
from hopflow.bounds.reversal_paths import ReversedPaths
from hopflow.bounds.reversal_steps import log_kernel
from hopflow.bounds.x0_posterior import x0_shift
from hopflow.exact import Reversal
from hopflow.flow import Flow
from hopflow.predictions import Carry, Plain
from hopflow.schedules import Cosine, Linear, Positional
from hopflow.vocab import Vocab


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("how", [{}, {"eta": 0.7}, {"gamma": 0.4}], ids=str)
def test_drawn_weights_have_the_mean_that_the_oracle_computes(name, how):
    flow = toys.oracle(name, data=2, schedule=Positional((Linear(), Cosine())))
    x1 = flow.space.data.repeat(400, 1)
    found = reversal_bound(flow.model, flow.flow, x1, steps=3, paths=4, seed=1, **how)
    reversal = Reversal(flow, 3, **how)
    one, two = found.with_paths(1), found.with_paths(2)
    assert abs(one.nats - float(reversal.bound().mean())) < 4 * one.draw_stderr
    exact = sum(reversal.bound_of_two(x) for x in flow.space.data) / len(flow.space.data)
    assert abs(two.nats - exact) < 4 * two.draw_stderr
    mean = found.log_weights.exp().mean(1).view(400, -1)
    law = flow.law(how.get("eta", 0.0), 3)
    assert bool(((mean.mean(0) - law).abs() < 4 * mean.std(0) / 20).all())


@pytest.mark.parametrize("schedule", [Linear(), Positional((Linear(), Cosine()))], ids=str)
def test_one_step_number_for_all_rows_means_the_same_as_one_per_row(schedule):
    case = toys.oracle("uniform", data=2, schedule=schedule)
    walk, xt = ReversedPaths(case.model, case.flow, 3, 0.7), case.space.states
    new = xt.flip(0)
    for n in range(3):
        per_row = torch.full((len(xt),), n)
        one, each = walk.odds(n, xt, new), walk.odds(per_row, xt, new)
        assert torch.equal(one.against, each.against)
        assert torch.equal(one.share, each.share)
        together = walk.forward(n, xt, new, one)
        assert torch.equal(together, log_kernel(case.flow, walk.table.at(per_row), xt, new, each))


def test_a_step_whose_corrector_is_capped_stays_possible_where_the_network_denies_the_token():
    """Where r + s = 1 and p0(xt) = 0, log K(xt | xt) is log P(xt), and P(xt) = e^-60."""
    flow, xt = Flow(toys.source("mask"), prediction=Plain()), torch.tensor([[2]])
    walk = ReversedPaths(lambda xt, t: torch.tensor([0.0, 0.0, -60.0]).expand(*xt.shape, 3), flow, 3, eta=2.0)
    log_k = walk.forward(1, xt, xt, walk.odds(1, xt, xt))  # r = s = 1/2
    assert float(log_k) == pytest.approx(-60 - math.log(2), rel=1e-6)


@pytest.mark.parametrize("prediction", [Plain(), Carry()], ids=str)
def test_other_predictions_have_a_bound_too(prediction):
    flow = toys.oracle("bag_of_words", data=2, prediction=prediction)
    found = reversal_bound(flow.model, flow.flow, flow.space.data.repeat(500, 1), steps=4, paths=2)
    one = found.with_paths(1)
    assert abs(one.nats - float(Reversal(flow, 4).bound().mean())) < 4 * one.draw_stderr
    assert found.consistent


def test_more_paths_lower_the_bound_towards_the_exact_value():
    flow = toys.oracle("uniform", data=2, length=3)
    found = reversal_bound(flow.model, flow.flow, flow.space.data.repeat(100, 1), steps=6, paths=32)
    nats = [estimate.nats for estimate in found.by_paths.values()]
    assert list(found.by_paths) == [1, 2, 4, 8, 16, 32]
    assert nats == sorted(nats, reverse=True)
    exact = float(flow.nll(steps=6).mean())
    assert exact - 4 * found.draw_stderr < found.nats < exact + 0.25 * (nats[0] - exact)
    assert found.quantity == "br"
    assert (found.steps, found.paths, found.is_bound, found.calls) == (6, 32, True, 6 * 32)


@pytest.mark.parametrize("paths", [1, 8])
def test_samples_drawn_with_the_same_seed_have_a_bound_too(paths):
    """In one step a reversed path draws x0; with the random numbers of the sample it would be the x0 of the sample."""
    flow = toys.oracle("uniform", data=2, length=3)
    drawn = hf.generate(flow.model, flow.flow, n=2000, length=3, steps=1, seed=4)
    found = reversal_bound(flow.model, flow.flow, drawn.tokens, steps=1, paths=paths, seed=4)
    exact = flow.nll(steps=1)[hf.exact.Space(Vocab(2), 3).ids(drawn.tokens)]
    excess = torch.tensor(found.each) - exact
    assert float(excess.mean()) > 4 * float(excess.std()) / math.sqrt(2000)


def test_numbers_depend_on_the_sequence_and_the_path_only():
    flow = toys.oracle("uniform")
    x1 = flow.space.data
    whole = reversal_bound(flow.model, flow.flow, x1, steps=4, paths=4, seed=7)
    parts = reversal_bound(flow.model, flow.flow, x1, steps=4, paths=2, seed=7, batch=3)
    torch.testing.assert_close(whole.log_weights[:, :2], parts.log_weights, atol=1e-12, rtol=0)
    first = reversal_bound(flow.model, flow.flow, x1[:2], steps=4, paths=4, seed=7)
    torch.testing.assert_close(whole.log_weights[:2], first.log_weights, atol=1e-12, rtol=0)
    assert not torch.equal(whole.log_weights, reversal_bound(flow.model, flow.flow, x1, steps=4, paths=4).log_weights)


def test_masks_need_a_call_only_where_a_position_is_unmasked():
    """The weight of a path is then the product of P(x1) at the steps that unmask."""
    flow = toys.oracle("multimask", length=2, data=3)
    x1 = flow.space.data.repeat(50, 1)
    found = reversal_bound(flow.model, flow.flow, x1, steps=64, paths=1)
    # two positions are unmasked in one step with chance 1/64
    assert found.calls == 2
    one = found.nats - float(Reversal(flow, 64).bound().mean())
    assert abs(one) < 5 * float(found.log_weights.std()) / math.sqrt(len(x1))


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_a_network_without_time_is_run_only_where_the_state_has_changed(name):
    source = toys.source(name)
    flow = Flow(source)
    model = toys.awake(hf.Transformer(source.vocab, size=hf.Size(1, 16, 2), time=False)).double()
    x1 = torch.randint(3, (6, 4), generator=toys.generator(1))
    saved = reversal_bound(model, flow, x1, steps=40, paths=2)
    model.time = True  # as if t mattered
    plain = reversal_bound(model, flow, x1, steps=40, paths=2)
    torch.testing.assert_close(saved.log_weights, plain.log_weights, atol=1e-9, rtol=0)
    assert plain.calls == 80
    assert saved.calls < 40


@pytest.mark.parametrize("name", [*toys.SOURCES, "mixed"])
@pytest.mark.parametrize("eta", [0.0, 1.3])
def test_the_certificate_encloses_the_exact_value_on_samples(name, eta):
    if name == "mixed":
        flow = hf.exact.Oracle(Flow(Ramp(Vocab(2, 1))), toys.dirichlet(4, seed=1), 2, None)
        model = toys.Clocked.random(flow.space, 3)
        flow = hf.exact.Oracle(flow.flow, flow.q, 2, model)
    else:
        flow = toys.oracle(name, data=2)
    upper, lower = reversal_certificate(flow.model, flow.flow, n=1500, length=2, steps=5, paths=2, eta=eta)
    law = flow.law(eta, 5)
    exact = float(torch.special.entr(law).sum())  # samples have this law
    assert lower.nats - 4 * lower.stderr < exact < upper.nats + 4 * upper.stderr
    assert (lower.quantity, lower.is_bound, upper.is_bound) == ("br_lower", False, True)
    assert lower.nats < upper.nats


def test_one_path_of_the_certificate_is_the_mean_over_the_samplers_own_paths():
    """E[-log w] over paths drawn forwards, by enumeration."""
    flow = toys.oracle("uniform", data=2, length=1)
    reversal, total = Reversal(flow, 3), 0.0
    for x1, p in zip(flow.space.data, flow.law(steps=3), strict=True):
        log_w, chance = reversal.law(x1)
        posterior = chance * log_w.exp() / p
        total -= float(p * (posterior * log_w).sum())
    _, lower = reversal_certificate(flow.model, flow.flow, n=4000, length=1, steps=3, paths=1)
    assert abs(lower.nats - total) < 4 * lower.stderr


def test_heavy_tails_and_missing_paths_are_remarked():
    light = ReversalEstimate.of_weights(torch.randn(50, 8).double() * 0.1, **_what())
    heavy = ReversalEstimate.of_weights(torch.randn(50, 8).double() * 4, **_what())
    assert light.remark is None
    assert light.effective_paths > 7.5
    assert "heavy-tailed" in (heavy.remark or "")
    assert heavy.log_weight_sd == pytest.approx(4, rel=0.2)
    assert "pass paths=8" in (light.with_paths(1).remark or "")
    masks = toys.oracle("mask", prediction=Plain())
    found = reversal_bound(masks.model, masks.flow, masks.space.data, steps=3, paths=2)
    assert "cannot be proposed" in (found.remark or "")


def test_a_sequence_whose_weights_are_all_zero_has_no_effective_path():
    some, none = [0.0, 0.0, -math.inf, -math.inf], [-math.inf] * 4
    estimate = ReversalEstimate.of_weights(torch.tensor([some, none], dtype=torch.float64), **_what())
    assert (estimate.nats, estimate.effective_paths) == (math.inf, 1.0)  # the mean of 2 and 0


def _what() -> dict[str, object]:
    return {"quantity": "br", "is_bound": True, "eta": 0.0, "calls": 8, "length": 3, "steps": 4}


def test_the_error_of_the_draws_is_the_spread_over_repetitions():
    generator = toys.generator(2)
    values, errors = [], []
    for _ in range(300):
        found = ReversalEstimate.of_weights(torch.randn(4, 16, generator=generator).double() * 0.7, **_what())
        values.append(found.nats)
        errors.append(found.draw_stderr)
    assert sum(errors) / 300 == pytest.approx(float(torch.tensor(values).std()), rel=0.15)


def test_invalid_options_are_refused_by_name():
    flow = toys.oracle("uniform")
    call = lambda **how: reversal_bound(flow.model, flow.flow, flow.space.data, **how)  # noqa: E731
    with pytest.raises(ValueError, match="steps must be an integer ≥ 1"):
        call(steps=0)
    with pytest.raises(ValueError, match="paths must be an integer ≥ 1"):
        call(paths=0)
    for key, value in (("steps", 2.5), ("steps", "8"), ("paths", None), ("batch", 1.5)):
        with pytest.raises(ValueError, match=f"{key} must be an integer ≥ 1, got {value!r}"):
            call(**{key: value})
    for gamma in (1.5, "1"):
        with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\]"):
            call(gamma=gamma)
    with pytest.raises(ValueError, match="network for x0 must return logits"):
        call(x0=lambda xt, t: torch.zeros(*xt.shape, 2))
    with pytest.raises(ValueError, match="out of range"):
        reversal_bound(flow.model, flow.flow, flow.space.data + 5)
    with pytest.raises(TypeError, match="'path' is not an option of the reversal bound; did you mean"):
        call(path=3)
    masks = toys.oracle("mask", prediction=Plain())
    with pytest.raises(ValueError, match="no lower bound"):
        reversal_certificate(masks.model, masks.flow, n=2, length=2)
    with pytest.raises(ValueError, match="NaN"):
        reversal_bound(lambda xt, t: torch.full((*xt.shape, 3), torch.nan), flow.flow, flow.space.data)


def small(coupling: hf.Coupling) -> tuple[hf.Transformer, Flow]:
    """A random network with a head for x0, in float64."""
    flow = Flow(toys.source("bag_of_words"), coupling=coupling)
    model = toys.awake(hf.Transformer(flow.vocab, size=hf.Size(1, 16, 2), predict_x0=True, dropout=0.0)).double()
    model.x0_head.fit(torch.tensor([5, 3, 1]), flow.source.token_probs())
    return model, flow


def test_with_a_coupling_tokens_are_renoised_by_the_head_for_x0():
    """Its law is the softmax of the head's logits with the mirrored evidence, here as a network of its own."""
    model, flow = small(hf.ExactOT(hf.Hamming()))

    def law(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        logits = model.x0_head(model.x0_features(model.features(xt, t), xt, t))
        shift = x0_shift(xt, (1 - t.double())[:, None].expand(xt.shape), model.x0_head.unigram)
        return logits.scatter_add(-1, xt[..., None], torch.where(torch.isinf(shift), 1e4, shift)[..., None])

    x1 = torch.randint(3, (5, 4), generator=toys.generator(1))
    by_head = reversal_bound(model, flow, x1, steps=8, paths=3)
    by_law = reversal_bound(model, flow, x1, steps=8, paths=3, x0=law)
    torch.testing.assert_close(by_head.log_weights, by_law.log_weights, atol=1e-9, rtol=0)
    assert by_head.calls == 9 * 3  # one more at x1 itself
    by_context = reversal_bound(model, Flow(flow.source), x1, steps=8, paths=3)
    assert not torch.allclose(by_head.log_weights, by_context.log_weights)
    with pytest.raises(ValueError, match="eta=0 only"):
        reversal_bound(model, flow, x1, steps=8, eta=0.5, x0=law)


def test_weights_by_the_head_have_the_samplers_probability_as_their_mean():
    model, flow = small(hf.ExactOT(hf.Hamming()))
    oracle = hf.exact.Oracle(flow, torch.full((9,), 1 / 9), 2, model)
    walk, states = ReversedPaths(model, flow, 3), oracle.space.states
    new, xt = states.repeat_interleave(9, 0), states.repeat(9, 1)
    mean = torch.eye(9, dtype=torch.float64)
    with torch.no_grad():
        for n in (2, 1, 0):  # over all pairs of neighboring states
            forth = walk.forward(n, xt, new, walk.odds(n, xt, new)).sum(1)
            back = walk.backward(n, new, None).log_prob(xt).sum(1)
            assert torch.allclose(back.exp().view(9, 9).sum(1), torch.ones(9).double(), atol=1e-11)
            mean = mean @ (back + (forth - back)).exp().view(9, 9)
    torch.testing.assert_close(mean @ oracle.source_law, oracle.law(steps=3), atol=1e-7, rtol=0)
