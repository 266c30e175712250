"""Child Python processes in an empty folder, so that no file of the user's working directory is run.

`python -m pip` and `python -c …` search modules in the working directory first: a file pip.py or torch.py there would
be run in place of the real one. Every child process of the package is started here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIP_PATHS = ("PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_FIND_LINKS")
"""Settings of pip that may name a file or folder of the working directory."""


class PythonProcess:
    """A running `python -P …` in an empty working directory, which is removed when the process ends."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="hopflow-")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=self.folder,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                **options,
            )
        except BaseException:
            self._remove_folder()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; returns the exit code."""
        return self.process.wait(timeout)

    def output(self, timeout: float) -> tuple[int, bytes]:
        """Wait for the end of the process; returns the exit code and, if stdout is a pipe, its content."""
        try:
            text, _ = self.process.communicate(timeout=timeout)
            return self.process.returncode, text or b""
        finally:
            self.end()

    def end(self, grace: float = 0.0) -> int | None:
        """Wait `grace` seconds, then kill the process; returns the exit code, or None if it was killed."""
        try:
            code: int | None = self.wait(grace)
        except subprocess.TimeoutExpired:
            code = None
        self.process.kill()  # also ends a stopped process
        self.wait()
        self._remove_folder()
        return code

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def import_path() -> list[str]:
    """The folders that this process imports from, as absolute paths, for a child that imports hopflow.

    An entry for the working directory ("" or ".", as with `python -c` and in a prompt) comes last: modules there are
    found, but do not replace installed ones.
    """
    package = str(Path(__file__).resolve().parents[2])
    fixed = [entry for entry in sys.path if Path(entry).is_absolute()]
    relative = [_absolute(entry) for entry in sys.path if not Path(entry).is_absolute()]
    return [*([] if package in fixed else [package]), *fixed, *relative]


def pip_environment() -> dict[str, str]:
    """The environment for running pip in another folder: relative paths become absolute."""
    found = {name: os.environ[name] for name in PIP_PATHS if name in os.environ}
    return os.environ | {name: " ".join(map(_absolute, value.split())) for name, value in found.items()}


def _absolute(word: str) -> str:
    return str(Path(word).absolute()) if Path(word).exists() else word
