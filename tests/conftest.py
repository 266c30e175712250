"""Set before hopflow is imported: checked shapes, one torch thread per worker, repeatable property tests."""

import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores; inherited by the processes that tests start
os.environ["HOPFLOW_REPORT"] = "off"  # seconds of drawing at the end of every command; tests of reports turn it on

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

for name, handler in (("SIGHUP", signal.SIG_DFL), ("SIGINT", signal.default_int_handler)):
    # ignored under nohup or in a background job, and then also by the processes that tests start
    if hasattr(signal, name) and signal.getsignal(signal.Signals[name]) == signal.SIG_IGN:
        signal.signal(signal.Signals[name], handler)

torch.set_num_threads(1)
if find_spec("triton") and not torch.cuda.is_available():
    # before another package imports triton: its own functions must be interpreted, too (helpers/interpreted_kernels.py)
    os.environ["TRITON_INTERPRET"] = "1"
    import_module("triton.language")
    del os.environ["TRITON_INTERPRET"]


def checked_modules() -> list[str]:
    """Modules whose shapes are checked: all but packages, which would include theirs, and Triton kernels.

    Triton compiles the source of a kernel, which the import hook would have changed.
    """
    found = find_spec("hopflow")
    assert found is not None, "hopflow is not installed"
    package = Path(str(found.origin)).parent
    files = (file.relative_to(package.parent).with_suffix("") for file in package.rglob("*.py"))
    return [".".join(file.parts) for file in files if file.name[:2] != "__" and not file.name.endswith("_triton")]


if find_spec("beartype"):  # a machine may have only what hopflow itself needs
    install_import_hook(checked_modules(), "shape_checks.checked")

settings.register_profile(
    "hopflow", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hopflow")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """A cache folder of its own for every test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HOPFLOW_CACHE", str(folder))
    return folder


@pytest.fixture
def hopflow(monkeypatch, capsys):
    """Run a command in this process.

    Returns its exit code, stdout, stderr, the error message on stderr, and the facts `name: value` on stderr.
    """
    import commands

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command line replaces it

    def command(*arguments: object) -> SimpleNamespace:
        capsys.readouterr()
        code = commands.exit_code(*arguments)
        out, err = capsys.readouterr()
        message = err[err.index("hopflow: ") :] if "hopflow: " in err else ""
        facts = dict(re.findall(r"^([a-z ]+): +(.*)$", err, re.MULTILINE))
        return SimpleNamespace(code=code, out=out, err=err, message=message, facts=facts)

    return command


@pytest.fixture
def tries(record_property) -> Iterator[Counter[str]]:
    """What a torture test tries, and how often, for the table at the end."""
    counts: Counter[str] = Counter()
    yield counts
    for what, count in counts.items():
        record_property(what, count)


def pytest_terminal_summary(terminalreporter):
    import torture_table

    reports = [
        report for kind in ("passed", "failed", "error", "skipped", "") for report in terminalreporter.getreports(kind)
    ]
    if found := torture_table.rows(report for report in reports if hasattr(report, "keywords")):
        terminalreporter.section("torture")
        for line in torture_table.table(found):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """One training step in this process, so that forked processes need not import what it uses."""
    import commands

    home = tmp_path_factory.mktemp("warm")
    (home / "fox.txt").write_text(commands.FOX)
    words = ["train", str(home / "fox.txt"), *commands.SMALL, "steps=1", "workers=0", f"out={home / 'run'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        assert commands.exit_code(*words) == 0


@pytest.fixture
def fox(warm, tmp_path, monkeypatch):
    """A small text file; what is computed from it is cached in the test's folder."""
    import commands

    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fox.txt"
    file.write_text(commands.FOX)
    return str(file)


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    if "commands" in sys.modules:
        sys.modules["commands"].end_all()
