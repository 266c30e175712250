from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import torch
from cases import VOCAB, random_logits, sample_at

from hopflow.costs import SquaredEmbedding
from hopflow.couplings import Independent, SinkhornOT
from hopflow.flow import Flow
from hopflow.objectives import CrossEntropy, NoisyCrossEntropy
from hopflow.paths import ConvexPath
from hopflow.predictions import Evidence, Plain
from hopflow.schedules import Cosine, Linear
from hopflow.sources import BagOfWords, Mask, Source, Uniform
from hopflow.vocab import Vocab


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


def test_printing_a_flow_names_every_component_and_what_is_predicted():
    lines = str(Flow(Uniform(VOCAB), Cosine(), coupling=SinkhornOT(SquaredEmbedding()))).splitlines()
    assert lines[0] == "Flow over 3 data tokens and 2 masks"
    names = [line.split()[0] for line in lines[1:] if line.startswith("  ") and line[2] != " "]
    assert names == ["source", "schedule", "prediction", "coupling", "objective", "predicts"]
    assert "  schedule    Cosine(): k = 1 - cos(πt/2): slow at first; common for masked image and text models" in lines
    assert max(map(len, lines)) <= 120


def test_a_component_without_a_docstring_is_printed_without_a_summary():
    @dataclass(frozen=True)
    class Mine(Source):
        def token_probs(self):
            return torch.full((self.vocab.size,), 1 / self.vocab.size)

    assert f"  source      {Mine(VOCAB)}" in str(Flow(Mine(VOCAB))).splitlines()


def test_the_repr_of_a_flow_is_a_constructor_call():
    flow = Flow(Mask(VOCAB), Cosine())
    assert repr(flow).startswith("Flow(source=Mask(vocab=Vocab(data=3, masks=2)), schedule=Cosine(), ")
    assert "\n" not in repr(flow)


def test_a_bag_of_words_prints_its_frequencies_in_short():
    source = BagOfWords(Vocab(1000), (0.001,) * 1000)
    assert str(source) == "BagOfWords(vocab=Vocab(data=1000, masks=0), 1000 frequencies from 0.001 to 0.001)"


def test_the_parts_of_a_printed_flow_stand_in_one_column():
    _, *lines = str(Flow(Uniform(VOCAB), coupling=SinkhornOT(SquaredEmbedding()))).splitlines()
    assert [line[:14].strip() for line in lines].count("") == 1  # what does not fit in a line is in the next
    assert all(line[:2] == "  " and line[13] == " " and line[14] != " " for line in lines)
