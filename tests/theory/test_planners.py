"""Planners: the exact law by recursion over partial states, the likelihood that equals it, and samples of this law."""

import itertools
import math

import pytest
import torch
import toys
from scipy.stats import chisquare

import hopflow as hf
from hopflow import exact
from hopflow.predictions import Carry, Plain
from hopflow.sampling.planned_nll import CHUNK, GPU_CHUNK, _Replay
from hopflow.schedules import Cosine
from hopflow.velocities import Eta

PLANNERS = (
    *(hf.Confidence(1), hf.Confidence(2), hf.Confidence(9), hf.Margin(1), hf.Margin(3)),
    *(hf.EntropyBound(0), hf.EntropyBound(0.7), hf.EntropyBound(2.0), hf.LeftToRight(1), hf.LeftToRight(2)),
)
each_planner = pytest.mark.parametrize("planner", PLANNERS, ids=str)


def network(space: exact.Space, seed: int) -> exact.Table:
    """A rough random network: certain at some positions, undecided at others."""
    return exact.Table(space, toys.dirichlet(len(space.states), space.length, space.vocab.data, seed=seed, sharpness=2))


def oracle(masks: int, length: int, seed: int, **parts) -> exact.Oracle:
    flow = hf.Flow(hf.MultiMask(hf.Vocab(3, masks)), **parts)
    q = toys.dirichlet(3**length, seed=seed)
    return exact.Oracle(flow, q, length, network(exact.Space(flow.vocab, length), seed + 1))


def each(estimate: hf.Estimate) -> torch.Tensor:
    return torch.tensor(estimate.each, dtype=torch.float64)


@each_planner
@pytest.mark.parametrize(("length", "parts"), [(1, {}), (3, {}), (4, {"prediction": Carry(), "schedule": Cosine()})])
def test_planned_nll_is_exactly_that_of_the_recursion_for_every_sequence(planner, length, parts):
    flow = oracle(1, length, seed=length, **parts)
    law = exact.planned_law(flow, planner)
    found = hf.planned_nll(flow.model, flow.flow, flow.space.data, planner)
    torch.testing.assert_close(each(found), -law.log(), atol=1e-10, rtol=0)
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    assert (found.quantity, found.is_exact, found.is_bound, found.draw_stderr) == ("planned", True, False, 0.0)
    values = each(found)
    assert found.nats == pytest.approx(float(values.mean()))
    assert found.stderr == pytest.approx(float(values.std()) / math.sqrt(len(values)))


@each_planner
def test_planned_nll_is_exact_for_a_network_conditioned_on_the_time(planner):
    """t = filled/4 has no rounding in float32."""
    flow = oracle(1, 4, seed=5)
    clocked = exact.Oracle(flow.flow, flow.q, 4, toys.Clocked.random(flow.space, 6, size=2.0))
    found = hf.planned_nll(clocked.model, clocked.flow, clocked.space.data, planner)
    torch.testing.assert_close(each(found), -exact.planned_law(clocked, planner).log(), atol=1e-10, rtol=0)


@each_planner
def test_from_two_masks_the_mean_probability_over_the_noise_is_exact(planner):
    """Every x0 as a fixed noise in turn: p(x1) is the mean of P(x1 | x0)."""
    flow, length = oracle(2, 3, seed=7), 3
    noise = list(itertools.product((3, 4), repeat=length))
    total = torch.zeros(27, dtype=torch.float64)
    for x0 in noise:
        total += (-each(hf.planned_nll(*given(flow, x0), flow.space.data, planner))).exp()
    torch.testing.assert_close(total / len(noise), exact.planned_law(flow, planner), atol=1e-10, rtol=0)


def given(flow: exact.Oracle, x0: tuple[int, ...]) -> tuple[object, hf.Flow]:
    """The network with this noise at its masks, for a flow with one mask."""
    fixed = torch.tensor(x0)

    def model(xt, t):
        return flow.model(torch.where(xt >= 3, fixed, xt), t)

    return model, hf.Flow(hf.Mask(hf.Vocab(3, 1)))


@pytest.mark.parametrize("planner", [hf.Confidence(2), hf.EntropyBound(0.7)], ids=str)
def test_from_two_masks_the_estimate_is_a_bound_that_falls_to_the_exact_value(planner):
    flow = oracle(2, 3, seed=8)
    exactly = float(-exact.planned_law(flow, planner).log().mean())
    x1 = flow.space.data.repeat(8, 1)
    few, many = (hf.planned_nll(flow.model, flow.flow, x1, planner, draws=k, seed=2) for k in (2, 64))
    assert (few.is_bound, few.is_exact) == (True, False)
    assert exactly < few.nats - 4 * few.draw_stderr
    assert abs(many.nats - exactly) < 4 * many.draw_stderr + 0.02  # the logarithm of a mean of 64 is a little below
    assert few.nats > many.nats
    assert few.calls == pytest.approx(2 * many.calls / 64, abs=1)


@pytest.mark.parametrize("masks", [1, 2])
@each_planner
def test_samples_follow_the_law_of_the_recursion(planner, masks):
    flow, n = oracle(masks, 3, seed=9), 6000
    out = hf.generate(flow.model, flow.flow, n=n, length=3, sampler=planner, seed=3)
    law = exact.planned_law(flow, planner)
    seen = torch.bincount(exact.Space(hf.Vocab(3), 3).ids(out.tokens), minlength=27)
    assert chisquare(seen.numpy(), (n * law / law.sum()).numpy()).pvalue > 0.001 / (2 * len(PLANNERS))
    assert bool((out.changes == 1).all())


@pytest.mark.parametrize("draws", [2, 8])
def test_samples_drawn_with_the_same_seed_have_a_bound_too(draws):
    """The masks that the likelihood draws must not be those of the sample, which favor it."""
    flow, n = oracle(2, 3, seed=15), 2000
    out = hf.generate(flow.model, flow.flow, n=n, length=3, sampler=hf.Confidence(), seed=4)
    found = hf.planned_nll(flow.model, flow.flow, out.tokens, hf.Confidence(), draws=draws, seed=4)
    exactly = -exact.planned_law(flow, hf.Confidence()).log()[exact.Space(hf.Vocab(3), 3).ids(out.tokens)]
    excess = each(found) - exactly
    assert float(excess.mean()) > 4 * float(excess.std()) / math.sqrt(n)


def test_a_perfect_network_filled_one_at_a_time_has_the_data_law_in_every_order():
    flow = hf.Flow(hf.Mask(hf.Vocab(3, 1)))
    perfect = exact.Oracle(flow, toys.dirichlet(27, seed=10), 3)
    for planner in (hf.Confidence(1), hf.Margin(1), hf.LeftToRight(1)):
        torch.testing.assert_close(exact.planned_law(perfect, planner), perfect.q, atol=1e-12, rtol=0)
    at_once = exact.planned_law(perfect, hf.LeftToRight(3))  # independent positions
    assert float((perfect.q * (perfect.q / at_once).log()).sum()) > 0.01


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.5])
def test_for_a_perfect_network_the_error_of_entropy_bound_is_at_most_gamma_per_call(gamma):
    """KL(q ‖ p) sums the dependence of the tokens that are drawn together, which the rule limits to gamma per call."""
    flow = hf.Flow(hf.Mask(hf.Vocab(3, 1)))
    q = toys.dirichlet(27, seed=11, sharpness=2.5)
    perfect = exact.Oracle(flow, q, 3)
    law = exact.planned_law(perfect, hf.EntropyBound(gamma))
    calls = hf.planned_nll(exact.Perfect(flow, q, 3), flow, perfect.space.data, hf.EntropyBound(gamma)).calls
    assert 0 <= float((q * (q / law).log()).sum()) <= gamma * max(calls, 1) + 1e-9


@pytest.mark.parametrize("name", ["uniform", "bag_of_words", "mixed"])
def test_a_source_that_is_not_disjoint_is_refused_with_one_message(name):
    flow = toys.oracle(name)
    said = r"Confidence needs a disjoint source \(Mask, MultiMask\) with Carry or Evidence, got .* Use Euler"
    for call in (
        lambda: hf.generate(flow.model, flow.flow, n=2, length=2, sampler=hf.Confidence(2)),
        lambda: hf.planned_nll(flow.model, flow.flow, flow.space.data, hf.Confidence(2)),
        lambda: exact.planned_law(flow, hf.Confidence(2)),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_plain_predictions_and_a_corrector_are_refused():
    flow = oracle(1, 2, seed=12, prediction=Plain())
    with pytest.raises(ValueError, match="with Plain"):
        hf.generate(flow.model, flow.flow, n=2, length=2, sampler=hf.Margin(2))
    etas: tuple[Eta, ...] = (1.0, lambda t: t)
    for eta in etas:
        with pytest.raises(ValueError, match="EntropyBound has no corrector: eta must be 0"):
            hf.generate(flow.model, oracle(1, 2, 1).flow, n=2, length=2, sampler=hf.EntropyBound(), eta=eta)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"draws": 1}, "draws must be an integer ≥ 2, got 1"),
        ({"batch": 0}, "batch must be an integer ≥ 1, got 0"),
        ({"x1": torch.tensor([[0, 3]])}, "token id 3 is out of range"),
        ({"x1": torch.zeros(0, 2, dtype=torch.long)}, "at least one token"),
        ({"model": lambda xt, t: torch.full((*xt.shape, 3), math.nan)}, "the network returned NaN"),
    ],
)
def test_wrong_arguments_have_one_message(keys, message):
    flow = oracle(1, 2, seed=13)
    call = {"model": flow.model, "x1": flow.space.data, "sampler": hf.Confidence(), **keys}
    with pytest.raises(ValueError, match=message):
        hf.planned_nll(call.pop("model"), flow.flow, call.pop("x1"), call.pop("sampler"), **call)


@pytest.mark.parametrize("masks", [1, 2])
def test_the_batch_size_does_not_change_the_likelihood(masks):
    flow = oracle(masks, 3, seed=14)
    one, all_ = (
        hf.planned_nll(flow.model, flow.flow, flow.space.data, hf.EntropyBound(0.7), batch=batch, seed=1)
        for batch in (1, 100)
    )
    assert each(one).equal(each(all_))
    assert one.calls == all_.calls


def test_a_gpu_predicts_many_positions_at_once():
    """After each piece the host waits for the GPU; 83 positions of 50,257 tokens would be little work for it."""
    flow = hf.Flow(hf.Mask(hf.Vocab(50_257, masks=1)))
    sizes = {}
    for device in ("cpu", "meta"):  # meta stands for any device but the CPU
        with torch.device(device):
            model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=8, heads=2))
        sizes[device] = _Replay.of(model, flow, hf.Confidence(1), "auto").at_once
    assert sizes == {"cpu": CHUNK // 50_257, "meta": GPU_CHUNK // 50_257}
    assert GPU_CHUNK // CHUNK == 32
