"""Texts from pipes and devices: bounded, checked as they come, and never left behind."""

import io
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Command, until

import hopflow as hf
from hopflow.data import piped_text
from hopflow.system.progress import Progress

TEXT = b"to be or not to be, that is the question\n" * 200


class Endless(io.RawIOBase):
    """The same chunk for ever; counts what was read of it."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk, self.read_bytes = chunk, 0

    def read(self, size: int = -1) -> bytes:
        assert self.read_bytes < 64 << 20, "it would be read for ever"
        text = (self.chunk * (size // len(self.chunk) + 1))[:size]
        self.read_bytes += len(text)
        return text


def stdin(monkeypatch, stream) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))


def left(cache: Path) -> list[Path]:
    return [path for path in (cache / "pipes").rglob("*") if path.suffix != ".lock"]


def test_an_endless_text_ends_at_the_limit_and_leaves_nothing(monkeypatch, cache):
    stream = Endless(b"y\n")
    stdin(monkeypatch, stream)
    monkeypatch.setenv(piped_text.VARIABLE, "0.01")
    with pytest.raises(ValueError, match=r"stdin: more than 0.01 GiB .*\n.*HOPFLOW_PIPE_GIB=128"):
        hf.data.load("-", length=8)
    assert 10 << 20 < stream.read_bytes < 13 << 20
    assert not left(cache)


@pytest.mark.parametrize(("chunk", "reason"), [(b"\0", "NUL"), (b"\xff\x01", "not UTF-8"), (b"ab\xc3", "not UTF-8")])
def test_binary_data_is_noticed_in_the_first_megabytes(monkeypatch, cache, chunk, reason):
    stream = Endless(chunk)
    stdin(monkeypatch, stream)
    with pytest.raises(ValueError, match=f"stdin: .*{reason}"):
        hf.data.load("-", length=8)
    assert stream.read_bytes < 3 << 20
    assert not left(cache)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_without_end_is_refused(cache, device):
    with pytest.raises(ValueError, match=f"{Path(device).name}: "):
        hf.data.load(device, length=8)
    assert not left(cache)


def test_an_endless_tokenizer_file_is_refused():
    with pytest.raises(ValueError, match="/dev/zero cannot be read: it is a device"):
        hf.data.load("docs", tokens="/dev/zero", length=8)


def test_the_limit_leaves_half_of_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100 << 30))
    assert piped_text.limit(tmp_path) == 16 << 30
    monkeypatch.setenv(piped_text.VARIABLE, "40")
    assert piped_text.limit(tmp_path) == 40 << 30
    monkeypatch.setenv(piped_text.VARIABLE, "64")
    assert piped_text.limit(tmp_path) == 50 << 30


@pytest.mark.parametrize("value", ["0", "-1", "nan", "plenty"])
def test_an_invalid_pipe_limit_is_refused(monkeypatch, tmp_path, value):
    monkeypatch.setenv(piped_text.VARIABLE, value)
    with pytest.raises(ValueError, match=f"HOPFLOW_PIPE_GIB must be a number of GiB above 0.*{value}"):
        piped_text.limit(tmp_path)


def test_a_closed_stdin_is_one_message(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="stdin is closed"):
        hf.data.load("-", length=8)


def test_the_copy_of_a_killed_process_is_removed_at_the_next_start(tmp_path, cache):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = tmp_path / "log.txt"
    command = Command("data", "prepare", str(pipe), log=log)
    with pipe.open("wb") as file:
        file.write(b"to be or not to be\n" * (3 << 16))  # 3.7 MB, and no end
        file.flush()
        until(lambda: command.over or any(p.stat().st_size for p in cache.glob("pipes/*/text.txt")), "the copy")
        other = hf.data.load("docs", length=8)  # another start does not touch the copy of a living process
        assert [p for p in left(cache) if p.name == "text.txt"]
        command.hit(signal.SIGKILL)
        command.wait()
    assert other.rows
    assert [p for p in left(cache) if p.name == "text.txt"], "a killed process cannot clean up"
    hf.data.load("docs", length=8)
    assert not left(cache)


def test_pipes_that_are_read_at_the_same_time_have_separate_copies(cache):
    both = threading.Barrier(2)
    found: list[bytes] = []

    def read(content: bytes) -> None:
        with piped_text.copy_of_stream(io.BytesIO(content), "pipe", cache, Progress(None)) as source:
            both.wait(30)
            found.append(source.files[0].read_bytes())
            both.wait(30)

    threads = [threading.Thread(target=read, args=(TEXT + bytes([letter]),)) for letter in b"ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [TEXT + b"a", TEXT + b"b"]
    assert not left(cache)


def test_a_copy_of_a_pipe_that_does_not_fit_on_the_disk_is_named_in_the_error(cache):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with (
            pytest.raises(OSError, match=r"File too large: '.*text\.txt'"),
            piped_text.copy_of_stream(io.BytesIO(TEXT * 100), "pipe", cache, Progress(None)),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not left(cache)
