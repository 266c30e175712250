"""The rows and the table of hops and transport costs."""

import torch

import hopflow as hf
from hopflow.evaluation import transport_rows
from hopflow.evaluation.evaluated_model import EvaluatedModel
from hopflow.evaluation.sets import TextSet
from hopflow.evaluation.transport_rows import TransportEvaluation
from hopflow.evaluation.transport_table import transport_table
from hopflow.sampling.samplers import Euler


def test_rows_with_labels_are_paired_within_their_label_and_hops_are_named(monkeypatch):
    groups = []

    def noted(*arguments, **options):
        groups.append((arguments[2], options["group"]))
        return computed(*arguments, **options)

    computed = transport_rows.transport_costs
    monkeypatch.setattr(transport_rows, "transport_costs", noted)
    flow = hf.Flow(hf.Uniform(hf.Vocab(5)), coupling=hf.ExactOT(hf.Hamming()))
    model = hf.Transformer(flow.vocab, "micro", labels=2)
    x1 = torch.randint(5, (16, 4), generator=torch.Generator().manual_seed(0))
    labels = x1[:, 0] % 2  # so that a row tells its label
    evaluated = EvaluatedModel(model, flow, recipe={"ot_batch": 8})
    rows = list(
        TransportEvaluation(n=4, sampler=Euler(2)).rows(evaluated, TextSet("t", x1, labels=labels), lambda _: None)
    )
    ((shuffled, group),) = groups
    assert group.tolist() == (shuffled[:, 0] % 2).tolist()
    _, lines, _ = transport_table(rows, full=False)
    assert [line[0] for line in lines] == ["hops (Hamming)", "squared embedding", "embedding"]
