"""Pairs ahead of time: the same bits however they are computed, and nothing left behind."""

import logging
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest
import torch
from paired_runs import (
    BATCH,
    COUPLINGS,
    EMBEDDED,
    LEARNED,
    LENGTH,
    OT_BATCH,
    PERMUTATIONS,
    VOCAB,
    Grumbling,
    Net,
    Shuffled,
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

from hopflow import (
    ExactOT,
    Flow,
    Hamming,
    Independent,
    Mask,
    MultiMask,
    OneStepLikelihood,
    SquaredEmbedding,
    Uniform,
    Vocab,
)
from hopflow.evaluation.predicted_jumps import predicted_jumps
from hopflow.runs.rng import stream
from hopflow.training.pairing import pool_growth
from hopflow.training.pairing.pairs import Pairing
from hopflow.training.pairing.worker_pool import _without_caches

STEPS = range(26)


def rows_of(x: torch.Tensor) -> list[list[int]]:
    return sorted(x.reshape(-1, LENGTH).tolist())


# --- the same pairs, however they are computed


@pytest.mark.parametrize(("name", "workers"), [("embedded", 1), ("embedded", 4), ("hamming", 1)])
def test_pairs_are_bitwise_the_same_with_workers_as_in_place(name, workers):
    before = belongings()
    with until_ready(pairing(COUPLINGS[name], workers=workers)) as paired:
        got = run(paired, STEPS)
        assert not paired.report(STEPS[-1]).in_place
        # more would have nothing to do
        assert len(belongings()["children"] - before["children"]) == min(workers, paired.ahead)
    paired.close()
    assert belongings() == before
    assert torch.equal(got, plain(COUPLINGS[name], STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COUPLINGS))
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_pairs_are_bitwise_the_same_for_every_coupling_and_depth(name, workers, ahead):
    with until_ready(pairing(COUPLINGS[name], workers=workers, ahead=ahead)) as paired:
        got = run(paired, range(60))
    assert torch.equal(got, plain(COUPLINGS[name], range(60), ahead=ahead))


def test_numbers_too_are_the_same_when_the_trainer_has_more_threads():
    def numbers(paired):
        found = []
        for step in STEPS:
            paired.step(step, table(step))
            report = paired.report(step)
            found.append((report.cost, report.independent_cost, report.marginal_error, report.information))
        return found

    with pairing(EMBEDDED) as paired:
        expected = numbers(paired)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with until_ready(pairing(EMBEDDED, workers=1)) as paired:
            assert numbers(paired) == expected
        with pairing(EMBEDDED) as paired:
            assert numbers(paired) == expected
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(COUPLINGS))
def test_the_seed_alone_decides_what_is_drawn(name):
    one, same, other = (plain(COUPLINGS[name], STEPS, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


# --- which table a coupling sees


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_a_coupling_sees_the_table_of_the_step_that_the_rule_names(ahead):
    updates = OT_BATCH // BATCH
    with pairing(Witness(), ahead=ahead) as paired:
        for step in range(40):
            paired.step(step, torch.full((100, 2), float(step)))
            assert paired.report(step).cost == max(step // updates - ahead, 0) * updates


def test_the_table_is_copied_as_it_is_when_it_is_handed_over():
    live = torch.zeros(100, 2, dtype=torch.bfloat16)
    with until_ready(pairing(Witness(), workers=1)) as paired:
        for step in STEPS:
            live.fill_(step)
            paired.step(step, live)
            live.fill_(-1)
            assert paired.report(step).cost == max(step // 4 - 2, 0) * 4


def test_a_coupling_asks_for_what_its_cost_reads_and_for_no_more():
    assert {name: coupling.reads for name, coupling in COUPLINGS.items()} == {
        "independent": (),
        "hamming": (),
        "embedded": ("embedding",),
        "drawn": (),
        "learned": ("network",),
        "sinkhorn": ("embedding",),
    }
    with pairing(EMBEDDED) as paired, pytest.raises(ValueError, match="reads the embedding; pass it at every step"):
        paired.step(0, None, Net())
    with pairing(LEARNED) as paired, pytest.raises(ValueError, match="reads the network; pass it at every step"):
        paired.step(0, table(0))


# --- costs that read the network


def test_a_cost_that_reads_the_network_is_solved_in_place_with_the_weights_of_its_first_step():
    before, net = belongings(), Net()
    with pairing(LEARNED, workers=4, ahead=3) as paired:
        assert belongings()["children"] == before["children"]
        for step in range(9):
            x0, x1 = paired.ot_pairs(step, None, net.at(step))
            assert paired.report(step).in_place
            if step % 4 == 0:
                source = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", step // 4))
                expected = LEARNED.pair(source, rows(step // 4), network=net)
            assert torch.equal(x0, expected.x0)
            assert torch.equal(x1, expected.x1)
            assert paired.report(step).cost == expected.cost < expected.independent_cost


@dataclass(frozen=True)
class Careless(OneStepLikelihood):
    """A newcomer's cost that does not think of dropout or gradients."""

    def _logits(self, x0, network):
        yield network(x0, torch.zeros(len(x0)))


@pytest.mark.parametrize("cost", [LEARNED.cost, Careless(batch=OT_BATCH)], ids=repr)
def test_the_network_is_called_in_eval_mode_and_once_per_ot_batch(cost):
    net = Net()
    with pairing(ExactOT(cost)) as paired:
        for step in range(8):
            paired.step(step, network=net.at(step))
    assert net.training
    assert net.drop.training
    per_batch = OT_BATCH // cost.batch  # the matrix; what the chosen pairs cost follows from it
    assert net.calls == [(False, False, [0.0])] * 2 * per_batch


@pytest.mark.parametrize("start", [1, 3, 4, 8, 13])
def test_a_run_whose_cost_reads_the_network_resumes_with_the_same_bits(start):
    with pairing(LEARNED) as first:
        run(first, range(start))
        state = load(save(first.state_dict()))
    last = (start - 1) // 4
    assert {int(key.split(".")[0]) for key in state} == {last, max(last - 1, 0)}  # and the one before
    with pairing(LEARNED) as second:
        second.load_state_dict(state)
        assert torch.equal(run(second, range(start, 18)), plain(LEARNED, range(start, 18)))


def test_an_ot_batch_that_failed_is_never_paired_with_later_weights():
    bad = Net()
    bad.embed.weight.data.fill_(torch.nan)
    with pairing(LEARNED) as paired:
        with pytest.raises(ValueError, match="NaN"):
            paired.step(0, network=bad)
        with pytest.raises(ValueError, match=r"network of step 0.*load_state_dict"):
            paired.step(1, network=Net().at(1))
        assert torch.equal(run(paired, STEPS), plain(LEARNED, STEPS))


# --- groups


@pytest.mark.parametrize(("name", "workers"), [("embedded", 1), ("sinkhorn", 2)])
def test_grouped_pairs_are_bitwise_the_same_with_workers_as_in_place(name, workers):
    with until_ready(pairing(COUPLINGS[name], workers=workers, groups=labels)) as paired:
        got = run(paired, STEPS)
        assert not paired.report(STEPS[-1]).in_place
    assert torch.equal(got, plain(COUPLINGS[name], STEPS, groups=labels))
    assert not torch.equal(got, plain(COUPLINGS[name], STEPS))


@pytest.mark.parametrize("name", ["hamming", "learned"])
def test_rows_pair_only_within_their_group_source_rows_by_their_position(name):
    with pairing(COUPLINGS[name], groups=labels) as paired:
        x0, x1 = paired.ot_pairs(0, None, Net())
    source = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", 0))
    assert torch.equal(x1, rows(0))
    assert len(labels(0).unique()) == 4
    for label in labels(0).unique():
        assert rows_of(x0[labels(0) == label]) == rows_of(source[labels(0) == label])


@pytest.mark.parametrize("bad", [torch.zeros(OT_BATCH - 1, dtype=torch.long), torch.zeros(OT_BATCH)])
def test_groups_are_a_whole_number_per_row(bad):
    with pairing(EMBEDDED, groups=lambda b: bad) as paired, pytest.raises(ValueError, match=r"groups\(0\) must return"):
        paired.step(0, table(0))


# --- every row once


@pytest.mark.parametrize("name", sorted(PERMUTATIONS))
def test_the_flow_batches_of_an_ot_batch_hold_every_row_exactly_once(name):
    got = plain(PERMUTATIONS[name], range(8))
    for index in range(2):
        x0, x1 = got[4 * index : 4 * index + 4].unbind(1)
        assert torch.equal(x1.reshape(-1, LENGTH), rows(index))
        source = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", index))
        assert rows_of(x0) == rows_of(source)


def test_the_coupling_lowers_the_cost_and_the_report_says_so():
    with pairing(ExactOT(Hamming())) as paired:
        x0, x1 = paired.ot_pairs(0)
        report = paired.report(0)
    assert float((x0 != x1).sum(1).float().mean()) == report.cost <= report.independent_cost
    assert (report.index, report.marginal_error) == (0, 0.0)
    assert report.information == pytest.approx(torch.tensor(OT_BATCH).log().item())
    assert report.seconds > 0
    assert report.seconds_waited > 0


# --- resume


@pytest.mark.parametrize("start", [0, 1, 4, 7, 21])
def test_pairs_that_read_no_table_can_start_at_any_step(start):
    with pairing(COUPLINGS["hamming"]) as paired:
        assert paired.state_dict() == {}
        assert torch.equal(run(paired, range(start, 26)), plain(COUPLINGS["hamming"], range(start, 26)))


@pytest.mark.parametrize("start", [1, 3, 4, 8, 13, 16])
def test_a_run_goes_on_from_its_state_with_the_same_bits(start):
    with pairing(EMBEDDED) as first:
        run(first, range(start))
        state = load(save(first.state_dict()))
    with pairing(EMBEDDED) as second:
        second.load_state_dict(state)
        assert torch.equal(run(second, range(start, 26)), plain(EMBEDDED, range(start, 26)))


def test_a_run_with_workers_resumes_five_times_with_the_same_bits():
    got, state = [], {}
    for start in (0, 3, 4, 11, 20):
        with pairing(EMBEDDED, workers=1) as paired:
            paired.load_state_dict(state)
            end = {0: 3, 3: 4, 4: 11, 11: 20, 20: 26}[start]
            got.append(run(paired, range(start, end)))
            state = paired.state_dict()
    assert torch.equal(torch.cat(got), plain(EMBEDDED, STEPS))


def test_a_missing_or_foreign_state_is_an_error_that_says_what_to_do():
    with pairing(EMBEDDED) as paired, pytest.raises(ValueError, match=r"embedding of step 8.*load_state_dict"):
        paired.step(17, table(17))
    with pairing(EMBEDDED) as paired:
        run(paired, range(3))
        state = paired.state_dict()
    with (
        pairing(EMBEDDED, lambda b: rows(b, 64), ot_batch=64) as other,
        pytest.raises(ValueError, match="same ot_batch"),
    ):
        other.load_state_dict(state)


# --- bounds and bad input


@pytest.mark.parametrize(
    ("name", "ahead", "depth", "expected"),
    [
        ("hamming", 1, None, 2),  # two for the worker
        ("hamming", 3, None, 3),
        ("hamming", 1, 1, 1),
        ("hamming", 1, 4, 4),
        ("embedded", 2, 4, 2),  # the tables of later steps do not exist yet
    ],
)
def test_as_many_ot_batches_are_prepared_as_the_depth_says(name, ahead, depth, expected):
    asked, got = [], []

    def batches(index):
        asked.append(index)
        return rows(index)

    options = {"workers": 1, "ahead": ahead, "depth": depth}
    with pairing(COUPLINGS[name], batches, **options) as paired:
        for step in range(16):
            got.append(torch.stack(paired.step(step, table(step))))
            assert paired.prepared == list(range(step // 4, step // 4 + expected + 1))
            held = sum(job.buffer is not None for job in paired._jobs.values())
            assert len(paired._shared.free) + held <= expected + 1
    assert asked == list(range(4 + expected))
    assert torch.equal(torch.stack(got), plain(COUPLINGS[name], range(16), ahead=ahead))


@pytest.mark.parametrize(("name", "depth"), [("hamming", 4), ("embedded", None)])
def test_pairs_are_bitwise_the_same_for_any_depth_and_while_workers_are_added(name, depth, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "hopflow")
    monkeypatch.setattr(pool_growth, "ENOUGH", -1.0)  # never enough
    monkeypatch.setattr(pool_growth, "SECONDS", 0.0)
    monkeypatch.setattr(pool_growth, "COUNT", 2)
    before = belongings()
    with until_ready(pairing(COUPLINGS[name], workers=None, most_workers=2, depth=depth)) as paired:
        assert paired.workers == 1
        got = [run(paired, range(14))]
        assert paired.workers == 2
        until_ready(paired)
        got.append(run(paired, range(14, 34)))
        assert (paired.workers, len(belongings()["children"] - before["children"])) == (2, 2)
        assert not paired.report(33).in_place
    assert belongings() == before
    assert torch.equal(torch.cat(got), plain(COUPLINGS[name], range(34)))
    assert caplog.text.count("started an OT worker, now 2: steps waited for couplings for ") == 1


def test_no_worker_is_added_beyond_what_the_tables_allow():
    with pairing(EMBEDDED, workers=None, most_workers=8, ahead=2) as paired:
        assert (paired.workers, paired._shared.growth.most) == (1, 2)
    with pairing(COUPLINGS["hamming"], workers=None, most_workers=8, ahead=2) as paired:
        assert (paired.workers, paired._shared.growth.most) == (1, 8)


def test_the_time_that_was_waited_adds_up():
    waited = 0.0
    with pairing(EMBEDDED) as paired:
        for step in range(12):
            paired.step(step, table(step))
            waited += paired.report(step).seconds_waited if step % 4 == 0 else 0.0
    assert paired.seconds_waited == pytest.approx(waited)


def test_independent_pairs_start_no_worker_and_prepare_nothing():
    before = belongings()
    with pairing(Independent(), workers=4) as paired:
        run(paired, range(3))
        assert paired.prepared == [0]
        assert belongings()["children"] == before["children"]


@dataclass(frozen=True)
class Unsolved(ExactOT):
    """Fails where it is solved."""

    def solve(self, costs, generator=None):
        raise AssertionError("there is nothing to couple")


@pytest.mark.parametrize("source", [Mask(Vocab(10, 1)), MultiMask(Vocab(10, 1))], ids=["mask", "multimask"])
@pytest.mark.parametrize("cost", [Hamming(), SquaredEmbedding()], ids=["hamming", "embedding"])
def test_with_one_mask_no_coupling_is_solved_and_the_report_is_that_of_any_pairing(source, cost):
    before, keys = belongings(), {"length": LENGTH, "batch": BATCH, "ot_batch": OT_BATCH, "seed": 3, "workers": 2}
    with Pairing(Flow(source, coupling=Unsolved(cost)), rows, **keys) as paired:
        x0, x1 = paired.ot_pairs(0, table(0))
        report = paired.report(0)
        assert belongings()["children"] == before["children"]
    solved = ExactOT(cost).pair(x0, rows(0), embedding=table(0))
    assert torch.equal(x1, rows(0))
    assert torch.equal(x0, solved.x0)
    assert report.cost == report.independent_cost == pytest.approx(solved.cost, rel=1e-5)
    assert (report.information, report.marginal_error) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ot_batch": 12}, "multiple of batch"),
        ({"batch": 0}, "multiple of batch"),
        ({"workers": -1}, "workers must be ≥ 0"),
        ({"ahead": -1}, "ahead must be ≥ 0"),
        ({"timeout": 0.0}, "timeout"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pairing(EMBEDDED, **options)


def test_bad_rows_steps_and_couplings_are_named():
    with pairing(EMBEDDED, lambda b: rows(b)[:-1]) as paired, pytest.raises(ValueError, match=r"batches\(0\)"):
        paired.step(0, table(0))
    with pairing(EMBEDDED) as paired, pytest.raises(ValueError, match="step must be ≥ 0"):
        paired.step(-1, table(0))
    with pairing(Shuffled(also_data=True)) as paired, pytest.raises(ValueError, match="order of the data rows"):
        paired.step(0)
    with pairing(EMBEDDED) as paired:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        paired.step(0, table(0))


def test_a_value_error_in_a_worker_is_the_same_value_error_in_the_trainer(caplog):
    def nan(step):
        return table(step) * (float("nan") if step == 4 else 1.0)

    errors = []
    for workers in (0, 1):
        with until_ready(pairing(EMBEDDED, workers=workers)) as paired:
            for step in range(12):
                paired.step(step, nan(step))
            with pytest.raises(ValueError, match="NaN") as caught:
                paired.step(12, nan(12))
            errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "an OT worker failed (ValueError" in caplog.text


def test_what_a_worker_warns_of_is_warned_of_in_the_trainer_as_if_solved_there():
    found = []
    for workers in (0, 1):
        with (
            until_ready(pairing(Grumbling(), workers=workers)) as paired,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            run(paired, range(12))
            assert paired.report(11).in_place == (workers == 0)
            assert not paired.report(11).converged
        found.append([(w.category, str(w.message)) for w in caught])
    assert found[0] == found[1]
    assert [category for category, _ in found[0]] == [DeprecationWarning, RuntimeWarning] * 3
    assert "marginal error" in found[0][1][1]


# --- nothing left behind; after a plain close see above


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_loop_leaves_nothing_behind(error):
    def loop():
        with pairing(EMBEDDED, workers=1) as paired:
            run(paired, range(3))
            raise error

    before = belongings()
    with pytest.raises(error):
        loop()
    assert belongings() == before


def test_a_pairing_that_nobody_closes_ends_with_its_last_reference():
    before = belongings()
    paired = pairing(EMBEDDED, workers=1)
    run(paired, range(3))
    del paired
    assert belongings() == before


SCRIPT = """
import logging
from dataclasses import dataclass
import torch
from hopflow import ExactOT, Flow, Hamming, MultiMask, Vocab
from hopflow.training.pairing.pairs import Pairing

@dataclass(frozen=True)
class Mine(Hamming):
    pass

logging.basicConfig()
rows = torch.arange(32).view(4, 8)
paired = Pairing(Flow(MultiMask(Vocab(32, 32)), coupling=ExactOT({cost}())), lambda b: rows, length=8, batch=4)
paired.wait_until_ready()
for step in range(3):
    paired.step(step)
print(*(worker.process.pid for worker in paired._shared.pool.workers))
{end}
"""


def script(tmp_path, **parts: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT).format(**parts))
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=120
    )


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_plain_script_without_a_main_guard_works_and_its_end_ends_the_workers(tmp_path):
    done = script(tmp_path, cost="Hamming", end="")
    assert (done.returncode, done.stderr) == (0, "")
    (pid,) = map(int, done.stdout.split())
    assert not alive(pid)


def test_the_workers_of_a_killed_trainer_end_by_themselves(tmp_path):
    done = script(tmp_path, cost="Hamming", end="import os, signal, sys; sys.stdout.flush(); os.kill(os.getpid(), 9)")
    assert done.returncode == -9
    (pid,) = map(int, done.stdout.split())
    while alive(pid):  # the test's timeout is the limit
        time.sleep(0.05)


@pytest.mark.slow
def test_a_cost_of_the_main_script_is_solved_in_place_and_the_log_says_why(tmp_path):
    done = script(tmp_path, cost="Mine", end="")
    assert done.returncode == 0
    assert "Mine" in done.stderr
    assert "define its classes in a module" in done.stderr


def test_a_flow_that_cannot_be_pickled_is_solved_in_place_and_the_log_says_why(caplog):
    Local = make_dataclass("Local", [], bases=(Hamming,), frozen=True)
    with pairing(ExactOT(Local()), workers=1) as paired:
        assert isinstance(paired, Pairing)
        assert torch.equal(run(paired, STEPS), plain(ExactOT(Hamming()), STEPS))
    assert "cannot be sent to another process" in caplog.text


def test_workers_get_components_without_their_cached_values():
    flow = Flow(Uniform(VOCAB), coupling=ExactOT(Hamming()))
    assert flow.source.shared
    assert "shared" in vars(flow.source)
    assert "shared" not in vars(_without_caches(flow).source)


# --- what pairs say before any training


@pytest.mark.parametrize("coupling", [Independent(), ExactOT(Hamming())])
def test_predicted_jumps_are_the_mean_hamming_cost_of_the_pairs_that_training_sees(coupling):
    flow = Flow(Uniform(VOCAB), coupling=coupling)
    jumps, error = predicted_jumps(flow, rows, length=LENGTH, size=OT_BATCH, count=6, seed=3)
    with Pairing(flow, rows, length=LENGTH, batch=OT_BATCH, seed=3, workers=0) as paired:
        costs = torch.tensor([(paired.step(step), paired.report(step).cost)[1] for step in range(6)])
    assert jumps == pytest.approx(float(costs.mean()))
    assert error == pytest.approx(float(costs.std()) / 6**0.5, rel=1e-4)


@pytest.mark.parametrize("back", [4, 7, 8])
def test_pairing_resumes_from_the_step_before_the_last(back):
    """As one on a GPU does, where it is noticed late that a step has failed."""
    with pairing(EMBEDDED) as first:
        run(first, range(back + 1))
        state = load(save(first.state_dict()))
    with pairing(EMBEDDED) as second:
        second.load_state_dict(state)
        again = run(second, range(back - 1, 18))
    assert torch.equal(again, plain(EMBEDDED, range(back - 1, 18)))


def test_ot_batches_prepared_by_a_failed_step_are_dropped_when_it_is_repeated():
    """The next OT batch's table was handed over although the step before had changed nothing."""
    expected = plain(EMBEDDED, range(18))
    with pairing(EMBEDDED) as first:
        run(first, range(3))
        first.step(3, table(3))
        first.step(4, table(3))  # as it was before step 3, which turns out to have failed
        state = load(save(first.state_dict()))
    with pairing(EMBEDDED) as second:
        second.load_state_dict(state)
        run(second, range(3, 4))
        state = load(save(second.state_dict()))
    with pairing(EMBEDDED) as third:
        third.load_state_dict(state)
        assert torch.equal(run(third, range(4, 18)), expected[4:])
