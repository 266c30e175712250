"""Euler with refresh: the exact N-step law, and (B_N) above the cross-entropy.  theory.md (F_R)"""

import itertools
import math

import pytest
import torch
import toys

import hopflow as hf
from hopflow import exact
from hopflow.evaluation.table import page
from hopflow.predictions import Plain
from hopflow.schedules import Cosine, Linear, Polynomial
from hopflow.velocities import kernel, refresh_chances, step_sizes, with_refresh

REFRESH = (0.5, 2.0, 4.0)


def networks(name: str, schedule) -> dict[str, exact.Oracle]:
    """A perfect network, a perturbed one and a rough one, for one flow."""
    perfect = toys.oracle(name, data=2, schedule=schedule, network=None)
    context = exact.Perfect(perfect.flow, perfect.q, 2)
    noise = toys.Clocked.random(perfect.space, 7, size=0.3)
    rough = toys.Clocked.random(perfect.space, 8, size=3.0)
    return {
        "perfect": perfect,
        "perturbed": toys.oracle(name, data=2, schedule=schedule, network=lambda xt, t: context(xt, t) + noise(xt, t)),
        "rough": toys.oracle(name, data=2, schedule=schedule, network=rough),
    }


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [Linear(), Polynomial(2.0), Cosine()], ids=str)
@pytest.mark.parametrize("kind", ["perfect", "perturbed", "rough"])
def test_bn_with_refresh_is_never_below_the_exact_nll(name, schedule, kind):
    """N of 1, 2 and 7, two strengths of the corrector, half a refresh and the most that are allowed."""
    oracle = networks(name, schedule)[kind]
    for eta, steps in itertools.product((0.0, 1.0), (1, 2, 7)):
        for refresh in (0.5, steps):
            sampler = {"eta": eta, "steps": steps, "refresh": refresh}
            gap = exact.bound(oracle, **sampler) - oracle.nll(**sampler)
            assert float(gap.min()) > -1e-9, sampler
            assert float(oracle.law(**sampler).sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("refresh", [0.0, *REFRESH])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_towards_x1_the_path_law_is_kept_at_every_step(name, refresh, eta):
    source, schedule, steps = toys.source(name), Cosine(), 4
    p0, v = source.token_probs(), source.vocab.size
    eye, xt = torch.eye(v, dtype=torch.float64), torch.arange(v)
    rest = schedule.rest(torch.arange(steps + 1, dtype=torch.float64) / steps)
    law, x1 = p0, 1
    for n, chance in enumerate(refresh_chances(refresh, steps)):
        now = rest[n].expand(v)
        sizes = step_sizes(now, now - rest[n + 1], torch.full((v,), eta, dtype=torch.float64))
        r, s, noise = with_refresh(*sizes, rest[n + 1].expand(v), chance)
        law = law @ kernel(eye[x1].expand(v, v), xt, p0, 1 - now, now, r, s, noise)
        torch.testing.assert_close(law, (1 - rest[n + 1]) * eye[x1] + rest[n + 1] * p0, atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("refresh", [0.0, 2.0, 5.0])
def test_samples_have_the_exact_law_and_the_expected_hops(name, eta, refresh):
    oracle, n = toys.oracle(name, schedule=Cosine()), 4000
    out = hf.generate(oracle.model, oracle.flow, n=n, length=2, sampler=hf.Euler(5, refresh=refresh), eta=eta, seed=5)
    seen = torch.bincount(exact.Space(hf.Vocab(3), 2).ids(out.tokens), minlength=9).double() / n
    law = oracle.law(eta=eta, steps=5, refresh=refresh)
    assert ((seen - law).abs() <= 4 * (law * (1 - law) / n).sqrt()).all()
    hops, error = out.jumps.double().mean(), out.jumps.double().std() / math.sqrt(n)
    assert abs(float(hops) - oracle.jumps(eta=eta, steps=5, refresh=refresh)) <= 4 * float(error) + 1e-9


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_step_in_which_every_position_has_an_event_is_drawn_correctly(name):
    """The probabilities of a redraw, a proposal and a refresh add up to 1 here, and in floating point to 1 + 2e-16."""
    oracle, n = toys.oracle(name), 4000
    out = hf.generate(oracle.model, oracle.flow, n=n, length=2, sampler=hf.Euler(4, refresh=0.3), eta=3.0, seed=5)
    seen = torch.bincount(exact.Space(hf.Vocab(3), 2).ids(out.tokens), minlength=9).double() / n
    law = oracle.law(eta=3.0, steps=4, refresh=0.3)
    assert ((seen - law).abs() <= 4 * (law * (1 - law) / n).sqrt()).all()
    hops, error = out.jumps.double().mean(), out.jumps.double().std() / math.sqrt(n)
    assert abs(float(hops) - oracle.jumps(eta=3.0, steps=4, refresh=0.3)) <= 4 * float(error) + 1e-9


@pytest.mark.parametrize("name", ["mask", "multimask", "uniform"])
def test_samples_have_the_exact_law_under_plain_too(name):
    oracle, n = toys.oracle(name, prediction=Plain()), 4000
    out = hf.generate(oracle.model, oracle.flow, n=n, length=2, sampler=hf.Euler(4, refresh=2), eta=1, seed=6)
    seen = torch.bincount(exact.Space(hf.Vocab(3), 2).ids(out.tokens), minlength=9).double() / n
    law = oracle.law(eta=1, steps=4, refresh=2)
    assert ((seen - law).abs() <= 4 * (law * (1 - law) / n).sqrt()).all()


@pytest.mark.parametrize("prediction", [None, Plain()], ids=["evidence", "plain"])
@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize(("eta", "steps", "refresh"), [(0.0, 4, 2.0), (1.0, 4, 0.5), (0.5, 6, 6.0), (0.0, 1, 1.0)])
def test_the_estimate_of_bn_agrees_with_the_exact_one(name, prediction, eta, steps, refresh):
    oracle = toys.oracle(name, prediction=prediction, schedule=Polynomial(2.0))
    x1 = oracle.space.data.repeat(16, 1)
    exactly = float(exact.bound(oracle, eta=eta, steps=steps, refresh=refresh).mean())
    found = hf.nll_bound(oracle.model, oracle.flow, x1, eta=eta, steps=steps, refresh=refresh, draws=32, seed=3)
    assert found.quantity == "bn"
    assert abs(found.nats - exactly) < 4 * found.draw_stderr + 1e-9


def test_in_the_last_step_a_refresh_makes_no_difference():
    """One step redraws every position from P: refresh changes neither the law nor the bound."""
    oracle = toys.oracle("uniform")
    torch.testing.assert_close(oracle.law(steps=1, refresh=1.0), oracle.law(steps=1), atol=1e-15, rtol=0)
    torch.testing.assert_close(
        exact.bound(oracle, steps=1, refresh=1.0), exact.bound(oracle, steps=1), atol=1e-13, rtol=0
    )


@pytest.mark.parametrize("steps", [8, 64])
def test_masks_return_about_as_often_as_expected_for_every_number_of_steps(steps):
    """A refresh draws a mask with probability 1 - k': R·∫(1-k) = R/2 returns per position in the linear schedule."""
    oracle, refresh = toys.oracle("mask"), 3.0
    out = hf.generate(oracle.model, oracle.flow, n=3000, length=2, sampler=hf.Euler(steps, refresh=refresh), seed=1)
    rest = 1 - torch.arange(1, steps, dtype=torch.float64) / steps
    returns = float((refresh / steps * rest).sum())
    drawn = out.redraws.double().mean(1)
    assert returns < float(drawn.mean()) < 2 * returns + 1
    assert (out.calls <= steps).all()


@pytest.mark.parametrize("refresh", [-1, 9, math.nan, math.inf])
def test_an_invalid_number_of_refreshes_has_one_message(refresh):
    said = r"refresh, .*must be a number from 0 \(none\) to 8, the number of steps, got"
    with pytest.raises(ValueError, match=said):
        hf.Euler(8, refresh=refresh)
    oracle = toys.oracle("mask")
    with pytest.raises(ValueError, match=said):
        hf.nll_bound(oracle.model, oracle.flow, oracle.space.data, steps=8, refresh=refresh)


def test_refresh_without_steps_is_refused():
    oracle = toys.oracle("mask")
    with pytest.raises(ValueError, match=r"refresh=1 belongs to a sampler in steps: pass steps=N"):
        hf.nll_bound(oracle.model, oracle.flow, oracle.space.data, refresh=1)
    calls = (oracle.law, oracle.nll, oracle.cross_entropy, oracle.jumps, lambda **key: exact.bound(oracle, **key))
    for call in calls:
        with pytest.raises(ValueError, match=r"refresh=1 belongs to a sampler in steps: pass steps=N"):
            call(refresh=1)


def test_br_refuses_refresh_with_the_reason():
    oracle = toys.oracle("uniform")
    with pytest.raises(
        ValueError, match=r"br does not exist for a sampler with refresh. Use nll_bound\(steps=N, refresh"
    ):
        hf.reversal_bound(oracle.model, oracle.flow, oracle.space.data, steps=4, refresh=1.0)


def test_a_sampler_with_refresh_says_so():
    assert hf.Euler(8, refresh=1.5).label == "8 Euler steps, refresh 1.5"
    assert hf.Euler(8).label == "8 Euler steps"
    assert hf.Euler(8, refresh=1.5).family != hf.Euler(8).family


def test_an_evaluation_has_bn_with_and_without_refresh_and_names_both_samplers():
    oracle = toys.oracle("mask")
    x1 = oracle.space.data.repeat(16, 1)
    keys = {"n": 4, "transport": False, "coupling": "none", "error": 0.0, "rows": len(x1), "seconds": 1e9}
    rows = hf.evaluate(
        oracle.model, oracle.flow, x1, steps=(4,), sampler=lambda steps: hf.Euler(steps, refresh=2.0), **keys
    )
    found = {row.more["sampler"]: row for row in rows if row.quantity == "bn"}
    assert set(found) == {f"η = {eta}, 4 {rest}" for eta in (0, 1) for rest in ("steps", "Euler steps, refresh 2")}
    for refresh, name in ((0.0, "η = 0, 4 steps"), (2.0, "η = 0, 4 Euler steps, refresh 2")):
        exactly = float(exact.bound(oracle, steps=4, refresh=refresh).mean())
        assert abs(found[name].more["nats"] - exactly) <= 4 * found[name].more["nats_draw_stderr"] + 1e-9
    assert "η = 0 or 1, 4 Euler steps, refresh 2" in page(rows)
    assert "not: 4 Euler steps, refresh 2" not in page(rows)
