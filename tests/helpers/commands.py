"""The command line in processes of its own: forked from a warm one, which need not import torch again, or fresh.

What a test of signals and kills needs: start `hopflow …`, wait for a step, hit it, read what it said.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hopflow import cli
from hopflow.training import train  # noqa: F401  (imported before the fork, so that no child has to)

PATIENCE = 60.0
FOX = "the quick brown fox jumps over the lazy dog, and the dog sleeps on; who would not? " * 40
SMALL = ("length=16", "batch=4", "ot_batch=8", "holdout=0.1", "log_every=1", "eval_every=0", "eval_rows=2")
SMALL += ("eval_samples=2", "eval_steps=2", "warmup=2", "device=cpu")


RUNNING: list["Command"] = []


def end_all() -> None:
    """Whatever a failed test has left running."""
    while RUNNING:
        command = RUNNING.pop()
        if not command.over:
            command.hit(signal.SIGKILL)
            command.wait()


def exit_code(*arguments: object) -> int:
    """Run `hopflow ARGUMENTS` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hopflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


class Command:
    """`hopflow ARGUMENTS` in a process of its own; `before` runs in it first (forked ones only)."""

    def __init__(
        self,
        *arguments: str,
        log: Path,
        fresh: bool = False,
        before: Callable[[], None] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.log = log
        self._start = self._fresh if fresh else self._forked
        self.pid = self._start(arguments, before, env or {})
        self.code: int | None = None
        RUNNING.append(self)

    def hit(self, number: int = signal.SIGKILL) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self, patience: float = PATIENCE) -> int:
        """The exit code; minus the signal's number for a process that was killed."""
        try:
            until(lambda: self.over, "the end of the command", patience)
        except AssertionError as error:
            self.hit(signal.SIGABRT)  # a forked one writes the stacks of its threads into its log
            until(lambda: self.over, "its end after SIGABRT")
            raise AssertionError(f"{error}; it printed:\n{self.said}") from None
        assert self.code is not None
        return self.code

    @property
    def over(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def message(self) -> str:
        """The last thing it said that is addressed to the user, up to its end."""
        return "hopflow: " + self.said.rpartition("\nhopflow: ")[2].removeprefix("hopflow: ")

    def _forked(self, arguments: tuple[str, ...], before: Callable[[], None] | None, env: dict[str, str]) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for stream in (1, 2):
                os.dup2(output, stream)
            let_go_of_inherited_files()
            # past whatever pytest has put in their place
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            faulthandler.enable(sys.stderr)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            os.environ |= env
            sys.argv = ["hopflow", *arguments]
            if before:
                before()
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        raise AssertionError

    def _fresh(self, arguments: tuple[str, ...], before: Callable[[], None] | None, env: dict[str, str]) -> int:
        assert before is None
        program = "from hopflow.cli import main; main()"
        with self.log.open("ab") as output:
            # not waited for by `subprocess`: `over` does
            process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
            )
        process.returncode = 0  # so that its finalizer leaves the process alone
        return process.pid


def let_go_of_inherited_files() -> None:
    """Replace every file that a forked process inherited by the null device.

    Whoever waits for the end of pytest's own output shall not wait for this process. The descriptors stay taken:
    an inherited object that is collected later closes its descriptor, which must not be one of a new socket by then.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in [file.name for file in Path("/dev/fd").iterdir()]:
        if int(name) > 2 and int(name) != nothing:
            with suppress(OSError):  # the listing's own descriptor is closed already
                os.fstat(int(name))
                os.dup2(nothing, int(name))


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"waited {patience:g} s for {what}"
        time.sleep(0.002)


def rows(folder: Path) -> list[dict[str, object]]:
    """The whole rows of a metrics file that may be written to right now."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(folder: Path) -> list[object]:
    return [row["loss"] for row in rows(folder)]


def until_step(command: Command, folder: Path, step: int) -> None:
    """Until the run has logged so many steps, or is over."""
    until(lambda: command.over or len(rows(folder)) >= step, f"step {step}")


def is_one_message(said: str) -> bool:
    """What a mistake is answered with: at most six lines, and no traceback."""
    return said.startswith("hopflow: ") and len(said.splitlines()) <= 6 and "Traceback" not in said


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that none has changed."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def children(pid: int) -> set[int]:
    """The processes that a process has started and not yet seen end."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return {int(child) for child in file.read_text().split()}
    except OSError:
        return set()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def litter(folder: Path) -> list[str]:
    """Whatever a run folder holds besides what it should."""
    known = {"recipe.json", "metrics.jsonl", "metrics.csv", "samples.jsonl", "checkpoints", ".lock", "tensorboard"}
    found = [f.name for f in folder.iterdir() if f.name not in known]
    return found + [f.name for f in (folder / "checkpoints").iterdir() if not f.name.startswith("step-")]
