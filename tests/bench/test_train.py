"""`hopflow bench train` reports correct values; no test checks a speed."""

import itertools

import pytest
import torch

from hopflow.bench import train, training_run
from hopflow.couplings import ExactOT
from hopflow.kernels import Kernels, switch

CASE = training_run.TrainingCase(batch=2, length=8, tokens=40, steps=2)
EAGER = tuple(variant for variant in train.VARIANTS if not variant.compile)


def test_a_training_step_of_the_paper_takes_49_5_tflop():
    """6 × (layer matrices + head) × tokens, and attention; where half of the positions are masked the head has half."""
    case = training_run.TrainingCase.on(torch.device("cuda"))
    assert train.step_tflop(case, "uniform") == pytest.approx(49.5, abs=0.05)
    head = 6 * 768 * 50_257 * 65_536 / 1e12
    assert train.step_tflop(case, "uniform") - train.step_tflop(case, "multimask") == pytest.approx(head / 2)


def test_every_variant_computes_the_same_loss():
    rows = train.run(CASE, EAGER)
    assert [(row.source, row.variant) for row in rows] == [(s, v.name) for s in CASE.sources for v in EAGER]
    for source in CASE.sources:
        losses = [row.loss for row in rows if row.source == source]
        assert losses == pytest.approx([losses[0]] * len(EAGER), rel=1e-5)
    assert all(row.ms > 0 and row.tokens_per_s > 0 and row.share_of_peak is None for row in rows)
    assert all(row.slowdown is None for row in rows)


def test_peak_memory_includes_the_network(monkeypatch):
    noted = []
    made = train.TimedTraining

    class Noted(train.PeakMemory):
        def __enter__(self):
            noted.append("measured from here")
            return super().__enter__()

    monkeypatch.setattr(train, "PeakMemory", Noted)
    monkeypatch.setattr(train, "TimedTraining", lambda *given: (noted.append("made"), made(*given))[1])
    train.run(CASE, EAGER[:1])
    assert noted == ["measured from here", "made"] * len(CASE.sources)


@pytest.mark.slow
def test_workers_are_started_before_couplings_are_timed(monkeypatch):
    awake = []
    ready = training_run.FlowTask.wait_until_ready
    monkeypatch.setattr(training_run.FlowTask, "wait_until_ready", lambda task: (awake.append(True), ready(task)))
    coupled = training_run.Variant("exact OT", compile=False, ot_batch=1)
    (row,) = train.run(
        training_run.TrainingCase(batch=4, length=8, tokens=40, steps=2, sources=("multimask",)), (coupled,)
    )
    assert awake == [True]
    assert row.loss is None
    assert row.slowdown > -1
    assert row.slowdown_spread > 0


@pytest.mark.slow  # starts eight processes
def test_blocks_with_and_without_couplings_alternate_with_the_same_trainer(monkeypatch):
    seen = []
    update = training_run.Trainer.update

    def noted(trainer, step):
        coupled = isinstance(trainer.task.flow.coupling, ExactOT)
        assert (trainer.ot_average is not None) == coupled
        seen.append((id(trainer), coupled))
        update(trainer, step)

    monkeypatch.setattr(training_run.Trainer, "update", noted)
    monkeypatch.setattr(train, "BLOCKS", 2)
    coupled = training_run.Variant("exact OT", compile=False, ot_batch=8)
    (row,) = train.run(
        training_run.TrainingCase(batch=4, length=8, tokens=40, steps=2, sources=("multimask",)), (coupled,)
    )
    assert len({trainer for trainer, _ in seen}) == 1
    turns = [(coupled, len(list(steps))) for coupled, steps in itertools.groupby(coupled for _, coupled in seen)]
    # the first to warm up; then without and with, with and without
    assert [coupled for coupled, _ in turns] == [True, False, True, False]
    _, without, twice, again = (count for _, count in turns)
    assert without == again == twice / 2  # as many before the clock starts, and as many after it
    assert row.uncoupled_ms > 0


@pytest.mark.slow
def test_the_slowdown_is_robust_against_other_load_of_the_host(monkeypatch):
    """Steps that solve for seven others count, in every turn; a hiccup in each turn, and a turn of them, does not."""
    turns = iter(range(train.BLOCKS))

    def steps(run, count):
        return ([1.0] * 7 + [3.0]) * (count // 8)

    def uncoupled(run, count):
        return [5.0] * count if next(turns) == 2 else [1.0] * (count - 1) + [90.0]

    monkeypatch.setattr(train.TimedTraining, "steps", steps)
    monkeypatch.setattr(train.TimedTraining, "steps_without_coupling", uncoupled)
    coupled = training_run.Variant("exact OT", compile=False, ot_batch=8)
    (row,) = train.run(
        training_run.TrainingCase(batch=4, length=8, tokens=40, steps=17, sources=("multimask",)), (coupled,)
    )
    assert row.slowdown == pytest.approx(0.25)
    assert row.ms == pytest.approx(1250)
    assert row.uncoupled_ms > 1e3  # the mean still shows them


def test_variants_switch_kernels_off_while_they_run_and_on_again(monkeypatch):
    seen = []
    made = train.TimedTraining
    monkeypatch.setattr(train, "TimedTraining", lambda *arguments: (seen.append(switch.current), made(*arguments))[1])
    plain = next(variant for variant in train.VARIANTS if variant.name.startswith("plain"))
    train.run(training_run.TrainingCase(batch=2, length=8, tokens=40, steps=1, sources=("multimask",)), (plain,))
    assert seen == [Kernels(fused_head=False, short_attention=False, residual_norm=False, gelu_mlp=False)]
    assert switch.current == Kernels()


@pytest.mark.parametrize("setting", ["steps=0", "tokens=1", "size=huge", "batch=0", "source=mask", "lengt=8"])
def test_an_impossible_setting_is_reported_in_one_message(hopflow, setting):
    result = hopflow("bench", "train", setting)
    assert result.code == 2
    assert "bug" not in result.err
