"""The bench of the pairing pipeline runs and says what it measured; its figures are no test's business."""

import math

import pytest

from hopflow.bench.pairs import pairing_cost


@pytest.mark.parametrize("kind", ["rest", "load"])
def test_steps_are_timed_alone_and_with_pairs(kind):
    row = pairing_cost(
        kind, n=16, updates=2, length=4, width=4, tokens=20, step_seconds=0.001, steps=9, blocks=2, workers=0
    )
    assert row["steps"] == 9
    assert f"{kind} of 1 ms" in row["what"]
    assert all(row[key] > 0 for key in ("seconds_plain", "seconds_paired", "seconds_pairing", "seconds_solved"))
    assert row["slowdown"] == pytest.approx(row["seconds_paired"] / row["seconds_plain"] - 1)
    assert math.isfinite(row["slowdown"])
