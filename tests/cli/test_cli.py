"""The command line's contract: quick help, settings as key=value, short errors, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopflow import __version__
from hopflow.cli.output import fitting

HOPFLOW = Path(sys.executable).with_name("hopflow")
ROWS = [
    SimpleNamespace(analysis="first", quantity="cross_entropy", paper=1.25, exact=1.2512345),
    SimpleNamespace(analysis="first", quantity="law", paper=[0.5, 0.5], exact=[0.49, 0.51]),
    SimpleNamespace(analysis="second", quantity="[bound]", paper=None, exact=2.0),
]


@pytest.fixture
def analyses(monkeypatch):
    """Stands in for the analyses, which are tested elsewhere; remembers the seed it was given."""
    seen = SimpleNamespace(seed=None, error=None)

    def run(seed, analyses, progress):
        seen.seed, seen.analyses = seed, analyses
        progress("working")
        if seen.error:
            raise seen.error
        return ROWS

    fake = SimpleNamespace(run=run, ANALYSES=("first", "second", "third"))
    monkeypatch.setitem(sys.modules, "hopflow.evaluation", SimpleNamespace(tightness=fake))
    monkeypatch.setitem(sys.modules, "hopflow.evaluation.tightness", fake)
    return seen


def is_short(message: str) -> bool:
    return message.startswith("hopflow: ") and len(message.splitlines()) <= 6 and "Traceback" not in message


def imported_by(*arguments: str) -> str:
    """Which of the heavy packages a command imports, as a list in text."""
    probe = (
        "import sys\nfrom hopflow.cli import main\ntry: main()\nfinally: print("
        "[m for m in ('torch', 'scipy', 'numpy', 'pydantic') if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", probe, *arguments], capture_output=True, text=True)
    return run.stderr.splitlines()[-1]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument):
    assert imported_by(argument) == "[]"


@pytest.mark.parametrize(
    "arguments", ["oracle --help", "oracle sed=1", "sample RUN stps=1", "infill RUN a stps=1", "train FILE steps"]
)
def test_help_and_mistyped_settings_do_not_import_torch(arguments):
    assert imported_by(*arguments.split()) in (
        "[]",
        "['pydantic']",
    )  # new typers read arguments with pydantic


def test_the_help_of_no_command_imports_torch():
    probe = (
        "import sys, contextlib\nfrom hopflow import cli\nfor words in sys.argv[1:]:\n"
        "    sys.argv = ['hopflow', *words.split(), '--help']\n"
        "    with contextlib.suppress(SystemExit): cli.main()\n"
        "print(sorted({'torch', 'scipy', 'numpy'} & set(sys.modules)))"
    )
    commands = ("train", "sample", "infill", "eval", "compare", "report", "demo", "list", "oracle", "doctor")
    groups = ("config show", "config diff", "config keys", "data list", "data fetch", "data prepare")
    groups += ("bench train", "bench sample", "bench serve", "bench eval", "bench ot", "reproduce morse")
    run = subprocess.run([sys.executable, "-c", probe, *commands, *groups], capture_output=True, text=True, check=True)
    assert run.stdout.count("Usage: hopflow ") == len(commands + groups)
    assert run.stdout.splitlines()[-1] == "[]"


def test_the_installed_command_tells_its_version():
    run = subprocess.run([HOPFLOW, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"hopflow {__version__}\n"


def test_python_m_hopflow_is_the_same_command_line():
    module = [sys.executable, "-m", "hopflow"]  # as torchrun starts it
    run = subprocess.run([*module, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"hopflow {__version__}\n"
    assert subprocess.run([*module, "orakel"], capture_output=True).returncode == 2


def test_without_a_command_the_help_is_shown(hopflow):
    result = hopflow()
    assert result.code == 0
    assert "oracle" in result.out
    assert "doctor" in result.out


def test_oracle_prints_paper_and_exact_side_by_side(hopflow, analyses):
    result = hopflow("oracle")
    assert result.code == 0
    assert analyses.seed == 0
    assert result.err == "working\n"
    lines = result.out.splitlines()
    assert [line.split() for line in lines[:2]] == [["first", "analysis"], ["quantity", "paper", "exact"]]
    assert lines[2].split() == ["cross_entropy", "1.25", "1.2512"]
    assert lines[3].split() == ["law", "0.5", "0.5", "0.49", "0.51"]
    assert ["[bound]", "-", "2"] in [line.split() for line in lines]


def test_oracle_passes_its_seed_on(hopflow, analyses):
    assert hopflow("oracle", "seed=7").code == 0
    assert analyses.seed == 7


def test_oracle_runs_the_analysis_it_is_asked_for(hopflow, analyses):
    assert hopflow("oracle").code == 0
    assert analyses.analyses == ("first", "second", "third")
    assert hopflow("oracle", "analysis=second").code == 0
    assert analyses.analyses == ("second",)
    result = hopflow("oracle", "analysis=frist")
    assert result.code == 2
    assert "did you mean 'first'?" in result.err


def test_oracle_writes_its_rows_as_json(hopflow, analyses, tmp_path):
    file = tmp_path / "rows.json"
    assert hopflow("oracle", "--json", str(file)).code == 0
    assert json.loads(file.read_text())["rows"] == [vars(row) for row in ROWS]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["oracle", "sed=1"], "did you mean 'seed'?"),
        (["oracle", "colour=red"], "known settings: analysis, seed"),
        (["oracle", "seed"], "type seed=VALUE"),
        (["oracle", "seed=minus one"], "seed must be an integer from 0 to 2^63 - 1, got 'minus one'."),
        (["oracle", "seed=-1"], "seed must be an integer from 0 to 2^63 - 1, got "),
        (["oracle", "seed=" + "9" * 30], "seed must be an integer from 0 to 2^63 - 1, got "),
        (["oracle", "seed="], "seed must be an integer from 0 to 2^63 - 1, got "),
        (["oracle", "seed=1", "seed=2"], "typed twice"),
        (["oracle", "--seed", "1"], "settings are written key=value"),
        (["sample"], "see `hopflow sample --help`"),
        (["bench", "train", "--fast"], "see `hopflow bench train --help`"),
        (["oracle", "--json", "no/such/folder.json"], "its folder does not exist"),
        (["oracle", "--json", "."], "this is a folder, not a file"),
        (["orakel"], "'oracle'"),
    ],
)
def test_a_users_mistake_is_one_short_message_and_exit_2(hopflow, analyses, arguments, words):
    result = hopflow(*arguments)
    assert result.code == 2
    assert is_short(result.err)
    assert words in result.err
    assert analyses.seed is None


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("eta must not be negative"), 2, "eta must not be negative"),
        (ValueError("\n".join("abcdefghij")), 2, "..."),
        (OSError(28, "No space left on device", "rows.json"), 3, "rows.json: No space left on device"),
        (FileNotFoundError(2, "No such file or directory", "text.txt"), 2, "text.txt: No such file"),
        (MemoryError(), 3, "out of memory"),
        (OSError(12, "Cannot allocate memory"), 3, "out of memory"),
        (RuntimeError("std::bad_alloc"), 3, "out of memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 3, "out of memory"),
        (RuntimeError("can't start new thread"), 3, "no more threads or processes"),
        (BlockingIOError(11, "Resource temporarily unavailable"), 3, "no more threads or processes"),
        (RuntimeError("InvalidCxxCompiler: No working C++ compiler found"), 3, "install g++"),
        (
            ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
            3,
            "pip install 'hopflow[report]'",
        ),
        (ImportError("libgomp.so.1: cannot open", name="torch"), 3, "hopflow doctor"),
        (KeyboardInterrupt(), 4, "interrupted"),
        (ModuleNotFoundError("No module named 'hopflow.x'", name="hopflow.x"), 1, "--debug"),
        (ZeroDivisionError("division by zero"), 1, "--debug"),
    ],
)
def test_every_failure_has_its_exit_code(hopflow, analyses, error, code, words):
    analyses.error = error
    result = hopflow("oracle")
    message = result.err.removeprefix("working\n")
    assert result.code == code
    assert is_short(message)
    assert words in message


def test_debug_shows_the_traceback_and_keeps_the_exit_code(hopflow, analyses):
    analyses.error = ZeroDivisionError("division by zero")
    result = hopflow("oracle", "--debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "the traceback is above" in result.err


def test_a_number_that_is_not_finite_never_reaches_the_file(hopflow, analyses, tmp_path, monkeypatch):
    monkeypatch.setattr(ROWS[2], "exact", float("nan"))
    result = hopflow("oracle", "--json", str(tmp_path / "rows.json"))
    assert result.code == 1
    assert list(tmp_path.iterdir()) == []


def test_doctor_prints_and_stores_its_report(hopflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = hopflow("doctor", "--json", "report.json")
    assert result.code == 0
    assert "all required packages work" in result.out
    assert json.loads((tmp_path / "report.json").read_text())["healthy"] is True


def test_doctor_exits_3_when_something_essential_is_broken(hopflow, monkeypatch):
    monkeypatch.setattr("hopflow.doctor.requirements", lambda: (["no_such_package"], {}))
    result = hopflow("doctor")
    assert result.code == 3
    assert "no_such_package cannot be imported" in result.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_is_full_at_the_last_line_is_one_message_and_exit_3():
    # a command whose words are still in a buffer when it ends
    said = "from hopflow import cli; cli.app = lambda *_, **__: print('done'); cli.main()"
    command = [sys.executable, "-c", said]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    assert run.returncode == 3
    assert run.stderr == "hopflow: [Errno 28] No space left on device\n"


def test_a_message_is_wrapped_between_words_on_a_terminal_only(monkeypatch):
    message = (
        "hopflow: there is no folder " + "runs/a-long-name-without-a-blank/" * 2 + " here\n  did you mean 'runs/b'?"
    )
    assert fitting(message) == message
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "40")
    wrapped = fitting(message).splitlines()
    assert [line.strip() for line in wrapped] == [
        "hopflow: there is no folder",
        "runs/a-long-name-without-a-blank/" * 2,
        "here",
        "did you mean 'runs/b'?",
    ]
    assert wrapped[2:] == ["  here", "  did you mean 'runs/b'?"]


@pytest.mark.parametrize(("typed", "used"), [(None, "1"), ("0", "0")])
def test_torch_takes_large_pages_for_large_tensors_unless_the_user_says_no(hopflow, monkeypatch, typed, used):
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", typed or "")
    if typed is None:
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    assert hopflow("--version").code == 0
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == used


def test_a_deleted_working_directory_is_one_message(hopflow, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = hopflow("list")
    assert (result.code, result.message) == (
        2,
        "hopflow: the working directory was deleted: change to another one with cd\n",
    )
