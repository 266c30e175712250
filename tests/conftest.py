"""Set before hopflow is imported: checked shapes, one torch thread per worker, repeatable property tests."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores; inherited by the processes that tests start
os.environ["HOPFLOW_REPORT"] = "off"  # seconds of drawing at the end of every command; tests of reports turn it on

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

torch.set_num_threads(1)


def checked_modules() -> list[str]:
    """Modules whose shapes are checked: all but packages, which would include theirs, and Triton kernels.

    Triton compiles the source of a kernel, which the import hook would have changed.
    """
    found = find_spec("hopflow")
    assert found is not None, "hopflow is not installed"
    package = Path(str(found.origin)).parent
    files = (file.relative_to(package.parent).with_suffix("") for file in package.rglob("*.py"))
    return [".".join(file.parts) for file in files if file.name[:2] != "__" and not file.name.startswith("triton_")]


if find_spec("beartype"):  # a machine may have only what hopflow itself needs
    install_import_hook(checked_modules(), "shape_checks.checked")

settings.register_profile(
    "hopflow", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hopflow")


@pytest.fixture
def hopflow(monkeypatch, capsys):
    """Run a command in this process: its exit code, stdout and stderr."""
    from hopflow import cli

    def command(*arguments: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["hopflow", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=out, err=err)

    return command
