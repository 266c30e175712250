"""Rows: complete, the same after JSON, and never lost when others are added."""

import json
import math
from dataclasses import replace

import pytest

from hopflow.evaluation import per_sequence, record
from hopflow.evaluation.rows import NAMES, Row, merged

ROW = Row(
    run="runs/a",
    set="held-out",
    quantity="b0",
    value=12.5,
    stderr=0.25,
    n=64,
    unit="ppl",
    is_bound=True,
    eta=0.0,
    dtype="float32",
    recipe_hash="0123456789abcdef",
    more={
        "sampler": "η = 0, continuous time",
        "steps": None,
        "seed": 0,
        "checkpoint": 300,
        "weights": "average",
        "nats": 2.0,
        "nats_stderr": 0.5,
        "nats_draw_stderr": 0.4,
        "nats_sequence_stderr": 0.3,
        "of": 64,
        "length": 16,
    },
)


def other(**changes) -> Row:
    own = {key: value for key, value in changes.items() if key in NAMES}
    more = {key: value for key, value in changes.items() if key not in NAMES}
    return replace(ROW, **own, more={**ROW.more, **more})


def test_a_row_has_the_names_of_the_one_row_type_first():
    names = ["run", "set", "quantity", "value", "stderr", "n", "unit", "is_bound", "eta", "dtype", "recipe_hash"]
    assert list(ROW.as_json())[: len(names)] == names
    assert ROW.as_json()["sampler"] == "η = 0, continuous time"


@pytest.mark.parametrize("row", [ROW, other(eta=None, recipe_hash=None, value=2.0)])
def test_a_row_is_the_same_after_json(row):
    assert Row.from_json(json.loads(json.dumps(row.as_json(), allow_nan=False))) == row


def test_the_unknown_error_of_one_sequence_is_null_in_json_and_a_question_mark_in_text():
    row = other(n=1, stderr=math.nan)
    assert row.as_json()["stderr"] is None
    again = Row.from_json(json.loads(json.dumps(row.as_json(), allow_nan=False)))
    assert math.isnan(again.stderr)
    assert "b0 12.5 ± ? ppl (n=1" in str(row)
    older = Row.from_json({**row.as_json(), "stderr": 0.0})  # written by earlier versions
    assert math.isnan(older.stderr)
    assert Row.from_json({**ROW.as_json(), "stderr": 0.0}).stderr == 0.0


def test_json_that_is_no_row_is_refused_by_what_it_lacks():
    content = ROW.as_json()
    del content["is_bound"], content["n"]
    with pytest.raises(ValueError, match="a row has no n, is_bound"):
        Row.from_json(content)


@pytest.mark.parametrize("changes", [{"value": float("inf")}, {"stderr": float("nan")}])
def test_a_row_with_nan_or_infinity_is_refused(changes):
    with pytest.raises(ValueError, match=r"b0 on held-out is .*: not a finite number"):
        other(**changes)


def test_a_field_of_row_is_refused_in_more():
    with pytest.raises(ValueError, match="value is a field of Row"):
        replace(ROW, more={"value": 3})


DIFFERENT = [
    {"set": "ptb"},
    {"quantity": "b1"},
    {"eta": 1.0},
    {"steps": 32},
    {"temperature": 0.9},
    {"coupling": "ExactOT"},
    {"ot_n": 64},
    {"eps": 0.1},
    {"cost": "Hamming"},
    {"judge_hash": "ab"},
    {"retokenised": False},
    {"detokenised": "words"},
    {"data_sha256": "ff"},
    {"length": 32},
    {"checkpoint": 600},
    {"weights": "last"},
    {"dtype": "bfloat16"},
    {"recipe_hash": "f" * 16},
    {"seed": 1},
    {"sampler_label": "random order"},
]


def test_rows_of_different_numbers_are_all_kept():
    rows = [ROW, *(other(**changes) for changes in DIFFERENT)]
    assert merged(rows[:7], rows[4:]) == rows


def test_of_two_estimates_of_one_number_the_one_from_more_stays():
    more, less = other(n=128, value=12.0, stderr=0.5), other(n=32, value=13.0, stderr=0.01)
    again = other(value=12.6, stderr=0.5)
    assert merged([ROW], [more]) == [more]
    assert merged([ROW], [less]) == [ROW]
    assert merged([ROW], [again]) == [again]


def test_a_second_evaluation_adds_to_the_folder_and_loses_nothing(tmp_path):
    assert record.read(tmp_path) == []
    first, second = [ROW, other(quantity="b1", eta=1.0)], [other(set="ptb"), other(n=128)]
    record.keep(tmp_path, first)
    assert record.read(tmp_path) == first
    whole = record.keep(tmp_path, second, ["no bk: because"])
    assert record.read(tmp_path) == whole == [other(n=128), first[1], second[0]]
    page = (tmp_path / "eval.md").read_text()
    assert "## held-out, step 300" in page
    assert "## ptb, step 300" in page
    assert page.endswith("No bk: because.\n")
    assert {f.name for f in tmp_path.iterdir()} == {"eval.json", "eval.md", ".eval.lock"}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "hopflow evaluation", "version": 1, "rows": [{"run": 1}]}', '{"format": "x"}', "null"],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, content):
    (tmp_path / "eval.json").write_text(content)
    with pytest.raises(ValueError, match=r"eval\.json cannot be read: (.|\n)*move it away to start a new one"):
        record.keep(tmp_path, [ROW])
    assert (tmp_path / "eval.json").read_text() == content


def test_a_file_of_a_newer_hopflow_is_not_overwritten(tmp_path):
    (tmp_path / "eval.json").write_text('{"format": "hopflow evaluation", "version": 2, "rows": []}')
    with pytest.raises(ValueError, match="its version is 2, and this hopflow reads up to 1"):
        record.keep(tmp_path, [ROW])


def test_values_per_sequence_are_stored_and_removed_with_their_rows(tmp_path):
    one, two = replace(ROW, each=(1.0, 2.0)), replace(ROW, quantity="b1", each=(3.0,))
    record.keep(tmp_path, [one])
    record.keep(tmp_path, [two])
    kept = {name: value.tolist() for name, value in per_sequence.read(tmp_path).items()}
    assert kept == {per_sequence.name(one): [1.0, 2.0], per_sequence.name(two): [3.0]}
    record.keep(tmp_path, [replace(ROW, each=(5.0, 6.0))])  # the newer of two estimates of one number
    assert per_sequence.read(tmp_path)[per_sequence.name(one)].tolist() == [5.0, 6.0]
    (tmp_path / per_sequence.FILE).write_bytes(b"damaged")
    record.keep(tmp_path, [two])
    assert per_sequence.read(tmp_path).keys() == {per_sequence.name(two)}
    assert len(record.read(tmp_path)) == 2


def test_a_folder_that_may_not_be_written_to_is_found_before_the_work(tmp_path, monkeypatch):
    record.check(tmp_path)
    monkeypatch.setattr(record.os, "access", lambda folder, how: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="is not writable"):
        record.check(tmp_path)
