"""Files are complete or absent, whoever writes them at the same time and whenever a writer dies."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

import hopflow as hf
from hopflow.system import atomic


def test_a_written_file_holds_the_new_content_and_leaves_no_neighbour(tmp_path):
    file = tmp_path / "result.json"
    atomic.write(file, b"old")
    atomic.write(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    file = tmp_path / "result.json"
    atomic.write(file, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space.*result\.json"):
        atomic.write(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_followed_not_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    atomic.write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_device_is_written_in_place():
    device = Path(os.devnull)
    atomic.write(device, b"gone")
    assert device.is_char_device()


def forked(work) -> int:
    """The process id of a copy of this process that does `work` and ends with 0, or with 1 if that fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_threads_that_load_one_new_text_all_succeed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    failed = []
    for number in range(25):
        file, together = tmp_path / f"{number}.txt", threading.Barrier(8)
        file.write_text(f"{number} green bottles, hanging on the wall\n" * 60)

        def load(file=file, together=together):
            together.wait()
            try:
                assert hf.data.load(file, length=16).rows > 0
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert list((tmp_path / "cache").rglob("*.tmp")) == []


def test_processes_with_the_same_number_write_one_file_and_no_reader_sees_a_torn_one(tmp_path):
    """As in two containers that share a folder: each has its own process 7."""
    file = tmp_path / "shared.json"
    atomic.write(file, b"a" * 40_000)

    def write(letter: bytes, size: int) -> None:
        os.getpid = lambda: 7
        for number in range(300):
            atomic.write(file, letter * (size + number))

    running = {forked(lambda: write(b"b", 40_000)), forked(lambda: write(b"c", 80_000))}
    while running:
        assert len(set(file.read_bytes())) == 1
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0
                running.remove(child)
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    victim, names = tmp_path / "victim", iter("0123")
    victim.write_bytes(b"precious")
    monkeypatch.setattr("secrets.token_hex", lambda size: next(names))
    atomic.temporary_name(tmp_path / "file").symlink_to(victim)
    names = iter("0123")
    with pytest.raises(FileExistsError):
        atomic.write(tmp_path / "file", b"new")
    assert victim.read_bytes() == b"precious"
    atomic.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_as_lock_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="lock"), atomic.locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "victim").exists()


def test_leftovers_of_the_dead_are_removed_and_files_of_a_live_writer_are_not(tmp_path):
    def die(by) -> None:
        with by(tmp_path / "dead"):
            os.kill(os.getpid(), signal.SIGKILL)

    for by in (atomic.replacing, atomic.temporary_folder):
        assert ended(forked(lambda by=by: die(by))) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with atomic.replacing(tmp_path / "file") as file, atomic.temporary_folder(tmp_path / "folder") as folder:
        file.write(b"new")
        (folder / "part").write_bytes(b"new")
        for clean in (atomic.remove_leftovers, lambda path: ended(forked(lambda: atomic.remove_leftovers(path)))):
            clean(tmp_path)
            assert len(list(tmp_path.iterdir())) == 2
        folder.rename(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == (tmp_path / "folder" / "part").read_bytes() == b"new"


def test_a_link_among_the_leftovers_is_neither_followed_nor_removed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".link.tmp").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / ".pipe.tmp")
    atomic.remove_leftovers(tmp_path)
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / ".link.tmp").is_symlink()


def no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_where_files_cannot_be_locked_they_are_written_and_leftovers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.fcntl, "flock", no_locks)
    (tmp_path / ".left.tmp").write_bytes(b"whose?")
    atomic.remove_leftovers(tmp_path)
    atomic.write(tmp_path / "file", b"new")
    with atomic.locked(tmp_path / "lock") as ours:
        assert not ours
    assert sorted(path.name for path in tmp_path.iterdir()) == [".left.tmp", "file", "lock"]


def test_a_new_file_that_is_taken_for_a_leftover_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, seen = atomic.lock, []

    def late(handle: int) -> bool | None:
        if not seen:
            seen.append(handle)
            atomic.remove_leftovers(tmp_path)
        return real(handle)

    monkeypatch.setattr(atomic, "lock", late)
    atomic.write(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_named_pipe_without_a_reader_is_an_error_and_not_waited_for_without_end(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(atomic, "READER_SECONDS", 0.2)
    with pytest.raises(OSError, match="no program reads this pipe"):
        atomic.write(tmp_path / "pipe", b"content")


def test_a_named_pipe_with_a_reader_gets_the_complete_content(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    atomic.write(tmp_path / "pipe", b"x" * 300_000)  # more than a pipe holds at once
    reader.join(30)
    assert found == [b"x" * 300_000]


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        atomic.write(tmp_path / "file", b"content")
    assert error.value.filename == str(tmp_path / "file")
    assert error.value.filename2 is None
    with pytest.raises(FileNotFoundError) as error:
        atomic.write(tmp_path / "missing" / "file", b"content")
    assert error.value.filename == str(tmp_path / "missing" / "file")
