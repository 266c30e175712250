"""An engineer who steps through a training step or a sample with a debugger visits few files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "trace_files.py"
MOST = {"training step": 24, "training step with an embedding cost": 24, "sample": 18}


@pytest.fixture(scope="module")
def crossed(tmp_path_factory) -> dict[str, list[str]]:
    """The files of each, as tools/trace_files.py prints them; in a separate process, without the shape checks."""
    environment = {**os.environ, "HOPFLOW_CACHE": str(tmp_path_factory.mktemp("cache"))}
    run = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    sections = re.findall(r"^(\w.*): (\d+) files\n((?:  .*\n)*)", run.stdout, re.MULTILINE)
    found = {name: files.split() for name, _, files in sections}
    assert {name: len(files) for name, files in found.items()} == {name: int(count) for name, count, _ in sections}
    return found


@pytest.mark.parametrize("name", MOST)
def test_a_training_step_and_a_sample_cross_few_files(crossed, name):
    assert len(crossed[name]) <= MOST[name], crossed[name]


def test_the_files_that_every_step_and_every_sample_need_are_counted(crossed):
    assert {"flow.py", "models/transformer.py", "training/trainer.py", "couplings.py"} <= {*crossed["training step"]}
    assert "transport/cost_matrix.py" in crossed["training step with an embedding cost"]
    assert {"flow.py", "models/transformer.py", "sampling/generate.py", "predictions.py"} <= {*crossed["sample"]}


@pytest.mark.parametrize("name", MOST)
def test_no_kernel_file_is_entered_on_a_cpu(crossed, name):
    assert [file for file in crossed[name] if file.startswith("kernels/")] == []
