"""Cost matrices from a GPU: simulated on the CPU here, so that every rule but the speed is tested without one."""

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
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
from safetensors.torch import load, save

from hopflow import ExactOT, Flow, SinkhornOT, SquaredEmbedding, Uniform
from hopflow.couplings import OptimalTransport
from hopflow.runs.ot_batch import OTDraw
from hopflow.runs.rng import stream
from hopflow.training.averages import Ema
from hopflow.training.pairing import gpu_costs
from hopflow.training.pairing import pairs as pairs_module
from hopflow.training.pairing.gpu_costs import ARRIVED, SideStream, Transfer, wait_for_arrival
from hopflow.training.pairing.shared_memory import BufferLayout, SharedBuffer
from hopflow.transport.cost_matrix import CostMatrix

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


class Pretend(SideStream):
    """A CPU in the part of a GPU, which needs three looks to get its numbers across."""

    looks = 3

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.asked: list[torch.Tensor] = []

    def wait_for_table(self, table):
        self.asked.append(table)

    def upload(self, rows):
        return rows.clone()

    def pinned_like(self, tensor):
        return torch.empty_like(tensor)

    def entered(self):
        return nullcontext()

    def record_event(self):
        return Clock(self.looks)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(pairs_module, "is_on_gpu", lambda table: True)
    monkeypatch.setattr(gpu_costs, "SideStream", Pretend)
    monkeypatch.setattr(SharedBuffer, "pin", lambda self: True)


# --- the same pairs


@pytest.mark.parametrize("coupling", [EMBEDDED, SINKHORN], ids=["exact", "sinkhorn"])
@pytest.mark.parametrize("groups", [None, labels], ids=["all", "grouped"])
def test_pairs_whose_cost_is_computed_on_the_gpu_are_those_whose_cost_is_computed_by_a_worker(
    coupling, groups, monkeypatch
):
    found = plain(coupling, STEPS, groups=groups)
    monkeypatch.setattr(pairs_module, "is_on_gpu", lambda table: False)
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
        hands = {id(worker): 0 for worker in paired._shared.pool.workers}
        for worker in paired._shared.pool.workers:
            worker.send = lambda task, worker=worker: (
                worker.held.update({task.ticket: task}),
                hands.update({id(worker): 1}),
            )
        paired._shared.pool.take = lambda ticket: (
            None
        )  # the first one is solved in place, and the others stay where they are
        for step in range(4):
            paired.step(step, table(step))
    assert sum(hands.values()) == workers


def test_killed_workers_and_buffers_that_cannot_be_pinned_change_no_bit(monkeypatch, caplog):
    monkeypatch.setattr(SharedBuffer, "pin", lambda self: False)
    with until_ready(pairing(EMBEDDED, workers=2)) as paired:
        first = run(paired, range(9))
        os.kill(paired._shared.pool.workers[0].process.pid, signal.SIGKILL)
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
        (side,) = paired._shared.streams.values()
    opened = [0] * (ahead + 1) + [4 * b for b in range(1, 5)]
    assert len(side.asked) == len(opened)
    assert all(torch.equal(seen, table(step)) for seen, step in zip(side.asked, opened, strict=True))


def test_an_average_is_read_as_it_is_without_a_copy_and_its_update_does_not_change_what_is_read():
    average, values = Ema(table(0), decay=0.0), []
    with pairing(EMBEDDED, ahead=0) as paired:
        for step in range(12):
            values.append(average.value)
            paired.step(step, average)
            average.update(table(step + 1), step, finite=torch.ones(()))
        (side,) = paired._shared.streams.values()
    assert [next(i for i, value in enumerate(values) if value is seen) for seen in side.asked] == [0, 4, 8]
    assert all(torch.equal(seen, table(step)) for seen, step in zip(side.asked, (0, 4, 8), strict=True))


def test_if_memory_cannot_be_pinned_a_worker_gets_an_ot_batch_once_its_matrix_has_arrived(monkeypatch):
    monkeypatch.setattr(SharedBuffer, "pin", lambda self: False)
    with until_ready(pairing(EMBEDDED, workers=1)) as paired:
        run(paired, range(4))  # the first one was needed at once, and waited for
        late = [paired._jobs[index] for index in (1, 2)]
        assert all(job.ticket is not None for job in late)  # the fourth look was that of step 3
        paired.step(4, table(4))
        assert paired._jobs[3].transfer is not None
        for step in (5, 6):
            paired.step(step, table(step))
            assert paired._jobs[3].ticket is None
        paired.step(7, table(7))
        assert paired._jobs[3].ticket is not None


class Delivery:
    """A transfer that ends when it is waited for, the mark of its arrival last."""

    def __init__(self, parts: dict[str, torch.Tensor], buffer: SharedBuffer) -> None:
        self.parts, self.buffer = parts, buffer

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        for name, part in self.parts.items():
            self.buffer[name].copy_(part)


class Slow(Pretend):
    def send(self, costs, buffer):
        buffer["pairwise"].fill_(torch.nan)  # what a hasty worker would read
        buffer[ARRIVED].zero_()
        return Transfer(Delivery(costs, buffer), {}, buffer)


def test_a_worker_holds_an_ot_batch_before_its_matrix_is_there_and_waits_for_it_without_the_trainer(
    monkeypatch, caplog
):
    monkeypatch.setattr(gpu_costs, "SideStream", Slow)
    with until_ready(pairing(EMBEDDED, workers=1)) as paired:
        first = run(paired, range(4))
        assert [paired._jobs[index].ticket is not None for index in (1, 2)] == [True, True]
        (worker,) = paired._shared.pool.workers
        assert set(worker.held) >= {paired._jobs[1].ticket, paired._jobs[2].ticket}
        rest = run(paired, range(4, 26))
        assert not paired.report(25).in_place
    assert caplog.text == ""
    assert torch.equal(torch.cat([first, rest]), plain(EMBEDDED, STEPS))


def test_the_mark_of_arrival_is_sent_last_and_is_taken_back_before_a_buffer_is_used_again():
    side, u = Pretend(torch.device("cpu")), OTDraw(3, 5, OT_BATCH, 8).uniforms(LENGTH)
    costs = side.costs(SquaredEmbedding(), Uniform(VOCAB), u, rows(5), table(0))
    assert list(costs)[-1] == ARRIVED
    buffer, looks = SharedBuffer(BufferLayout.of(**costs)), []
    buffer[ARRIVED].fill_(1)
    side.send({name: part for name, part in costs.items() if name != ARRIVED}, buffer)
    assert not buffer[ARRIVED].any()

    def look():
        looks.append(len(looks))
        buffer[ARRIVED].fill_(len(looks) == 3)

    wait_for_arrival(buffer, look)
    assert looks == [0, 1, 2]
    wait_for_arrival(SharedBuffer(BufferLayout.of(x1=rows(5))), lambda: pytest.fail("nothing is on its way"))
    buffer.close()


def test_closing_a_pairing_waits_for_every_transfer():
    with pairing(EMBEDDED, workers=1) as paired:
        paired.step(0, table(0))
        under_way = [job.transfer for job in paired._jobs.values() if job.transfer is not None]
    assert len(under_way) == 2
    assert all(transfer._event.waited for transfer in under_way)


# --- couplings that see the rows


@dataclass(frozen=True)
class Reversed(ExactOT):
    """A newcomer's coupling with a `match` of its own."""

    def match(self, x0, x1, generator=None, *, embedding=None, network=None):
        return super().match(x0.flip(0), x1, generator, embedding=embedding)


@pytest.mark.parametrize("coupling", [Witness(), Reversed(SquaredEmbedding())], ids=["plain", "derived"])
def test_a_coupling_with_a_custom_match_gets_rows_and_the_table(coupling, monkeypatch):
    with pairing(coupling) as paired:
        found = run(paired, STEPS)
        assert paired._shared.streams == {}
    monkeypatch.setattr(pairs_module, "is_on_gpu", lambda table: False)
    assert torch.equal(found, plain(coupling, STEPS))


@dataclass(frozen=True)
class Greedy(OptimalTransport):
    """A newcomer's coupling that asks for the matrix alone."""

    cost: SquaredEmbedding = SquaredEmbedding()

    def solve(self, costs: CostMatrix, generator=None):
        return ExactOT(self.cost).solve(costs, generator)


def test_a_custom_solver_gets_the_cost_matrix():
    with pairing(Greedy()) as paired:
        found = run(paired, STEPS)
        assert len(paired._shared.streams) == 1
    assert torch.equal(found, plain(EMBEDDED, STEPS))


def test_a_cost_that_is_not_finite_is_refused_when_its_pairs_are_needed():
    with pairing(EMBEDDED) as paired, pytest.raises(ValueError, match="NaN"):
        paired.step(0, table(0) * torch.nan)


# --- the parts


def test_source_rows_equal_those_of_source_sample_with_the_same_stream():
    u = OTDraw(3, 5, OT_BATCH, 8).uniforms(LENGTH)
    expected = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", 5))
    assert torch.equal(Flow(Uniform(VOCAB)).source.at(u), expected)


def test_the_tensors_of_a_shared_buffer_do_not_overlap():
    parts = {"a": torch.arange(7), "b": torch.rand(3, 5), "c": torch.rand(1, dtype=torch.float64)}
    buffer = SharedBuffer(BufferLayout.of(nothing=None, **parts))
    for name, part in parts.items():
        buffer[name].copy_(part)
    assert all(torch.equal(buffer[name], part) for name, part in parts.items())
    assert buffer.get("nothing") is None
    with pytest.raises(KeyError):
        buffer["nothing"]
    buffer.close()


def test_a_transfer_through_other_pinned_memory_reaches_the_buffer_once_it_has_arrived():
    part = torch.rand(4, 4)
    buffer = SharedBuffer(BufferLayout.of(pairwise=part))
    transfer = Transfer(Clock(1), {"pairwise": part}, buffer)
    assert not transfer.arrived()
    assert not buffer["pairwise"].any()
    assert transfer.arrived()
    assert torch.equal(buffer["pairwise"], part)
    part.zero_()
    transfer.wait()
    assert buffer["pairwise"].any()
    buffer.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to pin it for")
def test_without_a_gpu_a_buffer_is_not_pinned(monkeypatch):
    monkeypatch.undo()
    buffer = SharedBuffer(BufferLayout.of(x=torch.zeros(10)))
    assert not buffer.pin()
    buffer.close()
