"""Metrics of a run that stops and goes on."""

import csv
import json
import os

import pytest

from hopflow.runs.metrics import COLUMNS, Metrics, best, read


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


def test_metrics_after_the_checkpoint_are_written_again(tmp_path):
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
def test_a_metric_that_is_not_finite_is_refused_and_not_written(tmp_path, bad):
    with Metrics(tmp_path, 0) as metrics, pytest.raises(ValueError, match="loss"):
        metrics.add({"step": 3, "loss": bad})
    assert read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    "bad",
    [
        *("[1]", '{"loss": 1}', '{"step": "1"}', '{"step": true}', "\x00\x00", '{"step": 1, "lo'),
        f'{{"step": 1, "b0_ppl": {"9" * 400}}}',  # larger than any float
        f'{{"step": {"9" * 400}}}',
    ],
)
def test_a_damaged_metrics_line_is_reported_and_all_other_rows_are_kept_when_the_run_resumes(tmp_path, bad):
    good = [{"step": step, "loss": 1.0} for step in range(40)]
    lines = [json.dumps(row) for row in good]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:7], bad, *lines[7:]]) + "\n")
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl: line 8 is damaged and skipped; it begins with"):
        assert read(tmp_path / "metrics.jsonl") == good
    with pytest.warns(RuntimeWarning, match="line 8"), Metrics(tmp_path, 39) as metrics:
        metrics.add({"step": 39, "loss": 2.0})
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == list(range(40))
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 41


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", '"x"', "[1]", "null"])
def test_an_invalid_value_in_a_metrics_row_does_not_lose_the_row(tmp_path, odd):
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"step": 0, "b0_ppl": {odd}, "loss": 1.5}}\n{{"step": 1, "b0_ppl": 7}}\n'
    )
    assert best(read(tmp_path / "metrics.jsonl"))["step"] == 1
    Metrics(tmp_path, 2).close()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open()]
    assert [(row["step"], row.get("loss")) for row in rows] == [(0, 1.5), (1, None)]


def test_several_bad_lines_are_counted_and_escapes_are_not_printed(tmp_path):
    (tmp_path / "m").write_text('{"step": 0}\n\x1b]0;title\x07\n[1]\n{"step": 1}\n')
    with pytest.warns(RuntimeWarning, match="line 2 and 1 more") as said:
        assert read(tmp_path / "m") == [{"step": 0}, {"step": 1}]
    assert "\x1b" not in str(said[0].message)


@pytest.mark.timeout(10)
def test_a_pipe_in_the_place_of_the_metrics_is_named_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read: it is a named pipe"):
        read(tmp_path / "metrics.jsonl")


def test_rows_are_written_again_where_their_files_were_removed(tmp_path):
    with Metrics(tmp_path, 0) as metrics:
        metrics.add({"step": 0, "loss": 1.0})
        for file in tmp_path.iterdir():
            if file.is_file():
                file.unlink()
        metrics.sync(tmp_path)
        metrics.add({"step": 1, "loss": 1.0})
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [0, 1]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.filterwarnings("ignore:.*damaged and skipped")
@pytest.mark.parametrize(
    "rest", [b"\x00" * 40, b"\xff\xfe\xc3", b"[" * 50_000, b'{"step": "x"}\n', b"7\n"], ids=lambda rest: repr(rest[:8])
)
def test_what_a_power_cut_leaves_of_the_last_lines_is_left_out(tmp_path, rest):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "loss": 1.0}\n' + rest)
    assert read(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 1.0}]
