"""Words of a command line that are missing, in the wrong place or written as options: the message says what to type."""

from dataclasses import fields

import pytest

from hopflow.cli.train_help import names
from hopflow.recipes import Recipe


def test_the_settings_of_train_are_known_without_importing_them():
    assert set(names()) == {field.name for field in fields(Recipe)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "a.txt", "--steps", "10"], "--steps is a setting, not an option: type steps=10"),
        (["train", "a.txt", "--ot-batch=64"], "--ot-batch is a setting, not an option: type ot_batch=64"),
        (["sample", "RUN", "--n"], "--n is a setting, not an option: type n=VALUE"),
        (["sample", "RUN", "--n", "--watch"], "--n is a setting, not an option: type n=VALUE"),
        (["data", "prepare", "a.txt", "--length", "8"], "--length is a setting, not an option: type length=8"),
        (["config", "show", "text", "--lr", "1"], "--lr is a setting, not an option: type lr=1"),
        (["sample", "RUN", "out=a b.txt"], "out is an option of this command: type --out 'a b.txt'"),
        (["sample", "RUN", "watch=true"], "watch is an option of this command: type --watch"),
        (["compare", "A", "B", "out="], "out is an option of this command: type --out FILE"),
        (["train", "a.txt", "dry-run"], "dry-run is an option of this command: type --dry-run"),
        (["train", "a.txt", "dry_run=1"], "dry_run is an option of this command: type --dry-run"),
    ],
)
def test_settings_and_options_that_are_confused(hopflow, arguments, message):
    result = hopflow(*arguments)
    assert result.code == 2
    assert result.message.splitlines()[0] == f"hopflow: {message}"


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["steps", "10"], "steps=10"),
        (["steps", "=", "10"], "steps=10"),
        (["steps", "=10"], "steps=10"),
        (["steps=", "10"], "steps=10"),
        (["steps"], "steps=VALUE"),
        (["steps", "lr=1"], "steps=VALUE"),
        (["lr=1", "steps=", "a b"], "steps='a b'"),
    ],
)
@pytest.mark.parametrize("command", ["train", "sample"])
def test_a_setting_typed_with_blanks(hopflow, command, arguments, typed):
    if command == "sample":
        arguments, typed = ([word.replace("lr", "eta") for word in arguments], typed)
    result = hopflow(command, "RUN", *arguments)
    assert result.code == 2
    assert result.message.startswith("hopflow: settings are written key=value, got ")
    assert result.message.splitlines()[1] == f"  type {typed}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "n=2", "runs/a b"], "settings come after RUN: type hopflow sample 'runs/a b' n=2"),
        (["train", "steps=10"], "settings come after RECIPE|FILE|RUN: type hopflow train RECIPE|FILE|RUN steps=10"),
        (["train", ""], "RECIPE|FILE|RUN is empty: type hopflow train RECIPE|FILE|RUN"),
        (["data", "prepare", " "], "SOURCE is empty: type hopflow data prepare SOURCE"),
        (["import", "mdlm", ""], "PATH is empty: type hopflow import LAYOUT PATH"),
        (["sample"], "RUN is missing: hopflow sample RUN"),
        (["import", "mdlm"], "PATH is missing: hopflow import LAYOUT PATH"),
        (["bench"], "hopflow bench needs a command: ot, sample, serve, eval or train"),
    ],
)
def test_arguments_that_are_missing_or_in_the_wrong_order(hopflow, arguments, message):
    result = hopflow(*arguments)
    assert result.code == 2
    assert result.message.splitlines()[0] == f"hopflow: {message}"


def test_a_missing_argument_is_explained(hopflow):
    assert "\n  RUN: Folder of a run, a checkpoint or a saved network" in hopflow("sample").message


def test_a_missing_value_of_an_option_names_the_help_of_its_command(hopflow):
    assert "see `hopflow sample --help`" in hopflow("sample", "RUN", "--out").message


def test_a_file_whose_name_looks_like_a_setting_can_be_trained_on(hopflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps=1").write_text("the fox")
    assert "settings come after" not in hopflow("train", "steps=1", "--dry-run").message
