import math

import pytest
import torch
from cases import SOURCES, VOCAB, name, random_logits, sample_at, whole_rows

from hopflow.flow import Flow
from hopflow.objectives import EXAMPLES, Bound, CrossEntropy, NoisyCrossEntropy
from hopflow.paths import PathSample
from hopflow.predictions import EXAMPLES as PREDICTIONS
from hopflow.predictions import Carry, Evidence
from hopflow.schedules import Cosine, Polynomial
from hopflow.sources import Mask, MultiMask, Uniform

TIMES = torch.tensor([0.02, 0.3, 0.5, 0.7, 0.98], dtype=torch.float64).repeat(4)
each_source = pytest.mark.parametrize("source", SOURCES, ids=name)
each_prediction = pytest.mark.parametrize("prediction", PREDICTIONS, ids=name)


def log_p1(logits, sample, prediction, source):
    p = whole_rows(logits, sample, prediction, source)
    return p.gather(-1, sample.x1[..., None])[..., 0].log()


@each_source
@each_prediction
def test_cross_entropy_counts_every_position(source, prediction):
    sample = sample_at(source, TIMES, length=4)
    logits = random_logits(sample, source)
    loss = Flow(source, prediction=prediction).loss(logits, sample)
    torch.testing.assert_close(loss, -log_p1(logits, sample, prediction, source).sum(1))


@pytest.mark.parametrize("source", [Mask(VOCAB), MultiMask(VOCAB)], ids=name)
@each_prediction
def test_noisy_cross_entropy_counts_masks_only(source, prediction):
    sample = sample_at(source, TIMES, length=4)
    logits = random_logits(sample, source)
    loss = Flow(source, prediction=prediction, objective=NoisyCrossEntropy()).loss(logits, sample)
    masked = sample.xt >= VOCAB.data
    torch.testing.assert_close(loss, -(masked * log_p1(logits, sample, prediction, source)).sum(1))


@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=name)
def test_where_data_stays_both_cross_entropies_are_one(prediction):
    source = MultiMask(VOCAB)
    sample = sample_at(source, TIMES, length=4)
    logits = random_logits(sample, source)
    losses = [Flow(source, prediction=prediction, objective=o).loss(logits, sample) for o in EXAMPLES[:2]]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("source", [s for s in SOURCES if not s.disjoint], ids=name)
def test_noisy_cross_entropy_is_refused_where_noise_cannot_be_seen(source):
    with pytest.raises(ValueError, match=rf"disjoint source.*{name(source)}.*Use CrossEntropy\(\)"):
        NoisyCrossEntropy().check(source)


@each_source
@pytest.mark.parametrize("objective", [CrossEntropy(), Bound(0.0), Bound(1.0)], ids=repr)
def test_the_other_objectives_take_every_source(source, objective):
    objective.check(source)


@pytest.mark.parametrize("schedule", [Polynomial(2.0), Cosine()], ids=repr)
def test_the_bound_at_eta_0_with_carry_and_one_mask_is_the_weighting_of_md4(schedule):
    source = Mask(VOCAB)
    sample = sample_at(source, TIMES, length=4, schedule=schedule)
    logits = random_logits(sample, source)
    loss = Flow(source, schedule, Carry(), objective=Bound(0.0)).loss(logits, sample)
    for i, t in enumerate(TIMES.tolist()):
        k, dk = (
            (t * t, 2 * t)
            if schedule == Polynomial(2.0)
            else (1 - math.cos(math.pi * t / 2), math.pi / 2 * math.sin(math.pi * t / 2))
        )
        nats = -logits[i].log_softmax(-1).gather(1, sample.x1[i][:, None])[:, 0]
        by_hand = dk / (1 - k) * float(nats[sample.xt[i] == VOCAB.data].sum())
        assert float(loss[i]) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("source", [Mask(VOCAB), MultiMask(VOCAB)], ids=name)
@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=name)
@pytest.mark.parametrize("eta", [0.25, 1.0, 7.0])
def test_where_data_stays_the_corrector_costs_nothing(source, prediction, eta):
    sample = sample_at(source, TIMES, length=4)
    logits = random_logits(sample, source)
    still, moving = (Flow(source, prediction=prediction, objective=Bound(e)).loss(logits, sample) for e in (0.0, eta))
    torch.testing.assert_close(moving, still)


def test_the_bound_moves_with_the_speed_of_its_schedule():
    source = Uniform(VOCAB)
    sample = sample_at(source, TIMES)
    logits = random_logits(sample, source)
    twice = PathSample(sample.x0, sample.x1, sample.xt, sample.t, sample.rest, 2 * sample.dk)
    flow = Flow(source, objective=Bound(1.0))
    torch.testing.assert_close(flow.loss(logits, twice), 2 * flow.loss(logits, sample))


@pytest.mark.parametrize(
    ("source", "objective"),
    [(s, o) for s in SOURCES for o in EXAMPLES if s.disjoint or not isinstance(o, NoisyCrossEntropy)],
    ids=lambda c: name(c) if c in SOURCES else repr(c),
)
@each_prediction
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_objective_gives_each_sequence_a_finite_loss_with_finite_gradients(source, prediction, objective, dtype):
    ends = torch.tensor([2.0**-23, 0.5, 1 - 2.0**-23]).repeat(4)
    sample = sample_at(source, ends, length=3)
    logits = (8 * random_logits(sample, source)).to(dtype).requires_grad_()
    loss = Flow(source, prediction=prediction, objective=objective).loss(logits, sample)
    assert loss.shape == (12,)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    assert (loss >= 0).all()
    loss.sum().backward()
    assert logits.grad.dtype == dtype
    assert torch.isfinite(logits.grad).all()
