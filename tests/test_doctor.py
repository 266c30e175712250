import errno
import io
import json
import os
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch._subclasses import FakeTensorMode

from hopflow import __version__, doctor
from hopflow.kernels import support
from hopflow.system import atomic


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def text_of(report, console):
    doctor.show(report, console)
    return console.file.getvalue()


def test_the_report_names_versions_devices_disk_and_extras(tmp_path, console):
    report = doctor.examine(tmp_path)
    text = text_of(report, console)
    assert report.healthy
    assert "all required packages work" in text
    for word in (
        __version__,
        "python",
        "torch",
        "scipy",
        "cpu",
        "cuda",
        "mps",
        "GiB free",
        "fsync",
        "[report]",
    ):
        assert word in text


def test_the_report_survives_a_round_trip_through_json(tmp_path):
    stored = json.loads(json.dumps(doctor.examine(tmp_path).as_json()))
    assert stored["healthy"] is True
    assert stored["packages"]["torch"].startswith("2.")
    assert stored["extras"]["dev"]["missing"] == []


def test_the_probe_leaves_nothing_behind(tmp_path):
    doctor.examine(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_comes_with_the_line_that_installs_it(tmp_path, monkeypatch, console):
    monkeypatch.setattr(doctor, "requirements", lambda: (["torch"], {"report": ["no-such-package"]}))
    report = doctor.examine(tmp_path)
    assert report.healthy
    assert "missing no-such-package: pip install 'hopflow[report]'" in text_of(report, console)


def test_a_missing_core_package_is_a_problem(tmp_path, monkeypatch, console):
    monkeypatch.setattr(doctor, "requirements", lambda: (["no_such_package"], {}))
    report = doctor.examine(tmp_path)
    assert not report.healthy
    assert "problem: no_such_package cannot be imported" in text_of(report, console)


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(atomic, "write", refuse)
    report = doctor.examine(tmp_path)
    assert report.write_seconds is None
    assert report.problems == ["cannot write, fsync and rename a file in this folder: Read-only file system"]


def test_the_core_dependencies_are_exactly_the_promised_ones():
    core, extras = doctor.requirements()
    assert sorted(core) == [
        "jaxtyping", "numpy", "pydantic", "safetensors", "scipy", "tokenizers", "torch", "typer",
    ]  # fmt: skip
    assert sorted(extras) == [
        "data",
        "dev",
        "docs",
        "eval",
        "harness",
        "hub",
        "integrations",
        "ot",
        "report",
        "serve",
        "track",
    ]


def test_a_gpu_without_what_triton_needs_is_told_what_that_is(tmp_path, monkeypatch, console):
    card = {"name": "GPU", "bytes": 2**30, "capability": "9.0"}
    report = doctor.examine(tmp_path)
    report.devices["cuda"] = [card]
    report.devices["kernels_lack"] = "a C compiler"
    assert "kernels" in (text := text_of(report, console))
    assert "Triton is missing a C compiler" in text


@pytest.fixture
def complete(tmp_path, monkeypatch):
    """A machine with Triton, gcc and headers, and nothing else."""
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(support, "find_spec", lambda name: object())
    monkeypatch.setattr(support, "which", lambda name: name if name == "gcc" else None)
    monkeypatch.setattr(support, "get_paths", lambda scheme: {"include": str(tmp_path)})
    return tmp_path


def test_kernels_need_triton_a_compiler_that_it_looks_for_and_headers(complete, monkeypatch):
    assert support.missing_requirement() is None
    monkeypatch.setenv("CC", "cc")  # which Triton would take, and not find
    assert "C compiler" in support.missing_requirement()
    monkeypatch.delenv("CC")
    (complete / "Python.h").unlink()
    assert "headers" in support.missing_requirement()
    monkeypatch.setattr(support, "which", lambda name: name if name == "cc" else None)
    assert "C compiler" in support.missing_requirement()
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert support.missing_requirement() == "triton"


def test_kernels_need_a_device_of_their_time(monkeypatch):
    monkeypatch.setattr(support, "TRITON_WORKS", True)
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    for major, known in ((7, False), (8, True), (9, True)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, m=major: SimpleNamespace(major=m))
        assert support.has_kernels(x) == known
    assert not support.has_kernels(torch.empty(2))
    monkeypatch.setattr(support, "TRITON_WORKS", False)
    assert not support.has_kernels(x)
