"""The number of CPU threads: measured without a change to the run, kept with it, and used again."""

import logging
import sys

import pytest
import torch
from commands import SMALL
from texts import Letters
from torch import nn

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.runs import checkpoint
from hopflow.runs.metrics import read
from hopflow.runs.ot_batch import Share
from hopflow.training import loop, threads
from hopflow.training.settings import Settings
from hopflow.training.threads import (
    ThreadBenchmark,
    Threads,
    candidates,
    choose_inference_threads,
    choose_threads,
    cores,
    fastest,
    interleaved,
    using,
)
from hopflow.training.train import train
from hopflow.training.trainer import Trainer

QUICK = {"log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "device": "cpu", "batch": 4}
CPU = torch.device("cpu")


@pytest.fixture
def two_cores(monkeypatch):
    """A machine of two cores on which nobody has chosen a number, and torch takes both."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    with using(Threads(2, "")):
        yield


@pytest.fixture
def measured(monkeypatch):
    """What a measurement finds; asked for at most once per run."""
    found = {1: 0.8, 2: 0.5}
    monkeypatch.setattr(ThreadBenchmark, "measure", lambda self, numbers: {number: found[number] for number in numbers})
    return found


def parts(dropout: float = 0.1):
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT())
    torch.manual_seed(0)
    return Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=dropout), flow, corpus


def chosen(tmp_path, share=Share(), device=CPU, **keys):  # noqa: B008
    return choose_threads(*parts(), Settings(**keys), device, share, tmp_path)


# --- which number


def test_candidates_are_powers_of_two_and_all_cores():
    assert [candidates(most) for most in (1, 2, 3, 4, 6, 16)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 6],
        [1, 2, 4, 8, 16],
    ]


def test_more_threads_are_chosen_only_if_clearly_faster():
    assert fastest({1: 1.0, 2: 0.9}) == 1
    assert fastest({1: 1.0, 2: 0.8}) == 2
    assert fastest({1: 1.0, 2: 0.6, 4: 0.55}) == 2
    assert fastest({1: 1.0, 2: 0.95, 4: 0.5}) == 4
    assert fastest({1: 1.0, 2: 5.0}) == 1


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 8),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 4),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 2),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(files, most, tmp_path, monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores(tmp_path) == most


@pytest.mark.usefixtures("two_cores", "measured")
def test_a_number_of_threads_set_by_the_user_is_used(tmp_path, monkeypatch):
    assert chosen(tmp_path) == Threads(2, "forward and backward: 1 thread 0.80 s, 2 threads 0.50 s")
    assert chosen(tmp_path, threads=3) == Threads(3, "set by threads")
    assert chosen(tmp_path, device=torch.device("cuda")) is None
    with using(Threads(1, "")):  # torch.set_num_threads
        assert chosen(tmp_path).number == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert chosen(tmp_path) == Threads(2, "set by OMP_NUM_THREADS")


@pytest.mark.usefixtures("two_cores", "measured")
def test_several_processes_divide_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 8)
    with using(Threads(8, "")):
        assert chosen(tmp_path, Share(1, 4)).number == 2
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # the other two are on another machine
        assert chosen(tmp_path, Share(1, 4)).number == 4


@pytest.mark.usefixtures("two_cores")
def test_threads_are_not_measured_for_a_short_run(tmp_path):
    assert chosen(tmp_path, steps=1, batch=4) == Threads(1, "a short run")


@pytest.mark.parametrize("threads", [0, -1, 10**10])
def test_a_number_of_threads_below_one_is_refused(threads):
    with pytest.raises(ValueError, match="threads must be"):
        Settings(threads=threads)


# --- measuring


def test_thread_numbers_are_measured_in_turns_and_a_very_slow_one_only_once(monkeypatch):
    clock, asked, seconds = [0.0], [], {1: 1.0, 2: 0.5, 4: 1.5, 8: 60.0}
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])

    def once():
        asked.append(torch.get_num_threads())
        clock[0] += seconds[asked[-1]]

    before = torch.get_num_threads()
    assert interleaved(once, list(seconds), budget=5.0) == seconds
    assert asked == [1, 2, 4, 8, 1, 2, 4, 1, 2]
    assert torch.get_num_threads() == before


class Counting(nn.Module):
    """A network that a forward pass changes: a buffer, and dropout's random numbers."""

    def __init__(self, vocab):
        super().__init__()
        self.embed, self.out = nn.Embedding(vocab.size, 16), nn.Linear(16, vocab.data)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, xt, t):
        self.calls += self.training
        return self.out(self.drop(self.embed(xt))) + 0.01 * self.calls


@pytest.mark.usefixtures("two_cores")
def test_measuring_threads_changes_no_bit_of_the_run(tmp_path, monkeypatch):
    asked, timed = [], threads._timed
    monkeypatch.setattr(threads, "SHORT", 0.0)
    monkeypatch.setattr(threads, "LEAST", 0.0)
    monkeypatch.setattr(threads, "fastest", lambda seconds: 1)
    monkeypatch.setattr(threads, "_timed", lambda once: (asked.append(torch.get_num_threads()), timed(once))[1])
    _, flow, corpus = parts()
    states = []
    for name, keys in (("set", {"threads": 1}), ("measured", {})):
        torch.manual_seed(0)
        model = Counting(flow.vocab)
        train(model, flow, corpus, out=tmp_path / name, steps=4, workers=0, ot_batch=8, **QUICK, **keys)
        states.append((model.state_dict(), [row["loss"] for row in read(tmp_path / name / "metrics.jsonl")]))
    assert set(asked) == {1, 2}
    (one, losses), (other, same) = states
    assert losses == same
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("two_cores")
def test_a_network_that_does_not_fit_its_flow_is_refused_by_the_run_and_not_by_the_measurement(tmp_path):
    _, flow, corpus = parts()
    with pytest.raises(ValueError, match="fails on the last one"):
        train(Counting(hf.Vocab(flow.vocab.data, 0)), flow, corpus, out=tmp_path / "run", steps=1, **QUICK)


# --- kept with the run


@pytest.mark.usefixtures("two_cores")
def test_the_number_of_threads_is_used_stored_used_again_and_restored_afterwards(
    tmp_path, monkeypatch, measured, caplog
):
    seen, update = [], Trainer.update
    monkeypatch.setattr(Trainer, "update", lambda *a, **k: (seen.append(torch.get_num_threads()), update(*a, **k))[1])
    monkeypatch.setattr(threads, "cores", lambda: 4)
    measured |= {3: 0.3, 4: 1.0}
    caplog.set_level(logging.INFO, "hopflow")

    def run(steps, **keys):
        model, flow, corpus = parts()
        train(model, flow, corpus, out=tmp_path / "run", steps=steps, workers=0, **QUICK, **keys)
        return checkpoint.newest_facts(tmp_path / "run" / "checkpoints")["threads"]

    with using(Threads(3, "")):
        assert run(2) == 3
        assert torch.get_num_threads() == 3
    monkeypatch.setattr(ThreadBenchmark, "measure", lambda self, numbers: pytest.fail("the run has its number"))
    assert run(3) == 3
    assert run(4, threads=1) == 1
    assert run(5) == 1
    assert torch.get_num_threads() == 2
    assert seen == [3, 3, 3, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "3 threads (forward and backward: 1 thread 0.80 s, 2 threads 0.50 s, 3 threads 0.30 s)",
        "3 threads (as before)",
        "1 thread (set by threads)",
        "1 thread (as before)",
    ]


@pytest.mark.usefixtures("two_cores")
def test_a_stored_number_above_the_cores_is_measured_again(tmp_path, measured, monkeypatch):
    monkeypatch.setattr(threads.checkpoint, "newest_facts", lambda home: {"threads": 16})
    assert chosen(tmp_path).number == 2
    monkeypatch.setattr(threads.checkpoint, "newest_facts", lambda home: {"threads": "many"})
    assert chosen(tmp_path).number == 2
    monkeypatch.setattr(threads.checkpoint, "newest_facts", lambda home: {"threads": 1})
    assert chosen(tmp_path).why == "as before"


# --- the command line


def test_the_log_and_a_dry_run_say_how_many_threads_there_are(fox, hopflow, tmp_path, monkeypatch):
    keys = (*SMALL, "workers=0", "coupling=independent", f"out={tmp_path / 'run'}", "threads=1")
    before, _, _ = hopflow("train", fox, *keys, "steps=1").err.partition("step 1/1")
    assert "1 thread (set by threads)\n" in before
    plans = sys.modules["hopflow.recipes.requirements"]  # the package has a function of this name
    seen, tried = [], plans._try
    monkeypatch.setattr(plans, "_try", lambda *a: (seen.append(torch.get_num_threads()), tried(*a))[1])
    assert " on cpu with 2 threads" in hopflow("train", fox, *keys[:-1], "threads=2", "--dry-run").out
    assert seen == [2]
    assert hopflow("train", fox, *keys[:-1], "threads=auto", "steps=2").code == 0
    assert logging.getLogger("hopflow").level == logging.NOTSET
    assert loop.log.handlers == []


# --- sampling and evaluating


def test_a_stored_number_is_used_to_sample_and_evaluate(two_cores, tmp_path):
    def measured() -> None:
        raise AssertionError("nothing is measured where a number is stored")

    for number, why in ((1, "as in training"), (2, "as in training")):
        folder = checkpoint.save(tmp_path / str(number), checkpoint.Checkpoint(3, {}, {"threads": number}))
        assert choose_inference_threads(folder, measured, CPU) == Threads(number, why)
        assert choose_inference_threads(folder, measured, CPU, asked=7) == Threads(7, "set by threads")
        assert choose_inference_threads(folder, measured, torch.device("cuda")) is None


def test_sampling_measures_threads_again_if_the_stored_number_is_above_the_cores(two_cores, tmp_path):
    used = []
    folder = checkpoint.save(tmp_path, checkpoint.Checkpoint(3, {}, {"threads": 64}))
    for place in (folder, tmp_path / "a saved network"):
        used.clear()
        found = choose_inference_threads(place, lambda: used.append(torch.get_num_threads()), CPU)
        assert found.number in (1, 2)
        assert "one call of the network: 1 thread" in str(found)
        assert {1, 2} <= set(used)


def test_sample_and_eval_print_the_number_of_threads_and_restore_it(two_cores, tmp_path, monkeypatch, capsys):
    from hopflow.cli import main

    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    run = str(tmp_path / "run")
    train_words = ["train", str(tmp_path / "fox.txt"), *SMALL, "steps=1", "workers=0", "threads=1", f"out={run}"]
    seen = []
    for words, said in (
        (train_words, ""),
        (["sample", run, "n=1", "steps=2", "device=cpu"], "1 thread (as in training)"),
        (["sample", run, "n=1", "steps=2", "device=cpu", "threads=2"], "2 threads (set by threads)"),
        (["infill", run, "the [MASK:2]", "steps=2", "device=cpu"], "1 thread (as in training)"),
        (["eval", run, "gen=false", "rows=2", "seconds=0", "device=cpu"], "1 thread (as in training)"),
    ):
        monkeypatch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            main()
        err = capsys.readouterr().err
        assert end.value.code == 0, err
        assert said in err
        seen.append(torch.get_num_threads())
    assert seen == [2] * 5
