"""Older runs can be used: a run folder of the first file format, and one whose files lack newer fields.

`format_1/` was written by the first version: one layer of width 16 on the characters of `fox.txt`, four steps. Never
write it again; a later format gets another folder.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import hopflow as hf
from hopflow.models import Size, Transformer, sizes
from hopflow.recipes import build, resolve
from hopflow.runs import checkpoint, config_file
from hopflow.runs.run_folder import read_recipe

HERE = Path(__file__).parent
REMOVED = {
    "recipe": ("eps", "draw", "predict_x0", "recompute", "save_minutes", "beta2", "adam_eps"),
    "identity": (
        *("eps", "draw", "beta2", "adam_eps", "masks"),
        *("flow.coupling.tol", "flow.coupling.max_iterations", "flow.coupling.draw.kind", "flow.schedule.kind"),
    ),
    "model": ("recompute", "predict_x0"),
    "coupling": ("tol", "max_iterations", "draw"),
    "config": ("recipe",),
}
"""Keys that are removed to imitate a file that is older than them; each has its default in the run."""


@pytest.fixture(params=["as it was written", "with newer keys removed"])
def run(request, tmp_path, monkeypatch) -> str:
    """The run in the current directory, with its text, and `size=micro` as small as the run's network."""
    shutil.copytree(HERE / "format_1", tmp_path / "format_1")
    shutil.move(tmp_path / "format_1" / "fox.txt", tmp_path / "fox.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sizes.SIZES, "micro", Size(1, 16, 2))
    if request.param == "with newer keys removed":
        remove_newer_keys(tmp_path / "format_1")
    return "format_1"


def remove_newer_keys(run: Path) -> None:
    recipe = json.loads((run / "recipe.json").read_text())
    for part in ("recipe", "identity"):
        recipe[part] = without(recipe[part], REMOVED[part])
    (run / "recipe.json").write_text(json.dumps(recipe))
    folder = run / "checkpoints" / "step-000000004"
    config = json.loads((folder / "config.json").read_text())
    config["model"] = without(config["model"], REMOVED["model"])
    config["flow"]["coupling"] = without(config["flow"]["coupling"], REMOVED["coupling"])
    del config["flow"]["schedule"], config["recipe"]
    config["sha256"]["config.json"] = config_file.digest(config)
    (folder / "config.json").write_text(json.dumps(config))
    state = json.loads((folder / "state.json").read_text().rsplit("\n", 2)[0])
    data = (folder / "config.json").read_bytes()
    state["files"]["config.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del state["facts"]["threads"]
    body = json.dumps(state)
    (folder / "state.json").write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")


def without(content: dict, keys: tuple[str, ...]) -> dict:
    assert content.keys() >= set(keys)
    return {key: value for key, value in content.items() if key not in keys}


def test_every_file_of_the_checked_in_run_is_intact():
    found = checkpoint.load(HERE / "format_1" / "checkpoints" / "step-000000004")
    assert found.step == 4
    assert set(found.groups) == {"model", "optimizer", "train", "pairs", "ot_ema"}


def test_a_run_of_format_1_is_trained_further_from_python(run):
    before = read_recipe(Path(run))
    built = build(resolve(run, {"steps": 6}))
    result = built.train()
    assert (result.path, result.step) == (Path(run), 6)
    assert checkpoint.steps(Path(run) / "checkpoints") == [6]
    after = read_recipe(Path(run))
    assert after["identity"] == {**before["identity"], "steps": 6}
    assert after["recipe"]["beta2"] == 0.999
    assert result.last["step"] == 5


def test_a_run_of_format_1_is_trained_further_from_the_command_line(run, hopflow):
    result = hopflow("train", run, "steps=6")
    assert result.code == 0, result.err
    assert checkpoint.steps(Path(run) / "checkpoints") == [6]


def test_a_run_of_format_1_ends_with_the_same_weights_with_and_without_newer_keys(run):
    build(resolve(run, {"steps": 5})).train()
    intact = shutil.copytree(HERE / "format_1", "intact", ignore=shutil.ignore_patterns("fox.txt"))
    build(resolve(str(intact), {"steps": 5})).train()
    one, other = (hf.from_pretrained(folder).model.state_dict() for folder in (run, intact))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("changed", ["lr=0.002", "beta2=0.99", "eps=0.5", "draw=permutation", "schedule=cosine"])
def test_a_run_of_format_1_is_not_resumed_with_another_value_of_a_key_it_has_or_lacks(run, hopflow, changed):
    result = hopflow("train", run, "steps=6", changed)
    assert result.code != 0
    assert "contains another run" in result.err
    key, value = changed.split("=")
    assert f"{key}: " in result.err
    assert f"{value} in this command" in result.err
    assert checkpoint.steps(Path(run) / "checkpoints") == [4]


def test_a_network_of_format_1_is_loaded_and_sampled_from_python(run):
    found = hf.from_pretrained(run)
    assert isinstance(found.model, Transformer)
    assert found.flow.coupling.tol == 0.001
    assert found.tokenizer.size == 30
    rows = hf.generate(found.model, found.flow, n=2, length=16, steps=4, seed=0)
    assert rows.tokens.shape == (2, 16)


def test_a_network_of_format_1_is_sampled_from_the_command_line(run, hopflow):
    result = hopflow("sample", run, "n=2", "steps=4")
    assert result.code == 0, result.err
    assert result.out.strip()


def test_a_run_of_format_1_is_evaluated_from_python(run):
    rows = hf.evaluate(run, device="cpu")
    assert {row.quantity for row in rows} >= {"b0", "b1", "bn"}


def test_a_run_of_format_1_is_evaluated_from_the_command_line(run, hopflow):
    result = hopflow("eval", run)
    assert result.code == 0, result.err
    assert "perplexity" in result.out


def test_a_run_of_format_1_is_reported(run, hopflow):
    result = hopflow("report", run)
    assert result.code == 0, result.err
    assert "<html" in (Path(run) / "report.html").read_text()
