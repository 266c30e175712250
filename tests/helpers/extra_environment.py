"""An environment with the packages of an extra, on top of those of this one, so that torch is not installed again."""

import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pages import ROOT


def extra_environment(home: Path, extra: str, unpinned: Sequence[str] = ()) -> Path:
    """The Python of a new environment; packages have the versions of constraints.txt, but for those in `unpinned`."""
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    (packages,) = (home / "venv/lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not (unpinned and line.startswith(tuple(unpinned)))]
    (home / "pins.txt").write_text("\n".join(pins))
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    python = home / "venv/bin/python"
    command = [python, "-m", "pip", "install", "-q", "-c", home / "pins.txt", *needed]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert installed.returncode == 0, installed.stderr
    return python
