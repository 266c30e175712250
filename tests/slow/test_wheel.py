"""A stranger's first day: the built wheel works in an empty environment, away from the clone."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).parents[2]
USE = """
import torch, hopflow as hf
vocab = hf.Vocab(data=5, masks=1)
flow = hf.Flow(hf.Mask(vocab))
x0 = flow.source.sample(3, 4, generator=torch.Generator().manual_seed(0))
print(hf.__version__, tuple(x0.shape))
"""
META = ("METADATA", "entry_points.txt")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def stranger(built, tmp_path_factory):
    """Run a program of an empty environment that holds only the wheel, in a folder outside the clone."""
    home = tmp_path_factory.mktemp("stranger")
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    pip = [home / "venv/bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(pip, check=True, timeout=1200)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    environment["HOPFLOW_CACHE"] = str(home / "cache")

    def run(program: str, *arguments: str, code: int = 0) -> str:
        command = [home / "venv/bin" / program, *arguments]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    run.home = home
    return run


def test_the_wheel_holds_hopflow_its_types_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hopflow/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hopflow"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    kinds = {".py", ".css", ".js", ".json", ".html"}  # pages of reports and of the server, and the paper's values
    files = (file for file in (ROOT / "src").rglob("*") if file.suffix in kinds)
    source = {str(file.relative_to(ROOT / "src")) for file in files}
    assert "hopflow/serve/static/index.html" in source
    assert source <= set(names)
    assert {Path(name).suffix for name in names if name.startswith("hopflow/")} == {*kinds, ".typed"}  # no weights


def test_the_wheel_declares_its_command_its_model_and_its_license(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata, entries = (archive.read(about.replace("METADATA", name)).decode() for name in META)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    assert "hopflow = hopflow.cli:main" in entries
    assert "hopflow = hopflow.adapters.harness:HopflowLM" in entries


def test_twine_finds_no_fault_with_the_archives(built, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "twine>=6.1"], check=True, timeout=600)
    command = [python, "-m", "twine", "check", "--strict", *built.iterdir()]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == 2


def test_the_sdist_holds_what_it_takes_to_test_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "LICENSE",
        "tests/conftest.py",
        "tools/set_up.py",
        ".ci/run",
        ".github/workflows/ci.yml",
        "packaging/conda/meta.yaml",
    } <= names
    hidden = {name for name in names if name.startswith(".")}
    assert hidden <= {".gitignore", ".ci/run", ".github/workflows/ci.yml"}
    tensors = {name for name in names if name.endswith((".safetensors", ".npy", ".npz", ".pt", ".bin"))}
    assert not [name for name in tensors if not name.startswith("tests/runs/format_1/")]  # a run of format 1, tested
    assert not any(name.startswith(("runs/", "pretrained/", "shared/", "build/")) for name in names)


def test_the_command_works_outside_the_clone(stranger):
    assert stranger("hopflow", "--version").startswith("hopflow ")
    assert "all required packages work" in stranger("hopflow", "doctor")


def test_the_library_works_outside_the_clone(stranger):
    assert stranger("python", "-c", USE).split(maxsplit=1)[1] == "(3, 4)\n"


@pytest.fixture(scope="module")
def trained(stranger) -> str:
    """A run of two steps, trained without any extra; what the command said."""
    text = "".join(f"{n} green bottles hanging on the wall. " for n in range(400))
    (stranger.home / "my_book.txt").write_text(text)
    small = ("steps=2", "size=micro", "batch=4", "length=16", "eval_samples=2", "eval_rows=2", "threads=1")
    return stranger("hopflow", "train", "my_book.txt", *small)


def test_a_text_is_trained_sampled_and_evaluated_without_any_extra(stranger, trained):
    assert "runs/my_book" in trained
    assert "train" in stranger("hopflow", "--help")
    assert stranger("hopflow", "sample", "runs/my_book", "n=1", "steps=2").strip()
    assert "perplexity bound" in stranger("hopflow", "eval", "runs/my_book", "n=2", "rows=4", "seconds=1", "steps=2")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("report", "runs/my_book"), "report"),
        (("train", "hf:someone/something"), "data"),
        (("serve", "runs/my_book"), "serve"),
        (("eval", "runs/my_book", "judge=hf:gpt2"), "eval"),
    ],
    ids=["report", "data", "serve", "eval"],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(stranger, trained, words, extra):
    said = stranger("hopflow", *words, code=3)
    assert f"pip install 'hopflow[{extra}]'" in said
    assert "Traceback" not in said
    assert said.count("pip install") == 1
