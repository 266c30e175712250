"""What is known of a run, from the files that it has."""

import pytest

from hopflow.report.looks import looks
from hopflow.report.story import Story, named
from run_folders import LOOK, bound, make, step


def test_a_whole_folder_is_told_whole(tmp_path):
    recipe = {"batch": 16, "length": 64, "steps": 30}
    files = {"metrics": [step(9), step(19, **LOOK)], "rows": [bound()], "samples": ["one", "two"], "recipe": recipe}
    story = Story.load(make(tmp_path / "first", **files))
    assert story.name == "first"
    assert story.steps == 20
    assert story.tokens == 20 * 16 * 64
    assert [row.quantity for row in story.rows] == ["b0"]
    assert [sample["text"] for sample in story.samples] == ["one", "two"]
    assert [str(look) for look in looks(story, "b0")] == ["20.00 ± 0.50 (n = 64)"]
    assert story.missing == ("checkpoint (network weights)",)


def test_what_a_folder_lacks_is_empty_and_named(tmp_path):
    story = Story.load(make(tmp_path / "bare", metrics=[step(0)]))
    assert story.rows == story.samples == looks(story, "b0") == []
    assert story.tokens is None
    assert [what.partition(" ")[0] for what in story.missing] == [
        "recipe.json",
        "eval.json",
        "samples.jsonl",
        "checkpoint",
    ]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a run"):
        Story.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Story.load(tmp_path / "nowhere")


def test_an_evaluation_that_cannot_be_read_or_is_of_another_recipe_is_left_out_and_named(tmp_path):
    folder = make(tmp_path, metrics=[step(0)], recipe={"seed": 0}, rows=[bound(recipe_hash="of another run")])
    story = Story.load(folder)
    assert story.rows == []
    assert any("all its rows speak of another recipe" in what for what in story.missing)
    (folder / "eval.json").write_text("{")
    assert any("cannot be read" in what for what in Story.load(folder).missing)


def test_lines_that_were_cut_off_are_left_out(tmp_path):
    folder = make(tmp_path, metrics=[step(0)], samples=["whole"])
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"step": 9, "text": "cut\n[1]\n{"step": 9}\n')
    assert [sample["text"] for sample in Story.load(folder).samples] == ["whole"]


def test_looks_that_found_no_number_are_left_out(tmp_path):
    rows = [step(0, **LOOK), step(1, **{**LOOK, "b0_ppl": float("nan")}), step(2, **{**LOOK, "b0_se": None})]
    story = Story.load(make(tmp_path, metrics=rows))
    assert [look.step for look in looks(story, "b0")] == [1]


def test_runs_are_named_by_as_much_of_their_path_as_tells_them_apart(tmp_path):
    a, b, c = tmp_path / "x" / "run", tmp_path / "y" / "run", tmp_path / "y" / "other"
    assert named([a, c]) == ["run", "other"]
    assert named([a, b]) == ["x/run", "y/run"]
    with pytest.raises(ValueError, match="twice"):
        named([a, a])
