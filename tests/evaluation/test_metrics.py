"""Metrics of samples: the table METRICS, and a metric that a user adds."""

import json

import pytest
import torch
import toys

import hopflow as hf
from hopflow.evaluation import compare_table, metrics, record, table
from hopflow.evaluation.compare import Comparison
from hopflow.evaluation.metrics import METRICS, SampleMetric, Samples, headings, is_shown, measure_samples

FAST = {"rows": 4, "seconds": 0.0, "n": 8, "draws": 2, "paths": 0, "steps": (2,)}


def longest_run(samples: Samples) -> torch.Tensor:
    """Tokens in the longest run of one token, of each sequence."""
    longest = run = torch.ones(len(samples.tokens), dtype=torch.int64)
    for before, after in zip(samples.tokens.T, samples.tokens.T[1:], strict=False):
        run = torch.where(before == after, run + 1, 1)
        longest = torch.maximum(longest, run)
    return longest


LONGEST_RUN = SampleMetric("longest_run", "tokens", longest_run, "longest run")


def evaluated(seed: int = 0, **keys) -> list[hf.Row]:
    torch.manual_seed(seed)
    flow = hf.Flow(hf.Uniform(hf.Vocab(5)))
    model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2), dropout=0.0)
    x1 = torch.randint(5, (8, 6), generator=toys.generator(3))
    return hf.evaluate(model, flow, x1, **FAST, **keys)


def test_a_metric_in_the_table_is_measured_stored_and_shown_everywhere(monkeypatch, tmp_path):
    """Adding an entry to METRICS is all: no other file names it."""
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, LONGEST_RUN))
    for place, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        record.keep(tmp_path / name, evaluated(place, metrics=metrics.METRICS))
    rows = [row for row in record.read(tmp_path / "a") if row.quantity == "longest_run"]
    assert {row.set for row in rows} == {"samples", "x1"}  # of samples and of the text
    assert all(1 <= row.value <= 6 and row.unit == "tokens" for row in rows)
    assert "longest run" in table.page(record.read(tmp_path / "a"))
    found = Comparison.of([tmp_path / "a", tmp_path / "b"])
    assert "longest run" in compare_table.page(found)
    assert "longest_run" in json.dumps(found.as_json())
    report = hf.report.write([tmp_path / "a", tmp_path / "b"], tmp_path / "report").read_text()
    assert "longest_run" in report


def test_a_metric_that_is_passed_to_evaluate_is_shown_under_its_name():
    rows = evaluated(metrics=[*METRICS, LONGEST_RUN])
    shown = table.page(rows, width=80)
    assert "longest_run" in shown
    (one,) = [row for row in evaluated(metrics=LONGEST_RUN, eta=0) if row.set == "samples"]
    assert one.quantity == "longest_run"


def test_the_longest_run_of_known_sequences():
    samples = Samples(torch.tensor([[1, 1, 2, 2, 2, 1], [0, 1, 0, 1, 0, 1]]))
    assert longest_run(samples).tolist() == [3, 1]
    assert LONGEST_RUN.measure(samples).value == 2.0


def test_hops_and_calls_are_not_measured_of_text():
    names = [one.quantity for one in measure_samples(Samples(torch.zeros(3, 8, dtype=torch.int64)))]
    assert names == [metric.quantity for metric in METRICS if not metric.needs_generation]
    assert [metric.quantity for metric in METRICS if metric.needs_generation] == ["jumps", "calls"]


def test_headings_decide_which_metrics_tables_show():
    assert list(headings()) == ["entropy_bits", "distinct_2", "repeated_4", "jumps", "calls"]
    assert is_shown("jumps")
    assert is_shown("a_metric_of_a_newer_version")
    assert not is_shown("recent_16")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.quantity)
def test_every_metric_has_one_finite_number_per_sequence(metric):
    torch.manual_seed(0)
    flow = hf.Flow(hf.Uniform(hf.Vocab(5)))
    out = hf.generate(lambda xt, t: torch.zeros(*xt.shape, 5), flow, n=3, length=12, steps=4)
    values = metric.per_sequence(Samples(out.tokens, out))
    assert values.shape == (3,)
    assert values.isfinite().all()
