"""A run and its terminal: who watches may leave, and the streams may be closed from the start."""

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from commands import FOX, SMALL, Command, losses, rows, until, until_step

from hopflow.cli.standard_streams import keep_open
from hopflow.runs import checkpoint
from hopflow.training.signals import StopSignals

LONG = 100_000
STEPS = 12
QUIET = {"HOPFLOW_REPORT": "off"}
SLOW = pytest.mark.slow
UNSET = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR")


def words(fox: str, out: Path, steps: int) -> tuple[str, ...]:
    return ("train", fox, *SMALL, "save_every=100000", "workers=0", f"steps={steps}", f"out={out}")


def on_terminal(name: str, ignored: tuple[int, ...] = ()) -> Callable[[], None]:
    """Give a forked command this terminal, as its session's leader; signals that are `ignored` are so on entry."""

    def take() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        for variable in UNSET:
            os.environ.pop(variable, None)
        os.environ["TERM"] = "xterm"
        os.setsid()
        terminal = os.open(name, os.O_RDWR)  # the first one that a session's leader opens is its own
        into(terminal, terminal, terminal)

    return take


def into(*descriptors: int) -> None:
    """Replace the standard streams of this process."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115


def lost(fox: str, out: Path, steps: int, ignored: tuple[int, ...] = ()) -> Command:
    """A run whose terminal is closed after a few steps."""
    ours, theirs = pty.openpty()
    before = on_terminal(os.ttyname(theirs), ignored)
    run = Command(*words(fox, out, steps), log=out.with_suffix(".log"), before=before, env=QUIET)
    os.set_blocking(ours, False)
    shown = b""

    def watched() -> bool:
        nonlocal shown
        with suppress(BlockingIOError):  # read, or the run would wait
            shown += os.read(ours, 65536)
        return run.over or (b"loss" in shown and len(rows(out)) >= 3)

    until(watched, "three steps on a terminal")
    assert not run.over
    for end in (ours, theirs):
        os.close(end)
    return run


def test_a_closed_terminal_saves_and_leaves_with_4(fox, tmp_path):
    out = tmp_path / "run"
    assert lost(fox, out, LONG).wait() == 4
    assert checkpoint.latest(out / "checkpoints").step == len(rows(out)) >= 3


def test_a_run_that_ignores_hangups_survives_its_terminal(fox, tmp_path):
    out = tmp_path / "run"
    run = lost(fox, out, STEPS, ignored=(signal.SIGHUP,))
    assert run.wait() == 0
    assert len(rows(out)) == checkpoint.latest(out / "checkpoints").step == STEPS
    assert run.said == ""


def test_a_run_goes_on_to_its_end_where_nobody_reads_its_pipe(fox, tmp_path):
    reading, writing = os.pipe()
    out = tmp_path / "run"
    pipe = f"/proc/{os.getpid()}/fd/{writing}"

    def piped() -> None:
        pipe_end = os.open(pipe, os.O_WRONLY)
        into(0, pipe_end, pipe_end)
        os.close(pipe_end)

    run = Command(*words(fox, out, STEPS), log=out.with_suffix(".log"), before=piped, env=QUIET)
    until_step(run, out, 3)
    for end in (reading, writing):
        os.close(end)
    assert run.wait() == 0
    assert len(rows(out)) == checkpoint.latest(out / "checkpoints").step == STEPS
    quiet = Command(*words(fox, tmp_path / "quiet", STEPS), log=tmp_path / "quiet.log", env=QUIET)
    assert quiet.wait() == 0, quiet.said
    assert losses(out) == losses(tmp_path / "quiet")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU], ids=lambda number: number.name)
def test_a_signal_that_a_program_ignores_or_handles_stays_its_own(number):
    noted = []
    for handler in (signal.SIG_IGN, lambda *what: noted.append(what)):
        before = signal.signal(number, handler)
        try:
            with StopSignals() as stop:
                signal.raise_signal(number)
                assert signal.getsignal(number) is handler
                assert stop.received is None
        finally:
            signal.signal(number, before)
    assert len(noted) == 1
    with StopSignals() as stop:
        signal.raise_signal(number)
    assert stop.received == number.name
    assert signal.getsignal(number) == before


# -- streams that are closed from the start, or whose reader is gone ---------------------------------------------------


def closed(*numbers: int) -> Callable[[], None]:
    """As `>&-` of a shell leaves a process: without the descriptor, and with None in place of the stream."""

    def close() -> None:
        for number in numbers:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)

    return close


def unread(*numbers: int) -> Callable[[], None]:
    def pipe() -> None:
        reading, writing = os.pipe()
        os.close(reading)
        streams = [writing if number in numbers else number for number in range(3)]
        into(*streams)
        os.close(writing)

    return pipe


STREAMS = {
    "<&-": closed(0),
    ">&-": closed(1),
    "2>&-": closed(2),
    "<&- >&- 2>&-": closed(0, 1, 2),
    "| true": unread(1),
    "2>&1 | true": unread(1, 2),
}
COMMANDS = ("--help", "--version", "list", "config keys", "config show text", "doctor", "data list")
LONGER = ("sample RUN n=2 steps=2 device=cpu", "train FOX out=NEW steps=1")
LONGEST = ("eval RUN device=cpu", "compare RUN OTHER", "report RUN")


@pytest.fixture(scope="module")
def home(warm, tmp_path_factory):
    """Two runs of one step."""
    home = tmp_path_factory.mktemp("runs")
    (home / "fox.txt").write_text(FOX)
    for name in ("RUN", "OTHER"):
        made = Command(*words(str(home / "fox.txt"), home / name, 1), log=home / "made.log", env=QUIET)
        assert made.wait() == 0, made.said
    return home


def attempt(home: Path, out: Path, command: str, redirection: str) -> None:
    """The command succeeds, and there is no word of a failure in what can still be read."""
    small = (*SMALL, "workers=0") if command.startswith("train") else ()
    paths = {"RUN": home / "RUN", "OTHER": home / "OTHER", "FOX": home / "fox.txt"}
    arguments = [str(paths.get(word, word)).replace("=NEW", f"={out}") for word in command.split()]
    run = Command(*arguments, *small, log=out.with_suffix(".log"), before=STREAMS[redirection], env=QUIET)
    assert run.wait() == 0, (command, redirection, run.said)
    for word in ("Traceback", "hopflow: ", "Broken pipe"):
        assert word not in run.said, (command, redirection)


@pytest.mark.parametrize("redirection", STREAMS)
def test_short_commands_do_not_fail_where_streams_are_closed_or_nobody_reads(home, tmp_path, redirection):
    for place, command in enumerate(COMMANDS):
        attempt(home, tmp_path / str(place), command, redirection)


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "2>&1 | true"])
def test_sampling_and_training_do_not_fail_where_streams_are_closed_or_nobody_reads(home, tmp_path, redirection):
    for place, command in enumerate(LONGER):
        attempt(home, tmp_path / str(place), command, redirection)


@pytest.mark.slow
def test_long_commands_do_not_fail_where_streams_are_closed_or_nobody_reads(home, tmp_path):
    for name in ("RUN", "OTHER"):
        assert Command("eval", str(home / name), "device=cpu", log=home / "eval.log").wait() == 0
    for command in LONGEST:
        for place, redirection in enumerate(STREAMS):
            attempt(home, tmp_path / str(place), command, redirection)


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", pytest.param("2>&1 | true", marks=SLOW)])
def test_a_command_in_a_shell_pipeline_does_not_fail_when_its_reader_is_gone(redirection, tmp_path):
    program = shlex.join([sys.executable, "-m", "hopflow", "config", "keys"])
    # bash, not sh: PIPESTATUS has the code of a command whose pipe goes on
    script = f"{program} {redirection}; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_keeps_its_code_where_nobody_reads_the_message(tmp_path):
    run = Command("train", str(tmp_path / "none.txt"), log=tmp_path / "log", before=unread(1, 2))
    assert run.wait() == 2
    assert run.said == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_result_that_cannot_be_stored_is_still_an_error(tmp_path):
    def full() -> None:
        full, log = os.open("/dev/full", os.O_WRONLY), os.dup(2)
        into(0, full, log)

    run = Command("list", log=tmp_path / "log", before=full)
    assert run.wait() == 3
    assert "No space left on device" in run.said


def test_output_larger_than_a_full_nonblocking_pipe_is_written_completely(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    program = "import sys; sys.stdout.write(sys.stdin.read())"
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        monkeypatch.setattr(sys, "stdin", sys.stdin)
        keep_open()
        reader = subprocess.Popen([sys.executable, "-c", program], stdin=reading, stdout=subprocess.PIPE, text=True)
        os.close(reading)
        sys.stdout.write("a" * 300_000)
        sys.stdout.flush()
    assert len(reader.communicate(timeout=60)[0]) == 300_000
