"""The set-up script: what it says when something is missing, and how it heals. No test needs a network."""

import ast
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "set_up.py"


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    """The script as a module, at home in an empty clone."""
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.INPUTS:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "VENV", str(tmp_path / ".venv"))
    monkeypatch.delenv("PYTHON", raising=False)
    return module


@pytest.fixture
def fake_venv(set_up):
    """A .venv whose Python is a shell script: it tells a version, and plays pip with the given ending."""

    def build(pip: str = "exit 0", version: str | None = None) -> Path:
        python = Path(set_up.venv_python())
        python.parent.mkdir(parents=True, exist_ok=True)
        answer = version or set_up.python_version()
        python.write_text(f'#!/bin/sh\nif [ "$2" = -m ]; then {pip}; fi\necho {answer}\n')
        python.chmod(0o755)
        return python

    return build


def failure(set_up, capsys) -> str:
    """Run the script, which must fail with exit code 3 and at most six lines."""
    assert set_up.main() == 3
    message = capsys.readouterr().err
    assert message.startswith("set-up: ")
    assert len(message.splitlines()) <= 6
    return message


def test_the_script_parses_on_python_3_6():
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize(("version", "word"), [((3, 10), "too old"), ((3, 6), "too old"), ((3, 15), "too new")])
def test_a_python_that_does_not_fit_is_named_with_one_that_does(set_up, capsys, monkeypatch, version, word):
    monkeypatch.setattr(set_up.sys, "version_info", (*version, 0))
    monkeypatch.setattr(set_up, "other_python", lambda: "python3.12")
    message = failure(set_up, capsys)
    assert word in message
    assert "3.11 to 3.14" in message
    assert "PYTHON=python3.12 make test" in message


def test_where_no_python_fits_it_says_where_to_get_one(set_up, capsys, monkeypatch):
    monkeypatch.setattr(set_up.sys, "version_info", (3, 9, 0))
    monkeypatch.setenv("PATH", "")
    assert "Install one (system packages, pyenv, uv or conda)" in failure(set_up, capsys)


def test_a_stub_on_the_path_is_not_recommended(set_up, monkeypatch, tmp_path):
    for name, code in (("python3.14", 127), ("python3.12", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set_up.other_python() == "python3.12"


def test_a_missing_venv_module_is_named_with_its_debian_package(set_up, capsys, monkeypatch):
    monkeypatch.setattr(set_up.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    assert f"sudo apt install python{set_up.python_version()}-venv" in failure(set_up, capsys)


def test_a_nearly_full_disk_stops_before_the_work(set_up, capsys, monkeypatch):
    monkeypatch.setattr(set_up, "NEEDED_BYTES", 1024**5)
    message = failure(set_up, capsys)
    assert "GiB are free" in message
    assert "TMPDIR" in message
    assert not Path(set_up.VENV).exists()


@pytest.mark.parametrize(
    ("pip_says", "words"),
    [
        ("WARNING: Retrying after connection broken: Failed to establish a new connection", "PIP_NO_INDEX=1"),
        ("WARNING: Retrying: Temporary failure in name resolution", "PIP_FIND_LINKS=wheels"),
        ("ERROR: Read timed out.", "HTTPS_PROXY"),
        ("ERROR: OSError: [Errno 28] No space left on device", "PIP_CACHE_DIR"),
        ("ERROR: No matching distribution found for torch==2.13.0", "torch==2.13.0"),
        ("ERROR: something else", "why: ERROR: something else"),
    ],
)
def test_pips_pages_become_one_problem(set_up, fake_venv, capsys, pip_says, words):
    fake_venv(pip=f"echo '{pip_says}' >&2; exit 1")
    assert words in failure(set_up, capsys)
    assert not set_up.is_ready()
    assert not Path(set_up.busy_file()).exists()  # pip ended in order: what it installed is kept


def test_packages_that_cannot_be_imported_are_a_problem(set_up, fake_venv, capsys):
    python = fake_venv()
    text = python.read_text().replace("#!/bin/sh", '#!/bin/sh\ncase "$3" in *torch*) echo libgomp >&2; exit 1;; esac')
    python.write_text(text)
    assert "why: libgomp" in failure(set_up, capsys)


def test_a_second_call_does_nothing_until_an_input_changes(set_up, fake_venv, capsys):
    fake_venv()
    assert set_up.main() == 0
    capsys.readouterr()
    assert set_up.main() == 0
    assert capsys.readouterr().out == ""
    (Path(set_up.ROOT) / "constraints.txt").write_text("torch==2.13.0")
    assert not set_up.is_ready()


def test_a_ready_environment_is_used_whatever_python_runs_the_script(set_up, fake_venv, monkeypatch):
    fake_venv()
    assert set_up.main() == 0
    monkeypatch.setattr(set_up.sys, "version_info", (3, 9, 0))
    assert set_up.main() == 0


def test_asking_for_another_python_makes_the_environment_anew(set_up, fake_venv, capsys, monkeypatch):
    fake_venv(version="3.99")
    Path(set_up.stamp_file()).write_text(set_up.fingerprint())
    assert set_up.main() == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setattr(set_up, "make_venv", lambda: fake_venv())
    assert set_up.main() == 0
    assert "ready" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["no pip", "killed while installing"])
def test_a_half_made_environment_is_made_anew(set_up, monkeypatch, damage):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", set_up.VENV], check=True)
    (litter := Path(set_up.VENV) / "litter").touch()
    with monkeypatch.context() as patch:
        if damage == "killed while installing":
            Path(set_up.busy_file()).touch()
            patch.setattr(set_up, "venv_version", set_up.python_version)  # it looks healthy but for the mark
        set_up.make_venv()
    assert set_up.venv_version() == set_up.python_version()
    assert not litter.exists()
    assert not Path(set_up.busy_file()).exists()


def test_ctrl_c_is_answered_with_exit_code_4_and_leaves_its_mark(set_up, fake_venv, capsys, monkeypatch):
    def interrupted(command):
        raise KeyboardInterrupt

    fake_venv()
    monkeypatch.setattr(set_up, "run_pip", interrupted)
    assert set_up.main() == 4
    assert "the same command carries on" in capsys.readouterr().err
    assert Path(set_up.busy_file()).exists()


def test_make_without_python_says_so():
    run = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), "setup", "PYTHON=no-such-python"],
        capture_output=True,
        text=True,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    assert run.returncode != 0
    assert "there is no 'no-such-python' here" in run.stderr
    assert "PYTHON=python3.12 make test" in run.stderr


def test_what_is_pinned_installs_on_the_first_release_of_this_python():
    """Debian's 3.11.2 could not install a package that wants 3.11.5."""
    first = f"{sys.version_info.major}.{sys.version_info.minor}.0"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {Requirement(line).name for line in lines if line.strip() and not line.startswith("#")}
    there = [found for found in distributions() if found.metadata["Name"].lower().replace("_", "-") in pinned]
    assert len(there) > 50
    asked = {found.metadata["Name"]: found.metadata.get("Requires-Python") or "" for found in there}
    assert {name: versions for name, versions in asked.items() if first not in SpecifierSet(versions)} == {}
