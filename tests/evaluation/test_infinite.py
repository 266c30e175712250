"""Infinite bounds: reported with a plain remark by eval, compare and report, and never as Infinity in JSON."""

import json
import math
from dataclasses import replace

import pytest
import torch
from run_folders import bound, make

import hopflow as hf
from hopflow.bounds.estimate import Estimate, plus_minus
from hopflow.cli.output import write_json
from hopflow.evaluation import record
from hopflow.evaluation.compare import Comparison
from hopflow.evaluation.compare_table import page as compared
from hopflow.evaluation.rows import Row
from hopflow.evaluation.table import page
from hopflow.report import write as write_report

VOCAB = hf.Vocab(5, 1)
X1 = torch.arange(40).view(8, 5) % 3 + 1  # tokens 1 to 3
X1[:2, 0] = 0


def without_token_0(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A network that gives the token 0 probability 0."""
    logits = torch.zeros(*xt.shape, VOCAB.data)
    logits[..., 0] = -math.inf
    return logits


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    keys = {"gen": False, "steps": (4,), "eta": (0.0,), "seconds": 600.0}
    return hf.evaluate(without_token_0, hf.Flow(hf.Mask(VOCAB)), X1, **keys)


def test_an_infinite_reversal_bound_is_shown_without_a_note_on_its_paths():
    keys = {"gen": False, "steps": (4,), "eta": (0.0,), "seconds": 600.0, "paths": 4}
    found = hf.evaluate(without_token_0, hf.Flow(hf.Uniform(hf.Vocab(VOCAB.data))), X1, **keys)
    assert {row.value for row in found if row.quantity == "br"} == {math.inf}
    text = page(found)
    assert text.count("br is infinite") == 1  # for one path and for four
    assert "effective paths" not in text


def strict(text: str) -> dict:
    """JSON as other programs read it."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_an_infinite_bound_is_a_row_that_counts_its_sequences(rows):
    found = [row for row in rows if row.unit == "ppl"]
    assert {row.quantity for row in found} == {"b0", "bn"}
    for row in found:
        assert row.value == math.inf
        assert math.isnan(row.stderr)
        assert row.more["infinite"] == 2
        assert row.more["stopped"] != "seconds"  # more draws change nothing
        assert row.remark == f"{row.quantity} is infinite: the network gives probability 0 to 2 of 8 sequences"


def test_an_infinite_bound_is_written_as_strict_json_and_read_back(rows, tmp_path):
    record.keep(tmp_path, rows)
    content = strict((tmp_path / record.FILE).read_text())
    assert {row["value"] for row in content["rows"]} == {None}
    again = record.read(tmp_path)
    assert [row.as_json() for row in again] == [row.as_json() for row in rows]
    assert {row.value for row in again} == {math.inf}
    record.keep(tmp_path, again)
    write_json(tmp_path / "out.json", {"rows": [row.as_json() for row in rows]})
    strict((tmp_path / "out.json").read_text())
    assert page(again) == page(rows) == (tmp_path / record.PAGE).read_text()


@pytest.mark.parametrize("width", [None, 80])
def test_the_table_and_the_first_line_say_so(rows, width):
    said = page(rows, width=width)
    assert said.startswith("x1: infinite bits per token" if width else "# Evaluation")
    assert "the network gives probability 0 to 2 of 8 sequences" in " ".join(said.split())
    assert "nan" not in said
    assert "at most infinite" not in said


def test_a_value_that_is_infinite_without_a_reason_is_still_refused(rows):
    with pytest.raises(ValueError, match="not a finite number"):
        replace(rows[0], more={})
    with pytest.raises(ValueError, match="not a finite number"):
        replace(rows[0], value=math.nan)
    content = rows[0].as_json()
    del content["infinite"]
    with pytest.raises((ValueError, TypeError)):
        Row.from_json(content)


def test_a_perplexity_beyond_all_floats_is_infinite():
    huge = Estimate("b0", 1e6, 1.0, 0.1, 4, 8, 0.0, True, 1, each=(1e6,) * 4)
    assert huge.ppl == math.inf
    assert math.isnan(huge.ppl_stderr)
    assert huge.infinite == 0
    assert plus_minus(huge.ppl, huge.ppl_stderr) == "infinite"


def infinite(**more: object) -> dict:
    return {**bound("b0", 1.0, 0.0, **more), "value": None, "stderr": None, "infinite": 3, "nats": None}


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_compare_and_report_show_it_without_a_difference(tmp_path, places):
    folders = [
        make(tmp_path / name, rows=[infinite() if place in places else bound("b0"), bound("bn", steps=8)])
        for place, name in enumerate(("one", "two"))
    ]
    found = Comparison.of(folders)
    said = " ".join(compared(found, width=100).split())
    assert "infinite" in said
    assert "b0 is infinite: the network gives probability 0 to 3 of" in said
    assert not [line for line in found.lines if line.differences and line.place["quantity"] == "b0"]
    assert [line for line in found.lines if line.differences and line.place["quantity"] == "bn"]
    strict(json.dumps(found.as_json(), allow_nan=False))
    page = write_report(folders, tmp_path / "report")
    assert "the network gives probability 0 to 3 of" in page.read_text()
    strict((tmp_path / "report" / "report.json").read_text())
    for folder in folders:
        write_report(folder)
