"""The documentation's site, built once for all tests that look at it."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    if missing := [name for name in ("mkdocs", "latex2mathml") if not find_spec(name)]:
        pytest.skip(f"needs {missing[0]}: pip install 'hopflow[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder
