"""`hopflow bench train`: what it reports is right; how fast anything is, no test says."""

import itertools

import pytest
import torch

from hopflow.bench import train

CASE = train.Case(batch=2, length=8, tokens=40, steps=2)
EAGER = tuple(variant for variant in train.VARIANTS if not variant.compile)


def test_a_step_of_the_paper_is_49_5_tflop():
    """6 × (layer matrices + head) × tokens, and attention; where half of the positions are masked the head has half."""
    case = train.Case.on(torch.device("cuda"))
    assert train.work(case, "uniform") == pytest.approx(49.5, abs=0.05)
    head = 6 * 768 * 50_257 * 65_536 / 1e12
    assert train.work(case, "uniform") - train.work(case, "multimask") == pytest.approx(head / 2)


def test_the_same_steps_are_taken_with_and_without_each_optimisation():
    rows = train.run(CASE, EAGER)
    assert [(row.source, row.variant) for row in rows] == [(s, v.name) for s in CASE.sources for v in EAGER]
    for source in CASE.sources:
        losses = [row.loss for row in rows if row.source == source]
        assert losses == pytest.approx([losses[0]] * len(EAGER), rel=1e-5)
    assert all(row.ms > 0 and row.tokens_per_s > 0 and row.share_of_peak is None for row in rows)
    assert all(row.slowdown is None for row in rows)


def test_memory_is_that_of_all_from_before_the_network_is_made(monkeypatch):
    noted = []
    made = train._Run

    class Noted(train.Peak):
        def __enter__(self):
            noted.append("measured from here")
            return super().__enter__()

    monkeypatch.setattr(train, "Peak", Noted)
    monkeypatch.setattr(train, "_Run", lambda *given: (noted.append("made"), made(*given))[1])
    train.run(CASE, EAGER[:1])
    assert noted == ["measured from here", "made"] * len(CASE.sources)


def test_a_coupling_is_timed_with_its_workers_awake(monkeypatch):
    awake = []
    ready = train.FlowTask.wait_until_ready
    monkeypatch.setattr(train.FlowTask, "wait_until_ready", lambda task: (awake.append(True), ready(task)))
    coupled = train.Variant("exact OT", compile=False, ot_batch=1)
    (row,) = train.run(train.Case(batch=4, length=8, tokens=40, steps=2, sources=("multimask",)), (coupled,))
    assert awake == [True]
    assert row.loss is None
    assert row.slowdown > -1
    assert row.slowdown_spread > 0


@pytest.mark.slow  # starts eight processes
def test_couplings_are_timed_beside_the_same_trainer_without_them_now_before_and_now_after(monkeypatch):
    seen = []
    update = train.Trainer.update

    def noted(trainer, step):
        coupled = isinstance(trainer.task.flow.coupling, train.ExactOT)
        assert (trainer.ot_average is not None) == coupled
        seen.append((id(trainer), coupled))
        update(trainer, step)

    monkeypatch.setattr(train.Trainer, "update", noted)
    monkeypatch.setattr(train, "TURNS", 2)
    coupled = train.Variant("exact OT", compile=False, ot_batch=8)
    (row,) = train.run(train.Case(batch=4, length=8, tokens=40, steps=2, sources=("multimask",)), (coupled,))
    assert len({trainer for trainer, _ in seen}) == 1
    turns = [(coupled, len(list(steps))) for coupled, steps in itertools.groupby(coupled for _, coupled in seen)]
    # the first to warm up; then without and with, with and without
    assert [coupled for coupled, _ in turns] == [True, False, True, False]
    _, without, twice, again = (count for _, count in turns)
    assert without == again == twice / 2  # as many before the clock starts, and as many after it
    assert row.uncoupled_ms > 0


def test_that_something_else_had_the_host_does_not_outweigh_what_couplings_cost(monkeypatch):
    """Steps that solve for seven others count, in every turn; a hiccup in each turn, and a turn of them, does not."""
    turns = iter(range(train.TURNS))

    def steps(run, count):
        return ([1.0] * 7 + [3.0]) * (count // 8)

    def uncoupled(run, count):
        return [5.0] * count if next(turns) == 2 else [1.0] * (count - 1) + [90.0]

    monkeypatch.setattr(train._Run, "steps", steps)
    monkeypatch.setattr(train._Run, "uncoupled", uncoupled)
    coupled = train.Variant("exact OT", compile=False, ot_batch=8)
    (row,) = train.run(train.Case(batch=4, length=8, tokens=40, steps=17, sources=("multimask",)), (coupled,))
    assert row.slowdown == pytest.approx(0.25)
    assert row.ms == pytest.approx(1250)
    assert row.uncoupled_ms > 1e3  # the mean still shows them


def test_a_name_that_a_variant_puts_aside_must_exist():
    plain = next(variant for variant in train.VARIANTS if variant.name.startswith("plain"))
    with train.without(plain):
        from hopflow.models import attention, stream, two_layers
        from hopflow.scores import _open_rows, kernels

        assert kernels(None, None) is None
        assert _open_rows(None, None, None, None) is None
        assert attention.fits(None) is False
        assert stream.fits(None) is False
        assert two_layers.fits(None, None, None) is False


@pytest.mark.parametrize("setting", ["steps=0", "tokens=1", "size=huge", "batch=0", "source=mask", "lengt=8"])
def test_a_bench_that_cannot_be_is_one_message(hopflow, setting):
    result = hopflow("bench", "train", setting)
    assert result.code == 2
    assert "bug" not in result.err
