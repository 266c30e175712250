"""`hopflow report`, and the report that other commands write when they are done."""

import sys

import pytest
from run_folders import EVALUATION, bound, make, step

from hopflow import cli
from hopflow.cli.report import MISSING, SWITCH, write_report_after


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(make(tmp_path / "first", metrics=[step(0, **EVALUATION)], rows=[bound()]))


@pytest.fixture
def reporting(monkeypatch):
    """Commands write reports, as they do outside of tests."""
    monkeypatch.delenv(SWITCH)


def test_one_runs_report_goes_into_its_folder_and_its_path_to_stdout(hopflow, run, tmp_path):
    pytest.importorskip("matplotlib")
    found = hopflow("report", run)
    assert found.code == 0
    assert found.out.strip() == str(tmp_path / "first" / "report.html")
    assert (tmp_path / "first" / "report.html").is_file()


def test_the_report_of_several_runs_goes_to_the_folder_report(hopflow, run, tmp_path):
    pytest.importorskip("matplotlib")
    other = str(make(tmp_path / "second", metrics=[step(0)], rows=[bound(value=18.0)]))
    assert hopflow("report", run, other).out.strip() == "report/report.html"
    assert hopflow("report", run, other, "--out", "there").out.strip() == "there/report.html"
    assert not (tmp_path / "first" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "report needs a run"),
        (("nowhere",), "there is no folder nowhere"),
        ((".",), "not a run"),
        (("first", "first"), "twice"),
    ],
)
def test_a_mistake_is_one_message(hopflow, run, words, said):
    found = hopflow("report", *words)
    assert found.code == 2
    assert said in found.err


def test_without_matplotlib_it_says_what_to_install(hopflow, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = hopflow("report", run)
    assert found.code == 3
    assert found.err.strip().splitlines()[-1].endswith("pip install 'hopflow[report]'")


def test_compare_writes_a_report_and_says_where(hopflow, run, tmp_path, reporting):
    pytest.importorskip("matplotlib")
    other = str(make(tmp_path / "second", rows=[bound(value=18.0)]))
    found = hopflow("compare", run, other)
    assert found.code == 0
    assert "report: report/report.html" in found.err
    assert "side by side" in (tmp_path / "report" / "report.html").read_text().lower()


def test_without_matplotlib_other_commands_say_so_and_succeed(hopflow, run, tmp_path, reporting, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = hopflow("compare", run, str(make(tmp_path / "second", rows=[bound(value=18.0)])))
    assert found.code == 0
    assert found.err.strip() == MISSING


def test_a_report_that_fails_does_not_spoil_the_command_before_it(run, reporting, monkeypatch, capsys):
    pytest.importorskip("matplotlib")

    def fail(*_):
        raise RuntimeError("the disk is full\nand more")

    monkeypatch.setattr("hopflow.report.write", fail)
    assert write_report_after([run]) is None
    assert capsys.readouterr().err == "no report: the disk is full\n"


def test_reports_of_other_commands_can_be_turned_off(run, monkeypatch, capsys):
    monkeypatch.setenv(SWITCH, "off")
    assert write_report_after([run]) is None
    assert capsys.readouterr().err == ""


def test_train_writes_a_report(hopflow, tmp_path, reporting, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the dog sleeps, and who would not? " * 200)
    small = ("steps=3", "length=16", "batch=4", "ot_batch=8", "holdout=0.1", "log_every=1", "eval_rows=2")
    found = hopflow("train", "book.txt", *small, "eval_samples=2", "eval_steps=2", "out=run", "device=cpu")
    assert found.code == 0, found.err
    assert "report: run/report.html" in found.err
    assert "hopflow train book.txt base=text steps=3 batch=4" in (tmp_path / "run" / "report.html").read_text()


def test_help_lists_the_report_command():
    assert "report" in {c.name or c.callback.__name__ for c in cli.app.registered_commands}
