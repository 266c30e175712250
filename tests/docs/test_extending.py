"""The examples of docs/extending.md work: each file is written and each command is run as it is typed."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks, read, shortened

import hopflow

PAGE = "docs/extending.md"
DRIVER = """
import json, os, runpy, sys
import torch, hopflow.cli, hopflow.recipes
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.argv = words
        hopflow.cli.main() if words[0] == "hopflow" else runpy.run_path(words[0], run_name="__main__")
        sys.exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"{' '.join(words)} ended with exit code {code}")
"""
"""Runs each command in a fork of one process, which has imported torch already."""


def files() -> dict[str, str]:
    """The Python files of the page, by name."""
    found = [block.code for block in blocks(read(PAGE)) if block.language == "python" and not block.reason]
    assert all(code.startswith("# ") for code in found), "a Python block of this page is a file: `# name.py`"
    return {code.partition("\n")[0].removeprefix("# "): code for code in found}


def commands() -> list[list[str]]:
    """The commands of the page, in the size of tests, without the word `python`."""
    found = []
    for block in blocks(read(PAGE)):
        for words in block.commands if block.language == "console" and not block.reason else []:
            if words[0] == "python":
                name, *rest = words[1:]
                found.append([name, *shortened(["hopflow", *rest])[1:]] if rest else [name])
            else:
                found.append(shortened(words))
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> str:
    """What all commands of the page print."""
    folder = tmp_path_factory.mktemp("extending")
    for name, code in files().items():
        (folder / name).write_text(code)
    (folder / "my_book.txt").write_text("".join(f"{n} green bottles hanging on the wall. " for n in range(400)))
    environment = {
        **os.environ,
        "HOPFLOW_CACHE": str(folder / "cache"),
        "HOPFLOW_REPORT": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(hopflow.__file__).parents[1]),
    }
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands())],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_every_command_of_the_page_succeeds(output):
    assert "right to left" in output


def test_a_new_planner_draws_and_has_a_likelihood(output):
    assert "positions with a token of probability 0.8" in output
    assert "planned" in output


def test_a_new_metric_is_measured(output):
    assert "longest_run" in output


def test_a_new_source_is_listed_with_the_settings(output):
    assert "rare_words" in output


def test_every_extension_point_of_the_table_has_a_section_and_a_file():
    text = read(PAGE)
    points = re.findall(r"^\| \[[\w ]+\]\(#([\w-]+)\)", text, re.MULTILINE)
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    named = {section.partition("\n")[0].lower().replace(" ", "-"): section for section in sections}
    assert len(points) >= 8
    assert [point for point in points if "```python\n# " not in named.get(point, "")] == []


def test_every_file_of_the_page_is_run():
    run = {words[0] for words in commands()}
    assert set(files()) <= run, shlex.join(sorted(set(files()) - run))
