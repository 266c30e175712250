"""Cost matrices from a GPU: played by the CPU here, so that every rule but the speed is tested without one."""

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load, save

from hopflow import ExactOT, Flow, SinkhornOT, SquaredEmbedding, Uniform
from hopflow.couplings import OptimalTransport
from hopflow.split import Split
from hopflow.training import crossings
from hopflow.training.crossings import ARRIVED, Crossing, Side, wait_for_arrival
from hopflow.training.ema import Ema
from hopflow.training.problems import Draw
from hopflow.training.sheets import Layout, Sheet
from hopflow.training.streams import stream
from paired_runs import (
    EMBEDDED,
    LENGTH,
    OT_BATCH,
    VOCAB,
    Witness,
    belongings,
    labels,
    pairing,
    plain,
    rows,
    run,
    table,
    until_ready,
)

STEPS = range(26)
SINKHORN = SinkhornOT(SquaredEmbedding(), eps=0.05)


class Clock:
    """An event that has passed after some looks, or once it is waited for."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.waited = False

    def query(self) -> bool:
        self.looks -= 1
        return self.waited or self.looks < 0

    def synchronize(self) -> None:
        self.waited = True


class Pretend(Side):
    """A CPU in the part of a GPU, which needs three looks to get its numbers across."""

    looks = 3

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.asked: list[torch.Tensor] = []

    def handed(self, table):
        self.asked.append(table)

    def up(self, rows):
        return rows.clone()

    def locked(self, like):
        return torch.empty_like(like)

    def beside(self):
        return nullcontext()

    def mark(self):
        return Clock(self.looks)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(crossings, "elsewhere", lambda table: True)
    monkeypatch.setattr(crossings, "Side", Pretend)
    monkeypatch.setattr(Sheet, "lock", lambda self: True)


# --- the same pairs


@pytest.mark.parametrize("coupling", [EMBEDDED, SINKHORN], ids=["exact", "sinkhorn"])
@pytest.mark.parametrize("groups", [None, labels], ids=["all", "grouped"])
def test_pairs_whose_cost_is_computed_on_the_gpu_are_those_whose_cost_is_computed_by_a_worker(
    coupling, groups, monkeypatch
):
    found = plain(coupling, STEPS, groups=groups)
    monkeypatch.setattr(crossings, "elsewhere", lambda table: False)
    assert torch.equal(found, plain(coupling, STEPS, groups=groups))


def followed(paired) -> tuple[torch.Tensor, list]:
    """The pairs of all steps, and what their reports say."""
    pairs, numbers = [], []
    for step in STEPS:
        pairs.append(torch.stack(paired.step(step, table(step))))
        report = paired.report(step)
        numbers.append((report.cost, report.independent_cost, report.marginal_error, report.information))
    return torch.stack(pairs), numbers


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_pairs_and_numbers_are_bitwise_those_of_any_number_of_workers_and_nothing_is_left_behind(workers):
    before = belongings()
    with until_ready(pairing(SINKHORN, workers=workers, ahead=4)) as paired:
        got = followed(paired)
        assert not paired.report(STEPS[-1]).in_place
    paired.close()
    assert belongings() == before
    with pairing(SINKHORN, ahead=4) as paired:
        expected = followed(paired)
    assert torch.equal(got[0], expected[0])
    assert got[1] == expected[1]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_with_as_many_ot_batches_ahead_as_there_are_workers_all_of_them_solve_at_once(workers):
    with until_ready(pairing(EMBEDDED, workers=workers, ahead=workers)) as paired:
        hands = {id(worker): 0 for worker in paired._crew.workers}
        for worker in paired._crew.workers:
            worker.give = lambda task, worker=worker: (
                worker.held.update({task.ticket: task}),
                hands.update({id(worker): 1}),
            )
        paired._crew.take = lambda ticket: None  # the first one is solved in place, and the others stay where they are
        for step in range(4):
            paired.step(step, table(step))
    assert sum(hands.values()) == workers


def test_killed_workers_and_sheets_that_cannot_be_locked_change_no_bit(monkeypatch, caplog):
    monkeypatch.setattr(Sheet, "lock", lambda self: False)
    with until_ready(pairing(EMBEDDED, workers=2)) as paired:
        first = run(paired, range(9))
        os.kill(paired._crew.workers[0].process.pid, signal.SIGKILL)
        rest = run(paired, range(9, 26))
    assert torch.equal(torch.cat([first, rest]), plain(EMBEDDED, STEPS))
    assert "was killed by SIGKILL" in caplog.text


@pytest.mark.parametrize("start", [1, 4, 13])
def test_a_run_goes_on_from_its_state_with_the_same_bits(start):
    with pairing(EMBEDDED, workers=1) as first:
        run(first, range(start))
        state = load(save(first.state_dict()))
    with pairing(EMBEDDED) as second:
        second.load_state_dict(state)
        assert torch.equal(run(second, range(start, 26)), plain(EMBEDDED, range(start, 26)))


# --- which table, and when


@pytest.mark.parametrize("ahead", [0, 2, 3])
def test_the_matrix_is_of_the_table_of_the_step_that_the_rule_names(ahead):
    with pairing(EMBEDDED, ahead=ahead) as paired:
        live = torch.empty_like(table(0))
        for step in range(20):
            live.copy_(table(step))
            paired.step(step, live)
            live.fill_(torch.nan)
        (side,) = paired._sides.values()
    opened = [0] * (ahead + 1) + [4 * b for b in range(1, 5)]
    assert len(side.asked) == len(opened)
    assert all(torch.equal(seen, table(step)) for seen, step in zip(side.asked, opened, strict=True))


def test_an_average_is_read_as_it_is_without_a_copy_and_its_update_does_not_change_what_is_read():
    average, values = Ema(table(0), decay=0.0), []
    with pairing(EMBEDDED, ahead=0) as paired:
        for step in range(12):
            values.append(average.value)
            paired.step(step, average)
            average.update(table(step + 1), step, sound=torch.ones(()))
        (side,) = paired._sides.values()
    assert [next(i for i, value in enumerate(values) if value is seen) for seen in side.asked] == [0, 4, 8]
    assert all(torch.equal(seen, table(step)) for seen, step in zip(side.asked, (0, 4, 8), strict=True))


def test_where_the_trainer_must_help_a_worker_is_given_an_ot_batch_once_its_matrix_has_arrived(monkeypatch):
    monkeypatch.setattr(Sheet, "lock", lambda self: False)
    with until_ready(pairing(EMBEDDED, workers=1)) as paired:
        run(paired, range(4))  # the first one was needed at once, and waited for
        late = [paired._jobs[index] for index in (1, 2)]
        assert all(job.ticket is not None for job in late)  # the fourth look was that of step 3
        paired.step(4, table(4))
        assert paired._jobs[3].crossing is not None
        for step in (5, 6):
            paired.step(step, table(step))
            assert paired._jobs[3].ticket is None
        paired.step(7, table(7))
        assert paired._jobs[3].ticket is not None


class Delivery:
    """A transfer that ends when it is waited for, the mark of its arrival last."""

    def __init__(self, parts: dict[str, torch.Tensor], sheet: Sheet) -> None:
        self.parts, self.sheet = parts, sheet

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        for name, part in self.parts.items():
            self.sheet[name].copy_(part)


class Slow(Pretend):
    def send(self, priced, sheet):
        sheet["pairwise"].fill_(torch.nan)  # what a hasty worker would read
        sheet[ARRIVED].zero_()
        return Crossing(Delivery(priced, sheet), {}, sheet)


def test_a_worker_holds_an_ot_batch_before_its_matrix_is_there_and_waits_for_it_without_the_trainer(
    monkeypatch, caplog
):
    monkeypatch.setattr(crossings, "Side", Slow)
    with until_ready(pairing(EMBEDDED, workers=1)) as paired:
        first = run(paired, range(4))
        assert [paired._jobs[index].ticket is not None for index in (1, 2)] == [True, True]
        (worker,) = paired._crew.workers
        assert set(worker.held) >= {paired._jobs[1].ticket, paired._jobs[2].ticket}
        rest = run(paired, range(4, 26))
        assert not paired.report(25).in_place
    assert caplog.text == ""
    assert torch.equal(torch.cat([first, rest]), plain(EMBEDDED, STEPS))


def test_the_mark_of_arrival_is_sent_last_and_is_taken_back_before_a_sheet_is_used_again():
    side, u = Pretend(torch.device("cpu")), Draw(3, 5, OT_BATCH, 8).uniforms(LENGTH)
    priced = side.price(SquaredEmbedding(), Uniform(VOCAB), u, rows(5), table(0))
    assert list(priced)[-1] == ARRIVED
    sheet, looks = Sheet(Layout.of(**priced)), []
    sheet[ARRIVED].fill_(1)
    side.send({name: part for name, part in priced.items() if name != ARRIVED}, sheet)
    assert not sheet[ARRIVED].any()

    def look():
        looks.append(len(looks))
        sheet[ARRIVED].fill_(len(looks) == 3)

    wait_for_arrival(sheet, look)
    assert looks == [0, 1, 2]
    wait_for_arrival(Sheet(Layout.of(x1=rows(5))), lambda: pytest.fail("nothing is on its way"))
    sheet.close()


def test_nothing_is_on_its_way_when_a_pairing_is_closed():
    with pairing(EMBEDDED, workers=1) as paired:
        paired.step(0, table(0))
        under_way = [job.crossing for job in paired._jobs.values() if job.crossing is not None]
    assert len(under_way) == 2
    assert all(crossing._event.waited for crossing in under_way)


# --- couplings that see the rows


@dataclass(frozen=True)
class Reversed(ExactOT):
    """A newcomer's coupling with a `match` of its own."""

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        return super().match(x0.flip(0), x1, generator, embedding=embedding)


@pytest.mark.parametrize("coupling", [Witness(), Reversed(SquaredEmbedding())], ids=["plain", "derived"])
def test_a_coupling_with_a_match_of_its_own_is_given_rows_and_the_table_as_ever(coupling, monkeypatch):
    with pairing(coupling) as paired:
        found = run(paired, STEPS)
        assert paired._sides == {}
    monkeypatch.setattr(crossings, "elsewhere", lambda table: False)
    assert torch.equal(found, plain(coupling, STEPS))


@dataclass(frozen=True)
class Greedy(OptimalTransport):
    """A newcomer's coupling that asks for the matrix alone."""

    cost: SquaredEmbedding = SquaredEmbedding()

    def solve(self, split: Split, generator=None):
        return ExactOT(self.cost).solve(split, generator)


def test_a_newcomers_solver_is_given_the_matrix():
    with pairing(Greedy()) as paired:
        found = run(paired, STEPS)
        assert len(paired._sides) == 1
    assert torch.equal(found, plain(EMBEDDED, STEPS))


def test_a_cost_that_is_no_number_is_refused_when_its_pairs_are_due():
    with pairing(EMBEDDED) as paired, pytest.raises(ValueError, match="NaN"):
        paired.step(0, table(0) * torch.nan)


# --- the parts


def test_source_rows_are_looked_up_at_the_numbers_that_sample_would_draw():
    u = Draw(3, 5, OT_BATCH, 8).uniforms(LENGTH)
    expected = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", 5))
    assert torch.equal(Flow(Uniform(VOCAB)).source.at(u), expected)


def test_a_sheet_holds_every_place_apart_from_the_others():
    parts = {"a": torch.arange(7), "b": torch.rand(3, 5), "c": torch.rand(1, dtype=torch.float64)}
    sheet = Sheet(Layout.of(nothing=None, **parts))
    for name, part in parts.items():
        sheet[name].copy_(part)
    assert all(torch.equal(sheet[name], part) for name, part in parts.items())
    assert sheet.get("nothing") is None
    with pytest.raises(KeyError):
        sheet["nothing"]
    sheet.close()


def test_numbers_that_came_by_way_of_other_memory_are_on_the_sheet_once_they_have_arrived():
    part = torch.rand(4, 4)
    sheet = Sheet(Layout.of(pairwise=part))
    crossing = Crossing(Clock(1), {"pairwise": part}, sheet)
    assert not crossing.arrived()
    assert not sheet["pairwise"].any()
    assert crossing.arrived()
    assert torch.equal(sheet["pairwise"], part)
    part.zero_()
    crossing.wait()
    assert sheet["pairwise"].any()
    sheet.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to lock it for")
def test_without_a_gpu_a_sheet_is_not_locked(monkeypatch):
    monkeypatch.undo()
    sheet = Sheet(Layout.of(x=torch.zeros(10)))
    assert not sheet.lock()
    sheet.close()
