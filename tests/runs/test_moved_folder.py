"""A run goes on when its folder is renamed, emptied, deleted or replaced, and others may read it meanwhile."""

import os
import shutil
import threading

import pytest
import torch
from texts import Letters

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.runs import checkpoint, pretrained
from hopflow.runs.metrics import read
from hopflow.runs.run_folder import RunFolder
from hopflow.training import loop
from hopflow.training.train import train

QUICK = {"workers": 0, "log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "warmup": 2, "batch": 8}
STEPS = 8


def run(out, meanwhile=lambda: None, **keys):
    """A training of 8 steps with a checkpoint after each second; `meanwhile` is called once, after the third."""
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=0.1)
    logger = lambda row: meanwhile() if row["step"] == 2 else None  # noqa: E731
    return train(model, flow, corpus, out=out, logger=logger, **{"steps": STEPS, "save_every": 2, **QUICK, **keys})


def losses(folder):
    return [row["loss"] for row in read(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run(folder)
    return losses(folder)


def is_complete(folder, expected) -> bool:
    """All rows, the last checkpoint, and a recipe by which the same call goes on."""
    assert losses(folder) == expected
    assert len((folder / "metrics.csv").read_text().splitlines()) == STEPS + 1
    assert checkpoint.latest(folder / "checkpoints").step == STEPS
    assert run(folder).step == STEPS
    return True


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="a rename is followed by /proc")  # noqa: PTH112
def test_a_run_whose_folder_is_renamed_continues_there(tmp_path, expected, caplog):
    done = run(tmp_path / "run", lambda: (tmp_path / "run").rename(tmp_path / "better name"))
    assert done.path == tmp_path / "better name"
    assert f"was renamed: the run continues in {tmp_path / 'better name'}" in caplog.text
    assert is_complete(tmp_path / "better name", expected)
    assert [folder.name for folder in tmp_path.iterdir()] == ["better name"]


def test_a_run_whose_folder_is_deleted_continues_in_a_new_folder_with_all_its_rows(tmp_path, expected, caplog):
    done = run(tmp_path / "run", lambda: shutil.rmtree(tmp_path / "run"))
    assert done.path == tmp_path / "run"
    assert "run was deleted: the run continues in" in caplog.text
    assert is_complete(tmp_path / "run", expected)


def test_a_run_whose_folder_is_used_by_another_run_continues_in_the_next_free_folder(tmp_path, expected):
    others = []

    def replace():
        shutil.rmtree(tmp_path / "run")
        others.append(RunFolder(tmp_path / "run"))
        others[0].write({"lr": 7}, {"name": "other"})

    done = run(tmp_path / "run", replace)
    others[0].close()
    assert done.path == tmp_path / "run-2"
    assert is_complete(tmp_path / "run-2", expected)
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [".lock", "recipe.json"]


def test_a_run_whose_files_are_deleted_writes_them_again(tmp_path, expected):
    def empty():
        for path in (tmp_path / "run").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert run(tmp_path / "run", empty).path == tmp_path / "run"
    assert is_complete(tmp_path / "run", expected)


def test_a_folder_that_is_deleted_during_a_save_is_made_again(tmp_path, expected, monkeypatch):
    real, deleted = checkpoint._write, []

    def meanwhile(file, data):
        if "step-000000004" in str(file) and not deleted:
            deleted.append(file)
            shutil.rmtree(tmp_path / "run")
        real(file, data)

    monkeypatch.setattr(checkpoint, "_write", meanwhile)
    run(tmp_path / "run")
    assert deleted
    assert is_complete(tmp_path / "run", expected)


def test_rows_are_durable_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """At every save, all of metrics.jsonl and metrics.csv must have been synced to the disk."""
    synced, saves, fsync, save = {}, [], os.fsync, checkpoint.save

    def noted(handle):
        fsync(handle)
        state = os.fstat(handle)
        synced[state.st_ino] = state.st_size

    def checked(home, whole):
        for name in ("metrics.jsonl", "metrics.csv") if whole.step else ():
            state = (tmp_path / name).stat()
            assert synced.get(state.st_ino) == state.st_size, (name, whole.step)
            saves.append(len(read(tmp_path / "metrics.jsonl")) == whole.step)
        return save(home, whole)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(loop.checkpoints, "save", checked)
    run(tmp_path)
    assert saves == [True] * STEPS


def test_one_damaged_metrics_row_does_not_affect_the_other_rows_of_a_resumed_run(tmp_path):
    run(tmp_path, steps=6)
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], "x" + lines[1], *lines[2:]]))
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl: line 2 is damaged and skipped"):
        run(tmp_path)
    assert [row["step"] for row in read(file)] == [0, 2, 3, 4, 5, 6, 7]


def test_a_reader_of_a_run_that_keeps_one_checkpoint_always_gets_a_complete_one(tmp_path):
    """Twenty checkpoints are saved and pruned while two readers load whatever is the newest."""
    run(tmp_path, keep=1, steps=2)
    home, over, failed, read_steps = tmp_path / "checkpoints", threading.Event(), [], set()
    saved = checkpoint.latest(home)
    config = (checkpoint.folder_of(home, 2) / "config.json").read_text()

    def load(reader):
        while not over.is_set():
            try:
                read_steps.add(reader())
            except Exception as error:
                failed.append(error)

    readers = [
        lambda: hf.from_pretrained(tmp_path).folder.name,
        lambda: checkpoint.latest(home).step,
    ]
    threads = [threading.Thread(target=load, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for step in range(3, 23):
        again = checkpoint.Checkpoint(step, saved.groups, saved.facts, lambda sha256: config)
        checkpoint.save(home, again)
        checkpoint.prune(home, 1)
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(read_steps) > 2


def test_a_network_whose_checkpoint_is_pruned_while_it_is_read_comes_from_the_newer_one(tmp_path, monkeypatch):
    run(tmp_path, keep=1, steps=2)
    real, pruned = pretrained.fill, []

    def meanwhile(*given, **more):
        if not pruned:
            pruned.append(True)
            run(tmp_path, keep=1, steps=4)
        return real(*given, **more)

    monkeypatch.setattr(pretrained, "fill", meanwhile)
    assert hf.from_pretrained(tmp_path).folder.name == "step-000000004"


def test_a_checkpoint_that_is_pruned_while_checkpoints_are_listed_does_not_hide_the_newer_one(tmp_path, monkeypatch):
    run(tmp_path, keep=1, steps=2)
    real, pruned = pretrained.step_of, []

    def meanwhile(folder):
        if not pruned:
            pruned.append(folder)
            run(tmp_path, keep=1, steps=4)
        return real(folder)

    monkeypatch.setattr(pretrained, "step_of", meanwhile)
    assert pretrained.newest(tmp_path).name == "step-000000004"
