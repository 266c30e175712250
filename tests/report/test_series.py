"""Columns of metrics as series over training steps."""

import json

import numpy as np
import pytest
from run_folders import step

from hopflow.report.numbers import MetricColumn


def test_a_short_column_has_one_point_per_value():
    series = MetricColumn.of([step(i, loss=float(i * i)) for i in (0, 10, 20)], "loss").series()
    assert series.steps.tolist() == [1, 11, 21]
    assert series.mean.tolist() == [0, 100, 400]
    assert not series.is_thinned


def test_a_long_column_is_thinned_and_keeps_its_mean_and_its_extremes():
    values = np.random.default_rng(0).normal(size=100_001)
    series = MetricColumn(np.arange(100_001.0), values, 0).series(600)
    assert len(series.steps) == 600
    assert series.count == 100_001
    assert series.low.min() == values.min()
    assert series.high.max() == values.max()
    sizes = np.diff(np.linspace(0, 100_001, 601).astype(int))
    assert (series.mean * sizes).sum() == pytest.approx(values.sum())


def test_a_point_of_a_single_value_has_an_unknown_error():
    series = MetricColumn(np.arange(5.0), np.array([1.0, 3.0, 5.0, 7.0, 2.0]), 0).series(4)
    assert np.isnan(series.error).tolist() == [True, True, True, False]
    assert series.error[3] == pytest.approx(2.5)


def test_values_that_are_not_finite_are_dropped_and_counted():
    rows = [step(0), step(1, loss=float("nan")), step(2, loss=float("inf")), step(3, loss=None), step(4, loss="high")]
    column = MetricColumn.of(rows, "loss")
    assert column.values.tolist() == [3.0]
    assert column.dropped == 2  # what was never a number is not counted as one


@pytest.mark.parametrize("rows", [[], [step(0)], [step(0, loss=float("nan"))]])
def test_columns_may_have_no_value_or_one(rows):
    column = MetricColumn.of(rows, "loss")
    series = column.series()
    assert len(series.steps) == series.count == len(column.values)
    assert column.trend() is None
    json.dumps(series.as_json(), allow_nan=False)


def test_a_trend_has_the_standard_error_of_each_windows_mean():
    values = np.random.default_rng(1).normal(size=64)
    trend = MetricColumn(np.arange(64.0), values, 0).trend()
    first = values[:8]
    assert len(trend.steps) == 8
    assert trend.mean[0] == pytest.approx(first.mean())
    assert trend.error[0] == pytest.approx(first.std(ddof=1) / np.sqrt(8))
