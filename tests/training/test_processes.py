"""Several processes, as torchrun starts them: the same inputs for any number of them, and none is left waiting."""

import gc
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import SMALL, Command, losses, rows, until_step
from safetensors.torch import load_file, save_file

from hopflow.runs import checkpoint
from hopflow.runs.pair_store import PairStore
from hopflow.runs.pretrained import from_pretrained
from hopflow.runs.rectify import rectify
from hopflow.runs.run_folder import read_recipe
from hopflow.training import distributed, loop
from hopflow.training.trainer import Trainer

KEYS = (*SMALL, "save_every=4", "workers=0", "ahead=1")
COUPLED = ("source=uniform", "coupling=exact", "cost=squared_embedding")  # solved by process 0, with its table
COUPLINGS = (["coupling=independent", "accumulate=2"], [*COUPLED])
WITHIN = 60.0
"""Seconds after which a process that lost another one must be gone."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def note_inputs(home: Path):
    """Keep what every step is given, by its number and the process's rank."""

    def patch() -> None:
        update = Trainer.update

        def noted(self: Trainer, step: int, **options: object) -> None:
            update(self, step, **options)
            if not options:  # a step that measures the time, before the run
                return
            sample = self.task.batch(step, self.ot_average).sample
            content = {name: getattr(sample, name).contiguous() for name in ("x0", "x1", "xt", "t")}
            save_file(content, home / f"{step}-{self.share.rank}.safetensors")

        Trainer.update = noted

    return patch


def meeting_place(world: int) -> dict[str, str]:
    """What torchrun would tell each process, but for its rank."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return {**place, "WORLD_SIZE": str(world)}


def start(
    fox: str, out: Path, world: int, *keys: str, inputs: Path | None = None, before: Callable[[], None] | None = None
) -> list[Command]:
    meeting = meeting_place(world)
    return [
        Command(
            *("train", fox, *KEYS, *keys, f"out={out}"),
            log=out.with_name(f"{out.name}-{rank}.log"),
            before=note_inputs(inputs) if inputs else before,
            env={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]


def given(home: Path, step: int) -> dict[str, torch.Tensor]:
    """The inputs of a step, those of all processes one after another."""
    parts = [load_file(file) for file in sorted(home.glob(f"{step}-*.safetensors"))]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("coupling", COUPLINGS, ids=["independent", "exact"])
def test_a_run_resumes_with_another_number_of_processes_on_the_same_batches(fox, tmp_path, coupling):
    homes = {name: tmp_path / f"{name} inputs" for name in ("alone", "changing")}
    for home in homes.values():
        home.mkdir()
    (alone,) = start(fox, tmp_path / "alone", 1, *coupling, "steps=9", inputs=homes["alone"])
    assert alone.wait() == 0, alone.said
    for world, steps in ((1, 3), (2, 6), (1, 9)):  # an OT batch lasts two steps: 3 lies within one
        for command in start(fox, tmp_path / "run", world, *coupling, f"steps={steps}", inputs=homes["changing"]):
            assert command.wait() == 0, command.said
    for step in range(9):
        one, other = given(homes["alone"], step), given(homes["changing"], step)
        assert [name for name in one if not torch.equal(one[name], other[name])] == [], step
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


def test_the_first_process_logs_for_all_and_the_others_report_that_they_run(fox, tmp_path):
    first, second = start(fox, tmp_path / "run", 2, "coupling=independent", "steps=3")
    assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    assert first.said.count("nats per token") == 1
    assert [line.partition("  ")[0] for line in first.said.splitlines() if "loss " in line] == [
        f"step {n}/3" for n in (1, 2, 3)
    ]
    told = [line for line in second.said.splitlines() if "Gloo" not in line]  # its own word on connections
    assert [line.partition("  ")[0] for line in told] == [f"rank 1: step {n}/3" for n in (1, 2, 3)]


def test_processes_use_the_pairs_that_all_have_found_in_a_store_that_grows(fox, tmp_path):
    noise = ("source=uniform", "tokens=char", "steps=6")
    homes = {name: tmp_path / f"{name} inputs" for name in ("alone", "both")}
    for home in homes.values():
        home.mkdir()
    (first,) = start(fox, tmp_path / "first", 1, *noise, "coupling=independent")
    assert first.wait() == 0, first.said
    trained = from_pretrained(tmp_path / "first")
    keys = {"length": 16, "steps": 2, "chunk": 6, "tokenizer": trained.tokenizer.sha256}
    rectify(trained.model, trained.flow, out=tmp_path / "pairs", n=6, **keys)
    pairs = f"coupling=rectified:{tmp_path / 'pairs'}"
    (alone,) = start(fox, tmp_path / "alone", 1, *noise, pairs, inputs=homes["alone"])
    assert alone.wait() == 0, alone.said
    rectify(trained.model, trained.flow, out=tmp_path / "pairs", n=12, **keys)

    def patch() -> None:
        note_inputs(homes["both"])()
        if os.environ["RANK"] == "1":  # it has opened the store before the second file was there
            opened = PairStore.open
            PairStore.open = lambda folder: opened(folder).first(1)

    both = start(fox, tmp_path / "both", 2, *noise, pairs, before=patch)
    assert [command.wait() for command in both] == [0, 0], both[0].said + both[1].said
    for step in range(6):
        one, other = given(homes["alone"], step), given(homes["both"], step)
        assert [name for name in one if not torch.equal(one[name], other[name])] == [], step
    assert read_recipe(tmp_path / "both")["identity"] == read_recipe(tmp_path / "alone")["identity"]


def lose(fox: str, out: Path, victim: int, after: int, world: int = 2) -> None:
    """Kill one process of a run: the others leave within the time, and one process alone goes on."""
    commands = start(fox, out, world, *COUPLED, "steps=100000")
    until_step(commands[0], out, after)
    commands[victim].hit(signal.SIGKILL)
    for rank, command in enumerate(commands):
        code = command.wait(WITHIN)
        if rank == victim:
            assert code == -signal.SIGKILL
        else:
            assert code == 3, command.said
            assert "hopflow: another process of this run has ended" in command.said
            assert "Traceback" not in command.said
    steps = len(rows(out)) + 1
    (again,) = start(fox, out, 1, *COUPLED, f"steps={steps}")
    assert again.wait() == 0, again.said
    assert len(rows(out)) == steps


@pytest.mark.parametrize("victim", [0, 1])
def test_if_one_process_is_killed_the_others_exit(fox, tmp_path, victim):
    lose(fox, tmp_path / "run", victim, 3)


@pytest.mark.torture
def test_after_twenty_killed_processes_no_other_process_waits(fox, tmp_path, tries):
    dice = random.Random(6)
    for trial in range(20):
        lose(fox, tmp_path / str(trial), dice.randrange(2), dice.randrange(1, 12))
        tries["kills"] += 1


def test_a_signal_to_one_process_stops_all_of_them_with_4_once_all_is_saved(fox, tmp_path):
    out = tmp_path / "run"
    commands = start(fox, out, 2, "coupling=independent", "steps=100000")
    until_step(commands[0], out, 2)
    commands[1].hit(signal.SIGTERM)
    assert [command.wait(WITHIN) for command in commands] == [4, 4]
    assert f"saved in {out}; the same command resumes it" in commands[0].said


def join(
    fox: str, out: Path, patches: list[Callable[[], None] | None], missing: int | None, seconds: object
) -> list[Command]:
    """Start as many processes as there are patches, but for one that is `missing`."""
    meeting = {**meeting_place(len(patches)), "HOPFLOW_JOIN_SECONDS": str(seconds)}
    return [
        Command(
            *("train", fox, *KEYS, "coupling=independent", "steps=2", f"out={out}"),
            log=out.with_name(f"{rank}.log"),
            before=patch,
            env={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, patch in enumerate(patches)
        if rank != missing
    ]


def told_that_one_is_missing(command: Command) -> None:
    assert command.wait(WITHIN) == 3, command.said
    assert command.said.count("hopflow: ") == 1
    assert "hopflow: not all 2 processes of this run joined within 1 s: one has ended" in command.said
    assert "Traceback" not in command.said


@pytest.mark.parametrize("missing", [0, 1])
def test_if_one_process_never_starts_the_other_prints_that(fox, tmp_path, missing):
    (command,) = join(fox, tmp_path / "run", [None, None], missing, 1)
    told_that_one_is_missing(command)


def test_if_one_process_ends_while_the_group_forms_the_other_prints_that(fox, tmp_path):
    def end_there() -> None:
        distributed.dist.init_process_group = lambda *how, **keys: os._exit(9)

    first, second = join(fox, tmp_path / "run", [None, end_there], None, 1)
    assert second.wait(WITHIN) == 9
    told_that_one_is_missing(first)


@pytest.mark.slow
def test_once_all_have_joined_a_process_may_take_longer(fox, tmp_path):
    def slowly() -> None:
        wait = loop.wait_for_all

        def late() -> None:
            time.sleep(5.5)
            wait()

        loop.wait_for_all = late

    commands = join(fox, tmp_path / "run", [None, slowly], None, 5)
    assert [command.wait(WITHIN) for command in commands] == [0, 0], commands[0].said


@pytest.mark.parametrize("word", ["soon", "0", "-1", "nan", "inf"])
def test_an_invalid_join_timeout_is_refused(fox, tmp_path, word):
    (command,) = join(fox, tmp_path / "run", [None, None], 1, word)
    assert command.wait(WITHIN) == 2
    assert f"HOPFLOW_JOIN_SECONDS must be a number of seconds above 0 and at most 1,000,000,000, got '{word}'" in (
        command.said
    )


def test_processes_agree_on_a_checkpoint_that_is_due_by_the_clock_of_one(fox, tmp_path):
    out = tmp_path / "run"
    meeting = meeting_place(2)
    commands = [
        Command(
            *("train", fox, *SMALL, "save_every=1000", "keep=9", "steps=3", f"save_minutes={minutes}", f"out={out}"),
            log=tmp_path / f"{rank}.log",
            env={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, minutes in enumerate((0, 1e-9))
    ]
    assert [command.wait(WITHIN) for command in commands] == [0, 0], commands[0].said
    assert checkpoint.steps(out / "checkpoints") == [0, 1, 2, 3]


def test_a_run_that_only_the_first_process_refuses_ends_every_process(fox, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("dear")
    first, second = start(fox, out, 2, "steps=3")
    assert (first.wait(WITHIN), second.wait(WITHIN)) == (2, 3)
    assert "not a run" in first.said
    assert [file.name for file in out.iterdir()] == ["thesis.tex"]


def test_a_forked_process_keeps_its_sockets_when_inherited_files_are_collected(fox, tmp_path):
    def collecting() -> None:
        wait = loop.wait_for_all

        def collect_first() -> None:
            gc.collect()
            wait()

        loop.wait_for_all = collect_first

    gc.disable()  # the sockets shall be unreachable, and still open, when the processes are forked
    try:
        for _ in range(20):
            cycle: list[object] = [socket.socket()]
            cycle.append(cycle)
            del cycle
        commands = join(fox, tmp_path / "run", [collecting, collecting], None, 35)
    finally:
        gc.enable()
    assert [command.wait(WITHIN) for command in commands] == [0, 0], commands[0].said
