"""A checkpoint is complete or absent, and a damaged one is found."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import socket
import tempfile
import time
import warnings
from pathlib import Path

import pytest
import torch

from hopflow.runs import checkpoint
from hopflow.runs.checkpoint import Checkpoint, DamagedFile
from hopflow.runs.pretrained import newest


def example(step: int, size: int = 200) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {"a": torch.randn(size, generator=generator), "b.c": torch.arange(step, step + 5)}
    return Checkpoint(step, {"model": weights, "pairs": {}}, {"seconds": 1.5}, lambda sha256: sha256)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.step, one.facts) == (other.step, other.facts) and all(
        torch.equal(tensor, other.groups[group][name])
        for group, tensors in one.groups.items()
        for name, tensor in tensors.items()
    )


def test_a_saved_checkpoint_is_loaded_unchanged(tmp_path):
    checkpoint.save(tmp_path, example(7))
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert same(found, example(7))


def test_the_newest_checkpoint_is_loaded_and_older_ones_are_pruned(tmp_path):
    for step in (5, 900, 10_000_000_000, 20):
        checkpoint.save(tmp_path, example(step))
    checkpoint.prune(tmp_path, 2)
    assert checkpoint.latest(tmp_path).step == 10_000_000_000
    assert len(list(tmp_path.iterdir())) == 2


def test_the_best_checkpoint_is_kept_in_addition_to_the_newest(tmp_path):
    for step in (1, 2, 3, 4, 5):
        checkpoint.save(tmp_path, example(step))
    checkpoint.prune(tmp_path, 2, best=2)
    assert checkpoint.steps(tmp_path) == [2, 4, 5]
    checkpoint.prune(tmp_path, 2, best=4)
    assert checkpoint.steps(tmp_path) == [4, 5]
    assert checkpoint.folder_of(tmp_path, 4).is_dir()


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "missing") is None


def test_saving_the_same_step_again_leaves_an_intact_checkpoint_unchanged(tmp_path):
    folder = checkpoint.save(tmp_path, example(3))
    before = (folder / "state.json").stat().st_mtime_ns
    checkpoint.save(tmp_path, example(3))
    assert (folder / "state.json").stat().st_mtime_ns == before


def test_saving_over_a_damaged_checkpoint_replaces_it(tmp_path):
    folder = checkpoint.save(tmp_path, example(3))
    (folder / "model.safetensors").write_bytes(b"")
    checkpoint.save(tmp_path, example(3))
    assert same(checkpoint.load(folder), example(3))


def damage(file: Path, how: str, dice: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = dice.randrange(len(data))
    if how == "flip":
        data[at] ^= 1 << dice.randrange(8)
    elif how == "truncate":
        del data[at:]
    elif how == "zero":
        end = min(len(data), at + dice.randrange(1, 64))
        if not any(data[at:end]):
            data[at] ^= 1
        data[at:end] = bytes(end - at) if any(data[at:end]) else data[at:end]
    elif how == "grow":
        data += b"\n"
    elif how == "pickle":
        data = bytearray(pickle.dumps({"weights": [1, 2, 3]}))
    file.write_bytes(data)


def mutate(home: Path, count: int, seed: int) -> None:
    """Damage one file of a fresh newest checkpoint, `count` times; each must be found, and the older one used."""
    dice = random.Random(seed)
    checkpoint.save(home, example(1))
    for number in range(count):
        folder = checkpoint.save(home, example(2))
        file = dice.choice(sorted(folder.iterdir()))
        before = file.read_bytes()
        damage(file, dice.choice(["flip", "truncate", "zero", "grow", "pickle"]), dice)
        assert file.read_bytes() != before, number
        with pytest.warns(RuntimeWarning, match="loading the previous checkpoint"):
            assert checkpoint.latest(home).step == 1, (number, file)
        checkpoint._discard(folder)


def test_every_damage_is_found_and_the_checkpoint_before_it_is_used(tmp_path):
    mutate(tmp_path, 100, seed=0)


@pytest.mark.torture
def test_a_thousand_damages_are_found(tmp_path, tries):
    mutate(tmp_path, 1000, seed=1)
    tries["damages"] += 1000


def test_a_pickle_inside_a_consistent_folder_is_refused_and_never_run(tmp_path):
    folder, canary = checkpoint.save(tmp_path, example(1)), tmp_path / "canary"

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    data = pickle.dumps(Payload())
    (folder / "model.safetensors").write_bytes(data)
    state = json.loads((folder / "state.json").read_text().rsplit("\n", 2)[0])
    state["files"]["model.safetensors"] = {"bytes": len(data), "sha256": checkpoint._digest(data)}
    body = json.dumps(state)
    (folder / "state.json").write_text(f"{body}\n{checkpoint._digest(body.encode())}\n")
    with pytest.raises(DamagedFile, match="not a safetensors file"):
        checkpoint.load(folder)
    assert not canary.exists()


def test_a_state_that_names_a_file_elsewhere_is_refused(tmp_path):
    folder = checkpoint.save(tmp_path, example(1))
    state = json.loads((folder / "state.json").read_text().rsplit("\n", 2)[0])
    state["files"]["../../secret"] = {"bytes": 0, "sha256": ""}
    body = json.dumps(state)
    (folder / "state.json").write_text(f"{body}\n{checkpoint._digest(body.encode())}\n")
    with pytest.raises(DamagedFile, match="outside of its folder"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "1"},
        {"step": -1},
        {"step": True},
        {"facts": {"seconds": "long"}},
        {"facts": {"seconds": [1]}},
        {"facts": 7},
        {"files": ["model.safetensors"]},
        {"files": {"model.safetensors": {"bytes": "200"}}},
        {"files": {"model.safetensors": None}},
        {"version": "one"},
        {"version": None},
    ],
    ids=str,
)
def test_a_state_file_with_a_correct_hash_and_invalid_content_is_reported_as_damaged(tmp_path, change):
    folder = checkpoint.save(tmp_path, example(1))
    state = json.loads((folder / "state.json").read_text().rsplit("\n", 2)[0])
    body = json.dumps({**state, **change})
    (folder / "state.json").write_text(f"{body}\n{checkpoint._digest(body.encode())}\n")
    with pytest.raises(DamagedFile, match=r"state\.json is damaged"):
        checkpoint.load(folder)


def test_a_state_file_of_a_single_line_is_reported_as_incomplete(tmp_path):
    folder = checkpoint.save(tmp_path, example(3))
    (folder / "state.json").write_text("junk")
    with pytest.raises(DamagedFile, match=r"state\.json is damaged: it is incomplete"):
        checkpoint.load(folder)


def test_checkpoints_beyond_the_one_just_saved_are_set_aside(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, example(step))
    for _ in range(2):  # the name that it gets may be taken
        checkpoint.set_aside(tmp_path, 2)
        assert checkpoint.latest(tmp_path).step == 2
        checkpoint.save(tmp_path, example(4))
    checkpoint.set_aside(tmp_path, 2)
    names = sorted(f.name.partition("step-")[0] + str(int(f.name[-9:])) for f in tmp_path.iterdir())
    assert names == ["1", "2", "damaged-3", "damaged-4"]


def test_a_format_of_the_future_is_named_and_not_passed_over(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, example(1))
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    checkpoint.save(tmp_path, example(2))
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    with pytest.raises(ValueError, match="upgrade hopflow"):
        checkpoint.latest(tmp_path)


def test_where_every_checkpoint_is_damaged_the_error_names_one(tmp_path):
    folder = checkpoint.save(tmp_path, example(1))
    (folder / "state.json").unlink()
    with pytest.warns(RuntimeWarning), pytest.raises(DamagedFile, match=r"state\.json"):
        checkpoint.latest(tmp_path)


class FullDisk:
    """The disk is full from the n-th call that could need room; `calls` counts them."""

    def __init__(self, monkeypatch, full_from: int | None) -> None:
        self.calls, self.full_from = 0, full_from
        for owner, name in ((checkpoint, "_write"), (os, "fsync"), (Path, "mkdir"), (Path, "rename")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, real):
        def call(*args, **options):
            self.calls += 1
            if self.full_from is not None and self.calls > self.full_from:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call


def test_a_full_disk_at_any_write_keeps_the_old_checkpoint_and_says_what_is_needed(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, example(1))
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, None)
        checkpoint.save(tmp_path, example(2))
        boundaries = disk.calls
    assert boundaries > 10
    checkpoint._discard(tmp_path / "step-000000002")
    for at in range(1, boundaries - 1):  # the last one makes the rename durable: the new checkpoint exists by then
        with monkeypatch.context() as patch:
            FullDisk(patch, at)
            with pytest.raises(OSError, match="bytes needed"):
                checkpoint.save(tmp_path, example(2))
        assert checkpoint.latest(tmp_path).step == 1, at
        assert [f.name for f in tmp_path.iterdir()] == ["step-000000001"], at


def test_a_write_that_stops_half_way_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, example(1))

    def half(file: Path, data: bytes) -> None:
        file.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", half)
    with pytest.raises(OSError, match="bytes needed"):
        checkpoint.save(tmp_path, example(2))
    assert checkpoint.latest(tmp_path).step == 1
    assert [f.name for f in tmp_path.iterdir()] == ["step-000000001"]


def kill_while_saving(home: Path, kills: int, seed: int) -> None:
    """Fork, save in the child, kill it at a moment spread over the save; one whole checkpoint must always be there."""
    checkpoint.save(home, example(0, size=20_000))
    started = time.perf_counter()
    checkpoint.save(home, example(1, size=20_000))
    took, dice, cut = time.perf_counter() - started, random.Random(seed), 0
    for step in range(2, kills + 2):
        child = os.fork()
        if child == 0:
            checkpoint.save(home, example(step, size=20_000))
            checkpoint.prune(home, 2)
            os._exit(0)
        time.sleep(dice.random() * 1.5 * took)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        cut += os.WIFSIGNALED(status)
        checkpoint.clean(home)
        found = checkpoint.latest(home)
        assert same(found, example(found.step, size=20_000))
        assert all(f.name.startswith("step-") for f in home.iterdir())
        checkpoint.prune(home, 2)
        assert same(checkpoint.latest(home), found)
    assert cut > kills // 4, "most saves were over before the kill: it was not spread over them"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_while_saving_leaves_a_complete_checkpoint_and_no_temporary_files(tmp_path):
    kill_while_saving(tmp_path, 20, seed=0)


@pytest.mark.torture
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_hundred_kills_while_saving_each_leave_a_complete_checkpoint(tmp_path, tries):
    kill_while_saving(tmp_path, 200, seed=1)
    tries["kills"] += 200


SPECIAL = {
    "a pipe": lambda file: os.mkfifo(file),
    "a socket": lambda file: listening(file),
    "a folder": lambda file: file.mkdir(),
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a link to nothing": lambda file: file.symlink_to("nowhere"),
    "a huge file": lambda file: os.truncate(os.open(file, os.O_WRONLY | os.O_CREAT), 1 << 40),
    "half of a file": lambda file: file.write_bytes(b"{"),
}


def listening(file: Path) -> None:
    # a path of more than 107 characters is no address
    with tempfile.TemporaryDirectory(prefix="s") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        shutil.move(f"{folder}/s", file)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "config.json"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_huge_or_half_written_file_is_named_and_the_checkpoint_before_it_is_used(tmp_path, kind, name):
    checkpoint.save(tmp_path, example(1))
    file = checkpoint.save(tmp_path, example(2)) / name
    file.unlink()
    SPECIAL[kind](file)
    with pytest.warns(RuntimeWarning, match=rf"{name} (is damaged|cannot be read)") as said:
        assert checkpoint.latest(tmp_path).step == 1
    assert len(said) == 1
    assert checkpoint.newest_facts(tmp_path) == example(1).facts
    checkpoint.save(tmp_path, example(2))
    assert same(checkpoint.latest(tmp_path), example(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000002"]


@pytest.mark.parametrize("kind", [kind for kind in SPECIAL if kind != "a folder"])
def test_a_file_with_the_name_of_a_checkpoint_is_not_listed_and_is_replaced_by_saving(tmp_path, kind):
    checkpoint.save(tmp_path, example(1))
    SPECIAL[kind](tmp_path / "step-000000002")
    assert checkpoint.steps(tmp_path) == [1]
    checkpoint.save(tmp_path, example(2))
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert same(checkpoint.latest(tmp_path), example(2))


@pytest.mark.parametrize("name", ["step-²", "step-٣", "step-", "step-x", "step--1", "step-1_0", "step-5.bak"])
def test_a_folder_with_a_number_in_no_ascii_digits_is_not_a_checkpoint(tmp_path, name):
    checkpoint.save(tmp_path / "checkpoints", example(1))
    (tmp_path / "checkpoints" / name).mkdir()
    assert checkpoint.steps(tmp_path / "checkpoints") == [1]
    assert checkpoint.latest(tmp_path / "checkpoints").step == 1
    assert newest(tmp_path) == checkpoint.folder_of(tmp_path / "checkpoints", 1)
    checkpoint.prune(tmp_path / "checkpoints", 1)
    assert (tmp_path / "checkpoints" / name).is_dir()


def test_checkpoints_are_ordered_by_their_number_not_by_their_name(tmp_path):
    for step in (999_999_999, 1_000_000_000):
        checkpoint.save(tmp_path / "checkpoints", example(step))
    assert checkpoint.steps(tmp_path / "checkpoints") == [999_999_999, 1_000_000_000]
    assert newest(tmp_path).name == "step-1000000000"


def test_a_reader_of_a_checkpoint_that_is_pruned_meanwhile_takes_the_newer_one(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, example(1))
    real, pruned = checkpoint._verified, []

    def meanwhile(file, facts):
        if not pruned:
            pruned.append(file)
            checkpoint.save(tmp_path, example(2))
            checkpoint.prune(tmp_path, 1)
        return real(file, facts)

    monkeypatch.setattr(checkpoint, "_verified", meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(checkpoint.latest(tmp_path), example(2))
        assert checkpoint.newest_group(tmp_path, "model").keys() == {"a", "b.c"}
        assert checkpoint.newest_group(tmp_path, "missing") is None


def test_pruning_ignores_a_checkpoint_that_another_process_has_removed(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(tmp_path, example(step))
    monkeypatch.setattr(checkpoint, "step_folders", lambda home: [home / "step-000000000", home / "step-000000002"])
    checkpoint.prune(tmp_path, 1)
    assert (tmp_path / "step-000000002").is_dir()
