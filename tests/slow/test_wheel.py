"""A stranger's first day: the built wheel works in an empty environment, away from the clone."""

import os
import subprocess
import sys
import tarfile
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

    def run(program: str, *arguments: str) -> str:
        command = [home / "venv/bin" / program, *arguments]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_hopflow_its_types_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hopflow/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hopflow"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    kinds = {".py", ".css", ".js", ".json"}  # what a report's page is made of, and the paper's values, are files, too
    files = (file for file in (ROOT / "src").rglob("*") if file.suffix in kinds)
    source = {str(file.relative_to(ROOT / "src")) for file in files}
    assert source <= set(names)


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
    } <= names
    assert not any(name.startswith(".") and name != ".gitignore" for name in names)


def test_the_command_works_outside_the_clone(stranger):
    assert stranger("hopflow", "--version").startswith("hopflow ")
    assert "all required packages work" in stranger("hopflow", "doctor")


def test_the_library_works_outside_the_clone(stranger):
    assert stranger("python", "-c", USE).split(maxsplit=1)[1] == "(3, 4)\n"
