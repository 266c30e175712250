"""Temperature, top-k, top-p and min-p act on the context, before the evidence of xt: exact laws of filtered samples."""

import math

import pytest
import torch
from cases import Ramp, name
from scipy.stats import chisquare
from toys import Clocked, generator

from hopflow import exact
from hopflow.flow import Flow
from hopflow.predictions import EXAMPLES as PREDICTIONS
from hopflow.sampling.filters import Filter
from hopflow.sampling.generate import generate, infill
from hopflow.sampling.samplers import RandomOrder
from hopflow.sources import BagOfWords, Mask, MultiMask, Source, Uniform
from hopflow.vocab import Vocab

SOURCES: dict[str, Source] = {
    "mask": Mask(Vocab(4, 1)),
    "multimask": MultiMask(Vocab(4, 4)),
    "uniform": Uniform(Vocab(4)),
    "bag of words": BagOfWords(Vocab(4), (0.6, 0.25, 0.1, 0.05)),
    "with a zero": BagOfWords(Vocab(4), (0.6, 0.0, 0.3, 0.1)),
    "masks and data": Ramp(Vocab(4, 2)),
}
HOW = (
    {"temperature": 0.5},
    {"temperature": 1.5, "top_k": 3},
    {"top_p": 0.7},
    {"temperature": 0.8, "min_p": 0.3},
    {"temperature": 0.0},
)
LOGITS = torch.tensor([0.2, 1.0, -0.5, 0.6], dtype=torch.float64)
"""Of a network that ignores the context: its filtered law is what samples must have, at every N and η."""


def context_free(xt, t):
    return LOGITS.expand(*xt.shape, 4)


def filtered(network, how):
    """The network whose logits are those that the filter leaves."""

    def logits(xt, t):
        return Filter(**how)(network(xt, t).flatten(0, 1)).unflatten(0, xt.shape)

    return logits


def p_value(tokens, law):
    """Of these tokens as independent draws from this law; none may be impossible."""
    seen = torch.bincount(tokens.flatten(), minlength=len(law)).double()
    assert not bool(seen[law == 0].any())
    possible = law > 0
    return float(chisquare(seen[possible], law[possible] * seen.sum()).pvalue) if possible.sum() > 1 else 1.0


@pytest.mark.parametrize("eta", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_context_free_network_draws_its_filtered_law_from_every_source_in_any_number_of_steps(source, eta):
    flow, trust = Flow(source), 0.001 / (3 * len(HOW))
    for steps in (1, 3, 24):
        for how in HOW:
            law = Filter(**how)(LOGITS[None])[0].exp()
            run = generate(context_free, flow, n=600, length=10, steps=steps, eta=eta, seed=steps, **how)
            assert p_value(run.tokens, law) > trust, (steps, how)
            truth = exact.Oracle(flow, torch.full((4,), 0.25), 1, filtered(context_free, how))
            assert torch.allclose(truth.law(steps=steps, eta=eta), law, atol=1e-9), (steps, how)


@pytest.mark.parametrize("eta", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("prediction", PREDICTIONS, ids=name)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_filtered_samples_have_exactly_the_law_and_the_jumps_of_the_filtered_network(source, prediction, eta):
    flow, n = Flow(source, prediction=prediction), 4_000
    network = Clocked.random(exact.Space(flow.vocab, 2), seed=4)
    how = {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0.05}
    run = generate(network, flow, n=n, length=2, steps=5, eta=eta, seed=3, **how)
    truth = exact.Oracle(flow, torch.full((16,), 1 / 16), 2, filtered(network, how))
    assert p_value(4 * run.tokens[:, 0] + run.tokens[:, 1], truth.law(steps=5, eta=eta)) > 0.0001
    jumps = run.jumps.double()
    error = float(jumps.std()) / math.sqrt(n)
    assert abs(float(jumps.mean()) - truth.jumps(steps=5, eta=eta)) <= 4 * error + 1e-12


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_at_temperature_0_no_noise_of_the_source_is_left(source, eta):
    run = generate(context_free, Flow(source), n=20, length=50, steps=32, eta=eta, temperature=0.0)
    assert (run.tokens == LOGITS.argmax()).all()


@pytest.mark.parametrize("how", HOW, ids=str)
def test_filtered_tokens_drawn_in_random_order_have_the_filtered_law(how):
    run = generate(context_free, Flow(SOURCES["mask"]), n=400, length=5, sampler=RandomOrder(), seed=1, **how)
    assert p_value(run.tokens, Filter(**how)(LOGITS[None])[0].exp()) > 0.0002


def test_a_token_that_is_certain_stays_although_the_filter_leaves_it_out():
    # its p0 is 0, so that it must be data; the network changes its mind about it
    flow = Flow(SOURCES["with a zero"])

    def fickle(xt, t):
        return torch.where((xt == 1).any(1)[:, None, None], -LOGITS, LOGITS).expand(*xt.shape, 4)

    run = generate(fickle, flow, n=50, length=8, steps=16, temperature=0.0, trajectory=True, seed=2)
    assert (run.hops.after == 1).any()
    assert not (run.hops.before == 1).any()
    assert set(run.tokens.unique().tolist()) == {1, 2}


@pytest.mark.parametrize(
    "how", [{"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}]
)
def test_a_filter_does_not_hide_nan(how):
    def broken(xt, t):
        return torch.tensor([0.0, torch.nan, 1.0, 2.0]).expand(*xt.shape, 4)

    with pytest.raises(ValueError, match="NaN"):
        generate(broken, Flow(SOURCES["uniform"]), n=2, length=3, steps=2, **how)


def test_half_precision_logits_are_filtered_in_float32():
    logits = torch.randn(3, 4000, generator=generator(0)).to(torch.bfloat16)
    out = Filter(temperature=0.5)(logits)
    assert out.dtype == torch.float32
    assert torch.allclose(out, Filter(temperature=0.5)(logits.double()).float(), atol=1e-4)


def test_guidance_comes_before_the_filter():
    # led away from the dropped law by 3, token 1 wins, which neither law has on top
    given, dropped = torch.tensor([1.0, 0.9, 0.0, -9.0]), torch.tensor([0.9, 0.0, 1.0, -9.0])

    def network(xt, t, label):
        return torch.where(label[:, None, None] < 0, dropped, given).expand(*xt.shape, 4)

    flow, labels = Flow(SOURCES["uniform"]), torch.ones(5, dtype=torch.long)
    run = infill(network, flow, torch.full((5, 6), -1), labels=labels, guidance=3.0, steps=8, temperature=0.0)
    assert (run.tokens == 1).all()
