import math

import pytest
import torch
from cases import SOURCES, VOCAB, Ramp, name, random_logits, sample_at
from device_copies import copies_from_the_cpu
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import generator

from hopflow.predictions import EXAMPLES, Carry, Evidence, Plain
from hopflow.sources import BagOfWords, Mask, MultiMask, Uniform, examples

TOKENS = torch.arange(VOCAB.size)
each_source = pytest.mark.parametrize("source", SOURCES, ids=name)
each_prediction = pytest.mark.parametrize("prediction", EXAMPLES, ids=name)


def logits_for(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 2 * torch.randn(n, VOCAB.data, generator=generator(seed), dtype=dtype)


def law(prediction, source, logits, xt, rest) -> torch.Tensor:
    return prediction.log_probs(logits, xt, torch.full(xt.shape, rest, dtype=logits.dtype), source).exp()


@each_source
@each_prediction
@pytest.mark.parametrize("rest", [0.0, 1e-30, 1e-7, 0.3, 1 - 1e-7, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_prediction_is_a_law_over_data_tokens_at_every_time(source, prediction, rest, dtype):
    p = law(prediction, source, logits_for(VOCAB.size, dtype=dtype), TOKENS, rest)
    assert p.shape == (VOCAB.size, VOCAB.data)  # a mask has no column: it cannot be predicted
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(VOCAB.size, dtype=dtype))


@each_source
@settings(max_examples=40)
@given(st.floats(0.001, 0.999), st.integers(0, 100))
def test_evidence_is_bayes(source, rest, seed):
    logits = logits_for(VOCAB.size, seed)
    p0 = source.token_probs()
    hit = (TOKENS[:, None] == torch.arange(VOCAB.data)).double()
    seen = rest * p0[:, None] + (1 - rest) * hit  # p(xt | x1), rows xt
    joint = logits.softmax(1) * seen
    possible = joint.sum(1) > 0
    expected = joint[possible] / joint[possible].sum(1, keepdim=True)
    found = law(Evidence(), source, logits, TOKENS, rest)[possible]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)


@each_source
def test_plain_adds_nothing(source):
    logits = logits_for(VOCAB.size)
    torch.testing.assert_close(law(Plain(), source, logits, TOKENS, 0.01), logits.softmax(1))


@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=name)
@pytest.mark.parametrize("source", [Mask(VOCAB), MultiMask(VOCAB)], ids=name)
@pytest.mark.parametrize("rest", [0.0, 1e-7, 0.5, 1 - 1e-6])
def test_a_data_token_of_a_disjoint_source_stays_and_a_mask_is_predicted_as_it_is(prediction, source, rest):
    logits = logits_for(VOCAB.size)
    p = law(prediction, source, logits, TOKENS, rest)
    assert torch.equal(p[: VOCAB.data], torch.eye(VOCAB.data, dtype=torch.float64))
    torch.testing.assert_close(p[VOCAB.data :], logits[VOCAB.data :].softmax(1))


@pytest.mark.parametrize("source", [Uniform(VOCAB), Ramp(VOCAB)], ids=name)
def test_carry_adds_nothing_where_the_source_has_data_tokens(source):
    logits = logits_for(VOCAB.size)
    torch.testing.assert_close(law(Carry(), source, logits, TOKENS, 0.01), logits.softmax(1))


@pytest.mark.parametrize("source", [Ramp(VOCAB), BagOfWords(VOCAB, (0.0, 0.5, 0.5))], ids=name)
@pytest.mark.parametrize("rest", [0.0, 1e-7, 0.5, 1 - 1e-6])
def test_evidence_keeps_a_data_token_that_the_source_cannot_have_given(source, rest):
    p = law(Evidence(), source, logits_for(1), torch.tensor([0]), rest)
    assert p.tolist() == [[1.0, 0.0, 0.0]]


@each_source
def test_at_the_source_nothing_is_known_yet_and_at_the_data_everything(source):
    logits = logits_for(VOCAB.size)
    torch.testing.assert_close(law(Evidence(), source, logits, TOKENS, 1.0), logits.softmax(1))
    p = law(Evidence(), source, logits, TOKENS, 0.0)
    assert torch.equal(p[: VOCAB.data], torch.eye(VOCAB.data, dtype=torch.float64))
    torch.testing.assert_close(p[VOCAB.data :], logits[VOCAB.data :].softmax(1))


@settings(max_examples=40)
@given(st.floats(0.001, 0.999), st.integers(0, 100))
def test_evidence_is_a_bijection_of_logits(rest, seed):
    source, xt = Uniform(VOCAB), torch.arange(VOCAB.data)
    logits = logits_for(VOCAB.data, seed).log_softmax(1)
    row = torch.full((VOCAB.data,), rest, dtype=torch.float64)
    found = Evidence().log_probs(logits, xt, row, source)
    back = found - torch.diag(Evidence().shift(xt, row, source))
    torch.testing.assert_close(back.log_softmax(1), logits, rtol=1e-9, atol=1e-11)


def test_the_shift_of_evidence_is_formula_e():
    source = BagOfWords(VOCAB, (0.5, 0.3, 0.2))
    rest = torch.full((5,), 0.25, dtype=torch.float64)
    expected = [math.log(1 + 0.75 / (0.25 * p)) for p in (0.5, 0.3, 0.2)] + [0.0, 0.0]
    assert Evidence().shift(TOKENS, rest, source).tolist() == pytest.approx(expected)


def test_the_shift_keeps_its_digits_in_float32_at_both_ends():
    source, xt = Uniform(VOCAB), torch.zeros(2, dtype=torch.long)
    rest = torch.tensor([1e-7, 1 - 1e-6])
    torch.testing.assert_close(
        Evidence().shift(xt, rest, source).double(),
        Evidence().shift(xt, rest.double(), source),
        rtol=1e-6,
        atol=0,
    )


@each_source
@each_prediction
def test_half_precision_logits_are_lifted_to_float32(source, prediction):
    logits = logits_for(VOCAB.size, dtype=torch.float32).bfloat16()
    rest = torch.full((VOCAB.size,), 0.3)
    low = prediction.log_probs(logits, TOKENS, rest, source)
    assert low.dtype == torch.float32
    assert torch.equal(low, prediction.log_probs(logits.float(), TOKENS, rest, source))


@each_source
@each_prediction
@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_gradients_are_finite_also_where_a_token_stays_for_certain(source, prediction, t):
    sample = sample_at(source, torch.full((8,), t, dtype=torch.float64))
    logits = random_logits(sample, source).requires_grad_()
    log_p = prediction.log_probs(logits, sample.xt, sample.rest.expand(8, 2), source)
    log_p.gather(-1, sample.x1[..., None]).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_a_prediction_knows_which_sources_let_data_stay_and_which_bounds_are_finite():
    knows = {(name(p), name(s)): (p.keeps_data_tokens(s), p.has_finite_bounds(s)) for p in EXAMPLES for s in SOURCES}
    for (prediction, source), (stays, settles) in knows.items():
        disjoint = source in ("Mask", "MultiMask")
        assert stays == (disjoint and prediction != "Plain")
        assert settles == (stays or prediction == "Evidence")


@pytest.mark.parametrize("source", examples(VOCAB), ids=name)
@each_prediction
def test_the_evidence_of_xt_is_computed_on_its_device_without_a_copy_from_the_cpu(source, prediction):
    """The host would wait for a GPU in every step of a sampler."""
    xt = torch.zeros(3, 4, dtype=torch.int64, device="meta")
    rest = torch.zeros(3, 1, device="meta")
    prediction.shift(xt, rest, source)  # copies p0 once
    with copies_from_the_cpu() as copies:
        prediction.shift(xt, rest, source)
        prediction.shift(xt[0], rest[0], source.of_rows(torch.zeros(4, dtype=torch.int64, device="meta")))
    assert copies == []
