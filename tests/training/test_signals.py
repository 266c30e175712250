"""Signals and kills, through the command line: what was saved goes on, to the bit, and nothing is left behind."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import FOX, SMALL, Command, alive, children, litter, losses, rows, until, until_step

from hopflow.runs import checkpoint
from hopflow.training.signals import Interrupted, StopSignals
from hopflow.training.trainer import Trainer

STEPS = 12
LONG = 100_000
COUPLED = ("source=uniform", "coupling=exact", "cost=squared_embedding")  # pairs that workers can solve
KEYS = (*SMALL, *COUPLED, "save_every=5")
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)


def command(fox: str, out: Path, steps: int = STEPS, workers: int = 0, **options: object) -> Command:
    words = ("train", fox, *KEYS, f"workers={workers}", f"steps={steps}", f"out={out}")
    return Command(*words, log=out.with_suffix(".log"), **options)


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory) -> list[object]:
    """The losses of a run that nobody disturbs."""
    home = tmp_path_factory.mktemp("whole")
    (home / "fox.txt").write_text(FOX)
    run = command(str(home / "fox.txt"), home / "run", env={"HOPFLOW_CACHE": str(home / "cache")})
    assert run.wait() == 0, run.said
    return losses(home / "run")


def interrupt(fox: str, out: Path, number: signal.Signals, after: int, fresh: bool = False) -> int:
    """Hit a run that is told to take very many steps; the steps it took before it left."""
    run = command(fox, out, LONG, fresh=fresh)
    until_step(run, out, after)
    run.hit(number)
    assert run.wait() == 4, run.said
    assert "Traceback" not in run.said
    saved = checkpoint.latest(out / "checkpoints").step
    assert f"stopped at step {saved} of {LONG} and saved in {out}; the same command resumes it" in run.said
    assert len(rows(out)) == saved >= after
    assert litter(out) == []
    return saved


def goes_on(fox: str, out: Path, whole: list[object], saved: int) -> None:
    """With the steps of the undisturbed run, where it has not taken more already."""
    if saved > STEPS:
        assert losses(out)[:STEPS] == whole
        return
    again = command(fox, out)
    assert again.wait() == 0, again.said
    assert losses(out) == whole
    assert litter(out) == []


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_a_signal_finishes_the_step_saves_exits_with_4_and_prints_how_to_resume(fox, tmp_path, whole, number):
    for after in (1, 6):
        out = tmp_path / f"{number}-{after}"
        goes_on(fox, out, whole, interrupt(fox, out, number, after))


def endless(home: Path, step: int) -> Callable[[], None]:
    """Makes one step of a run endless; leaves a file when it is there, and another when a signal is noted."""

    def patch() -> None:
        update, note = Trainer.update, StopSignals._handle

        def stuck(self: Trainer, at: int, **options: object) -> None:
            update(self, at, **options)
            while at == step and "stop" in options:  # a step of the run, not one that is timed before it
                (home / "stuck").touch()
                time.sleep(0.01)

        def handle(self: StopSignals, *what: object) -> None:
            (home / "noted").touch()
            note(self, *what)

        Trainer.update, StopSignals._handle = stuck, handle

    return patch


@pytest.mark.parametrize("step", [0, 7])
def test_a_second_ctrl_c_stops_at_once_and_the_folder_loads(fox, tmp_path, whole, step):
    out = tmp_path / "run"
    run = command(fox, out, LONG, before=endless(tmp_path, step))
    until((tmp_path / "stuck").exists, "the endless step")
    run.hit(signal.SIGINT)
    until((tmp_path / "noted").exists, "the first signal")
    assert not run.over
    run.hit(signal.SIGINT)
    assert run.wait() == 4, run.said
    assert run.message == "hopflow: interrupted\n"
    assert "Traceback" not in run.said
    goes_on(fox, out, whole, checkpoint.latest(out / "checkpoints").step)


def test_signals_are_handled_only_inside_the_context():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before
    assert issubclass(Interrupted, KeyboardInterrupt)


@pytest.mark.torture
def test_fifty_signals_at_any_moment_lose_no_step(fox, tmp_path, whole, tries):
    dice = random.Random(4)
    for trial in range(50):
        out, number = tmp_path / str(trial), (signal.SIGTERM, signal.SIGINT)[trial % 2]
        goes_on(fox, out, whole, interrupt(fox, out, number, dice.randrange(1, 11), fresh=trial >= 48))
        tries["signals"] += 1


@pytest.mark.torture
def test_fifty_second_ctrl_cs_at_any_moment(fox, tmp_path, whole, tries):
    """In the step, in the save that the first one asked for, or after it."""
    dice = random.Random(5)
    for trial in range(50):
        out = tmp_path / str(trial)
        run = command(fox, out, LONG)
        until_step(run, out, dice.randrange(1, 9))
        run.hit(signal.SIGINT)
        time.sleep(dice.random() * 0.1)
        run.hit(signal.SIGINT)
        assert run.wait() == 4, run.said
        assert "Traceback" not in run.said
        goes_on(fox, out, whole, checkpoint.latest(out / "checkpoints").step)
        tries["second Ctrl-Cs"] += 1


def killed(fox: str, out: Path, whole: list[object], dice: random.Random, fresh: bool = False) -> tuple[int, set[int]]:
    """Kill it at random moments, each time a bit further, until it is done; then compare. Returns kills and workers."""
    workers: set[int] = set()
    first = kills = 0
    while True:
        run = command(fox, out, workers=1, fresh=fresh)
        first += dice.randrange(2, 6)
        until_step(run, out, first)
        workers |= children(run.pid)
        if run.over:
            break
        run.hit(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        kills += 1
        found = checkpoint.latest(out / "checkpoints")
        assert found is None or found.step >= len(rows(out)) - 5 - 1
    assert run.code == 0, run.said
    assert losses(out) == whole
    assert litter(out) == []
    until(lambda: not any(map(alive, workers)), "the end of the OT workers")
    return kills, workers


def test_kill_9_at_random_moments_changes_no_loss_and_leaves_no_litter_and_no_worker(fox, tmp_path, whole):
    _, workers = killed(fox, tmp_path / "run", whole, random.Random(2))
    assert workers


@pytest.mark.torture
def test_twenty_processes_killed_at_any_moment_leave_a_run_that_resumes(fox, tmp_path, whole, tries):
    dice, kills, seen = random.Random(3), 0, set[int]()
    for trial in range(20):
        out = tmp_path / str(trial)
        run = command(fox, out, workers=1, fresh=True)
        until_step(run, out, dice.randrange(0, STEPS))
        workers = children(run.pid)
        run.hit(signal.SIGKILL)
        kills += run.wait() == -signal.SIGKILL
        if out.exists():
            checkpoint.latest(out / "checkpoints")
        more, others = killed(fox, out, whole, dice)
        tries["further kills"] += more
        seen |= workers | others
        until(lambda workers=workers: not any(map(alive, workers)), "the end of the OT workers")
        tries["kills"] = kills
    assert kills > 15
    assert len(seen) > 15


def test_a_run_that_was_killed_before_it_had_a_recipe_starts(fox, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name in (".lock", ".recipe.json.4711.tmp"):
        (out / name).write_text("")
    run = command(fox, out, 1)
    assert run.wait() == 0, run.said
    assert litter(out) == []


def test_the_second_run_in_a_folder_is_refused(fox, tmp_path):
    out = tmp_path / "run"
    first = command(fox, out, LONG)
    until_step(first, out, 1)
    second = command(fox, out, LONG)
    assert second.wait() == 2
    assert f"hopflow: another process is training in {out}: wait for it, or choose another folder" in second.said
    assert "Traceback" not in second.said
    assert not first.over
    first.hit(signal.SIGTERM)
    assert first.wait() == 4
