"""A file is hashed again whenever it may have changed, and only then."""

import errno
import hashlib
import os
import time

import pytest

import hopflow as hf
from hopflow.data.file_hashes import YOUNG, file_sha256
from hopflow.system.progress import Progress


def sha(path, cache):
    return file_sha256(path, cache, Progress(None))


@pytest.fixture
def text(tmp_path, cache):
    """A text that was hashed, and whose hash is noted."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"one text" * 100)
    time.sleep(2 * YOUNG / 1e9)
    sha(path, cache)
    assert len(list((cache / "hashes").iterdir())) == 1
    return path


def in_place(path, content):
    path.write_bytes(content)


def replaced(path, content):
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def swapped(path, content):
    """Two files that exist for long change places."""
    other = path.with_name("other")
    other.write_bytes(content)
    time.sleep(2 * YOUNG / 1e9)
    path.rename(path.with_name("away"))
    other.rename(path)


@pytest.mark.parametrize("way", [in_place, replaced, swapped])
def test_a_text_edited_with_size_and_time_kept_is_hashed_again(text, cache, way):
    state, content = text.stat(), b"two text" * 100
    way(text, content)
    os.utime(text, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (text.stat().st_size, text.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert sha(text, cache) == hashlib.sha256(content).hexdigest()


def test_a_change_right_after_a_hash_is_noticed(tmp_path, cache):
    path = tmp_path / "text.txt"
    for i in range(20):  # faster than the clock of a file system ticks
        path.write_bytes(b"%04d" % i)
        assert sha(path, cache) == hashlib.sha256(b"%04d" % i).hexdigest()


def test_an_unchanged_text_is_not_read_again(text, cache, monkeypatch):
    known = sha(text, cache)
    opened, plain = [], type(text).open
    monkeypatch.setattr(type(text), "open", lambda path, *how, **more: opened.append(path) or plain(path, *how, **more))
    assert sha(text, cache) == known
    assert opened
    assert text not in opened


def test_a_damaged_cached_hash_is_ignored(text, cache):
    (note,) = (cache / "hashes").iterdir()
    right = sha(text, cache)
    for content in ("", "[]", "{}", note.read_text().replace(right, "x"), note.read_text()[:-5]):
        note.write_text(content)
        assert sha(text, cache) == right


def test_files_are_hashed_again_if_the_cache_is_read_only(text, cache, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    os.utime(text, ns=(1, 1))
    time.sleep(2 * YOUNG / 1e9)
    monkeypatch.setattr("hopflow.system.atomic.write", refuse)
    assert sha(text, cache) == hashlib.sha256(text.read_bytes()).hexdigest()


def test_many_small_texts_wait_for_the_disk_no_more_often_than_a_few(tmp_path, cache, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle) or sync(handle))
    waits = []
    for count in (3, 30):
        folder = tmp_path / str(count)
        folder.mkdir()
        for i in range(count):
            (folder / f"{i}.txt").write_text(f"text {i} of {count}, with a few more words. " * 30)
        time.sleep(2 * YOUNG / 1e9)
        synced.clear()
        hf.data.load(folder, "char", 16, cache=cache)
        waits.append(len(synced))
    assert waits[0] == waits[1]
    assert len(list((cache / "hashes").iterdir())) >= 33
