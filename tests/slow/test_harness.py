"""The tests of the model of lm-evaluation-harness, run with the real package, which `make setup` does not install."""

import subprocess

import pytest
from extra_environment import extra_environment
from pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("harness")]


def test_the_model_of_the_harness_passes_its_tests_with_the_real_package(tmp_path):
    python = extra_environment(tmp_path, "harness")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/adapters/test_harness.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
