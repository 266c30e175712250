"""Differences of two runs on the sequences that both have."""

import math

import pytest
import torch

from hopflow.evaluation import per_sequence
from hopflow.evaluation.rows import Row
from hopflow.evaluation.run_results import RunResults
from hopflow.evaluation.same_sequences import paired_difference


def results(name: str, *values: float, seed: int = 0) -> tuple[RunResults, Row]:
    """A run with one row, the mean of these values."""
    each = torch.tensor(values, dtype=torch.float64)
    more = {"data_sha256": "a", "seed": seed, "length": 4}
    error = float(each.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    row = Row(name, "held-out", "b0", float(each.mean()), error, len(values), "nats", True, 0.0, "float32", None, more)
    return RunResults(name, {("b0",): row}, values={per_sequence.name(row): each}), row


def test_two_shared_sequences_are_enough_for_a_difference_and_its_error():
    found = paired_difference(*results("a", 1.0, 4.0), *results("b", 2.0, 8.0, 90.0))
    assert found == pytest.approx((2.5, 1.5))  # differences of 1 and 4


@pytest.mark.parametrize("other", [results("b", 2.0), results("b", 2.0, 8.0, seed=1)])
def test_one_sequence_and_other_sequences_have_no_paired_difference(other):
    assert paired_difference(*results("a", 1.0, 4.0), *other) is None
