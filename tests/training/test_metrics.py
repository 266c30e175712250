"""Metrics of a run that stops and goes on."""

import csv
import json

import pytest

from hopflow.training.metrics import COLUMNS, Metrics, read


def test_a_row_is_a_json_line_and_a_csv_line(tmp_path):
    with Metrics(tmp_path, 0) as metrics:
        metrics.add({"step": 0, "loss": 1.5, "ot_cost": 3.0, "extra": 1})
        metrics.add({"step": 1, "loss": 1.25})
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": 0, "loss": 1.5, "ot_cost": 3.0, "extra": 1},
        {"step": 1, "loss": 1.25},
    ]
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["1.5", "1.25"]
    assert tuple(rows[0]) == COLUMNS


def test_rows_after_the_checkpoint_are_written_anew(tmp_path):
    with Metrics(tmp_path, 0) as metrics:
        for step in range(10):
            metrics.add({"step": step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')  # cut off by a kill
    with Metrics(tmp_path, 5) as metrics:
        metrics.add({"step": 5, "loss": 2.0})
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_never_reaches_a_report(tmp_path, bad):
    with Metrics(tmp_path, 0) as metrics, pytest.raises(ValueError, match="loss"):
        metrics.add({"step": 3, "loss": bad})
    assert read(tmp_path / "metrics.jsonl") == []


def test_lines_that_are_no_rows_end_the_reading(tmp_path):
    (tmp_path / "m").write_text('{"step": 0}\n[1]\n{"step": 1}\n')
    assert read(tmp_path / "m") == [{"step": 0}]
    (tmp_path / "m").write_text(json.dumps({"loss": 1}))
    assert read(tmp_path / "m") == []


@pytest.mark.parametrize(
    "rest", [b"\x00" * 40, b"\xff\xfe\xc3", b"[" * 50_000, b'{"step": "x"}\n', b"7\n"], ids=lambda rest: repr(rest[:8])
)
def test_what_a_power_cut_leaves_of_the_last_lines_is_left_out(tmp_path, rest):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "loss": 1.0}\n' + rest)
    assert read(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 1.0}]
