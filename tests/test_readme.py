"""The README does what it says: its Python runs in order, its hopflow commands run as typed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(text) if name == language]


def commands(text: str) -> list[list[str]]:
    """The `$ hopflow …` lines of the console blocks; a backslash continues a line."""
    lines = "".join(blocks(text, "console")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ hopflow ")]
    unsupported = [line for line in words if {"|", ">", "&&", ";"} & set(line)]
    assert not unsupported, f"only plain commands are run by this test: {unsupported}"
    return words


def test_the_readme_keeps_its_promises(tmp_path, monkeypatch):
    text = README.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    for number, code in enumerate(blocks(text, "python"), 1):
        exec(compile(code, f"README.md, Python block {number}", "exec"), namespace)
    for words in commands(text):
        hopflow = Path(sys.executable).with_name("hopflow")
        run = subprocess.run([hopflow, *words[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert run.returncode == 0, f"{shlex.join(words)}\n{run.stdout}{run.stderr}"


def test_commands_are_found_and_the_others_left_alone():
    text = "```console\n$ make test\n$ hopflow oracle \\\n    seed=1  # note\noutput\n```\n"
    text += "```python\n$ hopflow no\n```\n"
    assert commands(text) == [["hopflow", "oracle", "seed=1"]]


def test_a_command_that_would_need_a_shell_is_refused():
    with pytest.raises(AssertionError, match="plain commands"):
        commands("```console\n$ hopflow oracle | head\n```\n")
