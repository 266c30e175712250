"""The study of planners runs from training to its table, for a tiny budget."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOOL = Path(__file__).parents[2] / "tools" / "planner_study.py"
TINY = ("--steps=2", "--judge-steps=2", "--seeds=0,1", "--samples=2", "--rows=2", "--calls=2,4,8")


def test_the_study_writes_a_row_for_every_sampler_and_continues(tmp_path):
    command = [sys.executable, str(TOOL), *TINY, "--length", "16", "--out", str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in first.splitlines() if line.startswith("|")]
    assert sum("| exact |" in line for line in lines) == 3 * 3 + 5
    assert sum("| bound `bn` |" in line for line in lines) == 3 + 2
    assert sum("held-out text" in line for line in lines) == 1
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.json")}
    second = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line for line in second.splitlines() if line.startswith("|")] == lines
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.json")} == written
