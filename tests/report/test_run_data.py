"""RunData: a run read from the files of its folder."""

import os

import pytest
from run_folders import EVALUATION, bound, make, step

from hopflow.cli.train import sample_of
from hopflow.report.run_data import RunData, logged_evaluations, unique_names


def test_a_complete_folder_is_read_completely(tmp_path):
    recipe = {"batch": 16, "length": 64, "steps": 30}
    files = {
        "metrics": [step(9), step(19, **EVALUATION)],
        "rows": [bound()],
        "samples": ["one", "two"],
        "recipe": recipe,
    }
    run = RunData.load(make(tmp_path / "first", **files))
    assert run.name == "first"
    assert run.steps == 20
    assert run.tokens == 20 * 16 * 64
    assert [row.quantity for row in run.rows] == ["b0"]
    assert [sample["text"] for sample in run.samples] == ["one", "two"]
    assert [str(one) for one in logged_evaluations(run, "b0")] == ["20.00 ± 0.50 (n = 64)"]
    assert run.missing == ("checkpoint (network weights)",)


def test_missing_files_are_empty_fields_and_listed(tmp_path):
    run = RunData.load(make(tmp_path / "bare", metrics=[step(0)]))
    assert run.rows == run.samples == logged_evaluations(run, "b0") == []
    assert run.tokens is None
    assert [what.partition(" ")[0] for what in run.missing] == [
        "recipe.json",
        "eval.json",
        "samples.jsonl",
        "checkpoint",
    ]


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="not a run"):
        RunData.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        RunData.load(tmp_path / "nowhere")


def test_an_evaluation_that_is_damaged_or_of_another_recipe_is_listed_as_missing(tmp_path):
    folder = make(tmp_path, metrics=[step(0)], recipe={"seed": 0}, rows=[bound(recipe_hash="of another run")])
    run = RunData.load(folder)
    assert run.rows == []
    assert any("all its rows belong to another recipe" in what for what in run.missing)
    (folder / "eval.json").write_text("{")
    assert any("cannot be read" in what for what in RunData.load(folder).missing)


def test_incomplete_lines_of_samples_are_skipped(tmp_path):
    folder = make(tmp_path, metrics=[step(0)], samples=["whole"])
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"step": 9, "text": "cut\n[1]\n{"step": 9}\n')
    assert [sample["text"] for sample in RunData.load(folder).samples] == ["whole"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "terabyte"])
def test_samples_that_are_not_a_file_of_usual_size_are_not_read(tmp_path, kind):
    folder = make(tmp_path, metrics=[step(0)], samples=["whole"])
    file = folder / "samples.jsonl"
    file.unlink()
    if kind == "terabyte":
        file.touch()
        os.truncate(file, 1 << 40)
    else:
        os.mkfifo(file) if kind == "pipe" else file.mkdir()
    assert RunData.load(folder).samples == []
    assert sample_of(folder) is None


def test_evaluations_without_a_finite_value_are_skipped(tmp_path):
    rows = [
        step(0, **EVALUATION),
        step(1, **{**EVALUATION, "b0_ppl": float("nan")}),
        step(2, **{**EVALUATION, "b0_se": None}),
    ]
    run = RunData.load(make(tmp_path, metrics=rows))
    assert [one.step for one in logged_evaluations(run, "b0")] == [1]


def test_runs_are_named_by_the_shortest_unique_part_of_their_path(tmp_path):
    a, b, c = tmp_path / "x" / "run", tmp_path / "y" / "run", tmp_path / "y" / "other"
    assert unique_names([a, c]) == ["run", "other"]
    assert unique_names([a, b]) == ["x/run", "y/run"]
    with pytest.raises(ValueError, match="twice"):
        unique_names([a, a])
