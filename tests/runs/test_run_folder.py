"""A run folder belongs to one process and to one run."""

import multiprocessing
import os
import signal
import time

import pytest

from hopflow.runs.identity import recipe_hash
from hopflow.runs.run_folder import FIGURES, RunFolder, next_free, read_recipe
from hopflow.system import atomic


def settle(path, identity, may_change=frozenset()):
    with RunFolder(path) as folder:
        folder.settle(identity, {"name": "x"}, set(may_change))
    return (path / "recipe.json").read_bytes()


def test_the_same_run_may_be_resumed(tmp_path):
    first = settle(tmp_path / "run", {"lr": 1e-3, "steps": 10})
    assert settle(tmp_path / "run", {"lr": 1e-3, "steps": 10}) == first
    assert read_recipe(tmp_path / "run")["recipe_hash"] == recipe_hash({"steps": 10, "lr": 1e-3})


def test_another_run_is_refused_with_the_keys_that_differ(tmp_path):
    settle(tmp_path, {"lr": 1e-3, "batch": 8, "flow.source.kind": "Mask"})
    with pytest.raises(ValueError, match=r"lr: 0.001 in the folder, 0.002 in this command"):
        settle(tmp_path, {"lr": 2e-3, "batch": 8, "flow.source.kind": "Mask"})
    with pytest.raises(ValueError, match=r"flow.source.kind: Mask in the folder, Uniform in this command"):
        settle(tmp_path, {"lr": 1e-3, "batch": 8, "flow.source.kind": "Uniform"})
    with pytest.raises(ValueError, match="batch: 8 in the folder, nothing in this command"):
        settle(tmp_path, {"lr": 1e-3, "flow.source.kind": "Mask"})


@pytest.mark.parametrize("key", ["labels", "predict_x0"])
def test_a_setting_that_changes_the_network_is_named_rather_than_the_hash_of_its_weights(tmp_path, key):
    with RunFolder(tmp_path) as folder:
        folder.settle({"lr": 1, "model.weights": "ab"}, {"lr": 1, key: None}, set())
    with RunFolder(tmp_path) as folder, pytest.raises(ValueError) as refused:
        folder.settle({"lr": 1, "model.weights": "cd"}, {"lr": 1, key: False}, set())
    assert f"{key}: auto in the folder, False in this command" in str(refused.value)
    assert "model.weights" not in str(refused.value)
    with RunFolder(tmp_path) as folder:  # it may change if the network stays the same
        folder.settle({"lr": 1, "model.weights": "ab"}, {"lr": 1, key: False}, set())


def test_a_setting_that_may_change_is_accepted_and_written_when_the_run_continues(tmp_path):
    first = settle(tmp_path, {"steps": 10})
    assert settle(tmp_path, {"steps": 20}, {"steps"}) == first
    with RunFolder(tmp_path) as folder:
        folder.write({"steps": 20}, {"name": "x"})
    assert read_recipe(tmp_path)["identity"] == {"steps": 20}


def test_the_hash_depends_on_values_and_not_on_their_order():
    assert recipe_hash({"a": 1, "b": 2}) == recipe_hash({"b": 2, "a": 1}) != recipe_hash({"a": 1, "b": 3})


def test_a_folder_with_other_files_is_refused_as_a_run_folder(tmp_path):
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(ValueError, match="not a run"):
        RunFolder(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(NotADirectoryError):
        RunFolder(tmp_path / "run")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "other"}', "[" * 100_000, '{"format": "hopflow run"}'])
def test_a_damaged_recipe_is_named(tmp_path, content):
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        read_recipe(tmp_path)


def test_a_folder_that_is_not_a_run_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="is not a run"):
        read_recipe(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_recipe(tmp_path / "missing")


def test_the_next_free_name_deletes_nothing(tmp_path):
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    assert next_free(tmp_path / "run") == tmp_path / "run-3"
    assert next_free(tmp_path / "new") == tmp_path / "new"


def race(path, start, answers):
    start.wait()
    try:
        folder = RunFolder(path)
    except ValueError:
        answers.put(0)
    else:
        answers.put(1)
        time.sleep(0.2)
        folder.close()


def races(tmp_path, count):
    fork = multiprocessing.get_context("fork")
    for number in range(count):
        start, answers = fork.Event(), fork.Queue()
        rivals = [fork.Process(target=race, args=(tmp_path / str(number), start, answers)) for _ in range(3)]
        for rival in rivals:
            rival.start()
        start.set()
        for rival in rivals:
            rival.join()
        assert sum(answers.get(timeout=10) for _ in rivals) == 1, number


def test_of_several_processes_that_open_one_run_folder_one_wins(tmp_path):
    races(tmp_path, 3)


@pytest.mark.torture
def test_of_processes_that_open_one_run_folder_one_wins_in_fifty_races(tmp_path, tries):
    races(tmp_path, 50)
    tries["races"] += 50


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    child = os.fork()
    if child == 0:
        RunFolder(tmp_path)
        time.sleep(60)
    while not (tmp_path / ".lock").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    with pytest.raises(ValueError, match="another process"):
        RunFolder(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    RunFolder(tmp_path).close()


def test_temporary_files_of_a_killed_writer_are_removed_also_among_the_pictures_of_a_report(tmp_path):
    settle(tmp_path / "run", {"steps": 10})
    left = [
        tmp_path / "run" / f".recipe.json.x{atomic.SUFFIX}",
        tmp_path / "run" / FIGURES / f".loss.svg.x{atomic.SUFFIX}",
    ]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with RunFolder(tmp_path / "run"):
        assert not any(file.exists() for file in left)
