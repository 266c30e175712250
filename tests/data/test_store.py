"""The store: its header, its checks, and what a kill, a clash or a full disk leaves behind."""

import errno
import json
import os
import shutil
import signal
import time
from hashlib import sha256

import numpy as np
import pytest

import hopflow as hf
from hopflow.data import store as store_module
from hopflow.data.file_hashes import YOUNG
from hopflow.data.store import DamagedStore, Store, StoreWriter, open_or_build
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.system import atomic
from hopflow.system.progress import Progress

TEXT = "".join(f"{i} green bottles, hanging on the wall\n" for i in range(500))


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return hf.data.load(tmp_path / "text.txt", length=16)


def again(tmp_path, progress=None):
    return hf.data.load(tmp_path / "text.txt", length=16, progress=progress)


def test_the_header_of_a_store_describes_its_files(corpus):
    folder = corpus.store.folder
    header = json.loads((folder / "header.json").read_text())
    assert header["dtype"] == "|u1"
    assert header["plan"]["source_sha256"] == corpus.identity["source_sha256"]
    assert header["tokenizer"] == {"name": "char", "sha256": corpus.tokenizer.sha256, "size": corpus.vocab_size}
    tokens = {split: np.fromfile(folder / f"{split}.bin", np.uint8) for split in ("train", "test")}
    assert {split: header["splits"][split]["tokens"] for split in tokens} == {k: v.size for k, v in tokens.items()}
    assert corpus.tokenizer.decode(np.concatenate([tokens["train"], tokens["test"]]).tolist()) == TEXT
    assert header["files"] == {
        path.name: path.stat().st_size for path in folder.iterdir() if path.name != "header.json"
    }


@pytest.mark.parametrize(("size", "dtype"), [(256, "u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_tokens_take_as_few_bytes_as_the_vocabulary_allows(size, dtype):
    assert store_module._dtype(size) == np.dtype(dtype)


def test_tokens_of_a_store_are_memory_mapped(corpus):
    assert isinstance(corpus.store.tokens("train"), np.memmap)


DAMAGE = {
    "a shorter file": lambda f: (f / "train.bin").write_bytes(b""),
    "a longer file": lambda f: (f / "test.bin").open("ab").write(b"x"),
    "a missing file": lambda f: (f / "train.ends").unlink(),
    "a missing header": lambda f: (f / "header.json").unlink(),
    "an empty header": lambda f: (f / "header.json").write_bytes(b""),
    "a header cut off": lambda f: (f / "header.json").write_bytes((f / "header.json").read_bytes()[:-9]),
    "a header changed": lambda f: (f / "header.json").write_text(
        (f / "header.json").read_text().replace("char", "byte")
    ),
    "a header that is a list": lambda f: (f / "header.json").write_text("[]"),
    "another tokenizer": lambda f: (f / "tokenizer.json").write_text(
        (f / "tokenizer.json").read_text().replace("abe", "ABe")
    ),
    "no tokenizer": lambda f: (f / "tokenizer.json").write_bytes(b"{}"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_store_is_found_and_made_again(corpus, tmp_path, name):
    DAMAGE[name](corpus.store.folder)
    with pytest.raises(ValueError, match=r"damaged|missing|not JSON|does not match|not a"):
        Store.open(corpus.store.folder)
    said = []
    repaired = again(tmp_path, said.append)
    assert any("preparing it again" in words for words in said)
    assert repaired.identity == corpus.identity
    assert Store.open(corpus.store.folder)


def test_a_header_of_a_later_format_is_not_read(corpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "FORMAT", 2)
        with pytest.raises(DamagedStore):
            Store.open(corpus.store.folder)


@pytest.mark.parametrize("call", range(1, 12))
def test_a_full_disk_leaves_no_store_and_no_temporary_files(tmp_path, cache, monkeypatch, call):
    """ENOSPC at each fsync, the moment at which a full disk is told at the latest."""
    (tmp_path / "text.txt").write_text(TEXT)
    calls, fsync = [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        again(tmp_path)
    assert list((cache / "tokens").glob("[!.]*")) == []
    assert list(cache.rglob("*.tmp")) == []
    monkeypatch.setattr(os, "fsync", fsync)
    assert again(tmp_path).rows > 100


def forked(work):
    """Run `work` in a copy of this process, which has everything imported; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def killed_at(moment, path):
    """Prepare, and die without a word at the n-th step of writing, finishing or moving the store."""
    left = iter(range(moment - 1, -1, -1))

    def step(function):
        def counted(*arguments):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return counted

    for owner, name in ((StoreWriter, "add"), (StoreWriter, "finish"), (store_module, "_move"), (os, "fsync")):
        setattr(owner, name, step(getattr(owner, name)))
    hf.data.load(path, length=16)


@pytest.mark.parametrize("moment", range(2, 14))  # the first step belongs to the note of the source's hash
def test_a_store_that_was_killed_while_it_was_written_is_not_used(tmp_path, cache, moment):
    (tmp_path / "text.txt").write_text(TEXT)
    child = forked(lambda: killed_at(moment, tmp_path / "text.txt"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list((cache / "tokens").glob("[!.]*")) == []
    assert again(tmp_path).rows > 100
    assert list((cache / "tokens").glob(".*.tmp")) == []


def test_processes_that_prepare_the_same_do_not_clash(tmp_path, cache):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    children = [forked(lambda: again(tmp_path)) for _ in range(6)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
    assert len(list((cache / "tokens").glob("[!.]*"))) == 1
    assert list((cache / "tokens").glob(".*.tmp")) == []


def test_a_process_that_waits_for_another_says_so(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    folder, said = again(tmp_path).store.folder, []
    shutil.rmtree(folder)
    ready, done = os.pipe(), os.pipe()

    def hold():
        with store_module._only_one_builds(folder, Progress(None)):
            os.write(ready[1], b"x")
            os.read(done[0], 1)

    child = forked(hold)
    os.read(ready[0], 1)
    progress = Progress(lambda words: (said.append(words), os.write(done[1], b"x")), 0.0)
    with store_module._only_one_builds(folder, progress):
        assert "waiting for another process" in said[0]
    os.waitpid(child, 0)


def test_without_file_locks_the_first_process_to_finish_a_store_wins(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "fcntl", None)
    folder = tmp_path / "store"

    def write(target):
        writer = StoreWriter(target, Bytes())
        writer.add("train", Bytes().encode_all(["abc"])[0], True)
        writer.finish({})

    def overtaken(target):
        folder.mkdir()
        write(folder)
        write(target)

    assert open_or_build(folder, overtaken, Progress(None)).header["splits"]["train"]["tokens"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, cache, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    encode = Characters.encode_all

    def meanwhile(self, texts):
        path.write_text("short")
        return encode(self, texts)

    monkeypatch.setattr(Characters, "encode_all", meanwhile)
    with pytest.raises(ValueError, match="changed while it was read"):
        again(tmp_path)
    assert list((cache / "tokens").glob("[!.]*")) == []


def rewrite(path, content):
    """Other content in a file that keeps its size and the time of its last write."""
    state = path.stat()
    assert len(content) == state.st_size
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("name", ["train.bin", "test.bin", "train.ends", "counts.bin"])
@pytest.mark.parametrize("way", ["in place", "another file"])
def test_a_changed_file_of_a_store_is_noticed_although_size_and_time_are_kept(corpus, tmp_path, name, way):
    path = corpus.store.folder / name
    time.sleep(2 * YOUNG / 1e9)
    assert Store.open(corpus.store.folder)  # hashed, and noted
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if way == "another file":
        state = path.stat()
        (tmp_path / "other").write_bytes(content)
        os.utime(tmp_path / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
        (tmp_path / "other").replace(path)
    else:
        rewrite(path, bytes(content))
    with pytest.raises(DamagedStore, match=f"{name}: changed since it was written"):
        Store.open(corpus.store.folder)
    said = []
    assert again(tmp_path, said.append).identity == corpus.identity
    assert any("preparing it again" in words for words in said)


def test_an_unchanged_file_of_a_store_is_hashed_only_once(corpus, monkeypatch):
    time.sleep(2 * YOUNG / 1e9)
    Store.open(corpus.store.folder)
    digests = []
    monkeypatch.setattr("hopflow.data.file_hashes.hashlib.sha256", lambda *data: digests.append(data) or sha256(*data))
    Store.open(corpus.store.folder)
    assert all(data for data in digests)  # of names and of headers, not of files, which are hashed part by part


def test_a_store_of_an_earlier_version_is_checked_by_the_hashes_it_has(corpus):
    file = corpus.store.folder / "header.json"
    header = json.loads(file.read_text())
    del header["hashes"], header["sha256"]
    file.write_text(json.dumps({**header, "sha256": sha256(store_module.canonical(header)).hexdigest()}))
    assert Store.open(corpus.store.folder)
    content = bytearray((corpus.store.folder / "train.bin").read_bytes())
    content[0] ^= 1
    (corpus.store.folder / "train.bin").write_bytes(content)
    with pytest.raises(DamagedStore, match="changed since"):
        Store.open(corpus.store.folder)
