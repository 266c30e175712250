"""A worker that dies or hangs is noticed, its coupling is solved in place, and the pairs stay the same bits."""

import os
import signal
import time

import pytest
import torch
from paired_runs import EMBEDDED, Slow, belongings, pairing, plain, run, table, until_ready

from hopflow.training.pairing import worker_pool

STEPS = range(30)


def hit(paired, number: int, which: int = 0) -> int:
    pid = paired._shared.pool.workers[which].process.pid
    os.kill(pid, number)
    return pid


def test_one_worker_killed_and_one_stopped_change_nothing_but_the_log(caplog):
    before = belongings()
    with until_ready(pairing(Slow(), workers=2, timeout=1.0)) as paired:
        got = [run(paired, range(9))]  # the second step of OT batch 2; 3 and 4 are in hand
        killed, stopped = hit(paired, signal.SIGKILL, 0), hit(paired, signal.SIGSTOP, 1)
        got.append(run(paired, range(9, 30)))
        assert len(paired._shared.pool.workers) == 2
        assert {killed, stopped}.isdisjoint(worker.process.pid for worker in paired._shared.pool.workers)
    assert torch.equal(torch.cat(got), plain(EMBEDDED, STEPS))
    assert f"OT worker {killed} was killed by SIGKILL" in caplog.text
    assert f"OT worker {stopped} did not answer" in caplog.text
    assert belongings() == before


def test_after_three_lost_workers_in_a_row_no_more_are_started(caplog):
    before = belongings()
    with pairing(Slow(), workers=1, timeout=1.0) as paired:
        for step in range(12):
            paired.step(step, table(step))
            assert paired.report(step).in_place
            if paired._shared.pool.workers:
                hit(paired, signal.SIGKILL)
                paired._shared.pool.workers[0].process.wait()
        assert belongings()["children"] == before["children"]
    assert caplog.text.count("was killed by SIGKILL") == worker_pool.FAULTS
    assert "OT workers are disabled" in caplog.text
    assert belongings() == before


def test_a_worker_that_had_to_wait_for_a_busy_trainer_is_kept(caplog):
    with pairing(EMBEDDED, workers=1) as paired:
        (worker,) = paired._shared.pool.workers
        assert worker.connection.poll(60)  # it is awake; meanwhile the trainer was busy for long
        worker.started -= 10 * worker_pool.BOOT_SECONDS
        until_ready(paired)
        assert paired._shared.pool.workers == [worker]
    assert caplog.text == ""


def test_if_no_process_can_start_couplings_are_solved_in_place(caplog, monkeypatch):
    def no_process(*args, **kwargs):
        raise OSError("too many processes")

    before = belongings()
    monkeypatch.setattr(worker_pool.subprocess, "Popen", no_process)
    with pairing(EMBEDDED, workers=2) as paired:
        assert torch.equal(run(paired, STEPS), plain(EMBEDDED, STEPS))
    assert "no worker could be started (too many processes)" in caplog.text
    assert belongings() == before


def test_a_forked_copy_of_the_trainer_does_not_end_its_workers():
    with pairing(EMBEDDED, workers=1) as paired:
        paired._shared.pool._owner = os.getpid() + 1  # as a copy sees it
        worker = paired._shared.pool.workers[0]
        paired._shared.pool.close()
        assert worker.process.poll() is None
        worker.end()


MOMENTS = ("booting", "ready", "just given", "half solved", "answered")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("trial", [0, 1])
def test_a_fault_at_any_moment_is_noticed_20_of_20(number, moment, trial, caplog, monkeypatch):
    before = belongings()
    with pairing(Slow(seconds=0.2 + 0.1 * trial), workers=1, timeout=1.5) as paired:
        first = 9 + 4 * trial
        if moment == "booting":
            first = 0
            pid = hit(paired, number)
            if number == signal.SIGSTOP:  # noticed once it is late; the next one shall have its time again
                with monkeypatch.context() as patch:
                    patch.setattr(worker_pool, "BOOT_SECONDS", 0.0)
                    paired._shared.pool.poll()
            got = []
        elif moment == "ready":
            first = 0
            until_ready(paired)
            pid, got = hit(paired, number), []
        else:
            until_ready(paired)
            got = [run(paired, range(first))]
            if moment == "half solved":
                time.sleep(0.1)
            if moment == "answered":
                time.sleep(1.0)
            pid = hit(paired, number)
        got.append(run(paired, range(first, 40)))
        until_ready(paired)  # a new worker has taken its place
        assert pid not in [worker.process.pid for worker in paired._shared.pool.workers]
        assert len(paired._shared.pool.workers) == 1
    assert torch.equal(torch.cat(got), plain(EMBEDDED, range(40)))
    assert f"OT worker {pid} " in caplog.text
    assert belongings() == before
