from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from cases import VOCAB, random_logits, sample_at
from hopflow.couplings import Independent
from hopflow.flow import Flow
from hopflow.objectives import CrossEntropy, NoisyCrossEntropy
from hopflow.paths import ConvexPath
from hopflow.predictions import Evidence, Plain
from hopflow.schedules import Cosine, Linear
from hopflow.sources import Mask, Uniform


def test_a_flow_needs_a_source_and_has_sensible_parts_otherwise():
    flow = Flow(Uniform(VOCAB))
    assert flow == Flow(Uniform(VOCAB), Linear(), Evidence(), Independent(), CrossEntropy())


def test_a_flow_cannot_be_changed_only_replaced():
    flow = Flow(Uniform(VOCAB))
    with pytest.raises(FrozenInstanceError):
        flow.schedule = Cosine()
    assert replace(flow, schedule=Cosine()).schedule == Cosine()
    assert flow.schedule == Linear()


def test_equal_flows_are_one_key():
    assert {Flow(Uniform(VOCAB)): 1}[Flow(Uniform(VOCAB))] == 1
    assert Flow(Uniform(VOCAB)) != Flow(Mask(VOCAB))


def test_an_objective_that_does_not_learn_from_this_source_is_refused_at_once():
    Flow(Mask(VOCAB), objective=NoisyCrossEntropy())
    with pytest.raises(ValueError, match=r"Uniform.*Use CrossEntropy\(\)"):
        Flow(Uniform(VOCAB), objective=NoisyCrossEntropy())


def test_the_vocabulary_is_the_sources_and_the_path_follows_the_schedule():
    flow = Flow(Mask(VOCAB), Cosine())
    assert flow.vocab is VOCAB
    assert flow.path == ConvexPath(Cosine())


def test_the_loss_is_the_objective_of_the_flows_own_scores():
    flow = Flow(Uniform(VOCAB), prediction=Plain())
    sample = sample_at(flow.source, torch.tensor([0.2, 0.6]))
    logits = random_logits(sample, flow.source, dtype=torch.float32)
    assert flow.scores(logits, sample).prediction == Plain()
    assert torch.equal(flow.loss(logits, sample), -flow.scores(logits, sample).log_p1.sum(1))
