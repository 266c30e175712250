"""The queue of the text study: failures, time limits, resuming, judges that come later."""

from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from commands import exit_code
from synthetic_cells import synthetic_cell
from tiny_study import TINY, bound, tiny_budget

from hopflow.evaluation import sets
from hopflow.evaluation.evaluated_model import EvaluatedModel
from hopflow.evaluation.judge import Judge
from hopflow.models import Causal
from hopflow.recipes import Built
from hopflow.reproduce.text import cell as cells
from hopflow.reproduce.text import late_judges, measure, queue, training_run
from hopflow.reproduce.text.budgets import BUDGETS
from hopflow.reproduce.text.cell_bounds import _tightest_proposal
from hopflow.reproduce.text.evaluation_sets import EvaluationSets
from hopflow.reproduce.text.failures import read_failures
from hopflow.reproduce.text.judges import NamedJudge, judge_folder
from hopflow.reproduce.text.page import page
from hopflow.reproduce.text.protocol import Budget


def two_cells(monkeypatch, run_cell):
    """A queue of two cells without judges, measured by `run_cell`."""
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b", "ar"))
    monkeypatch.setattr(queue, "prepare_judges", lambda *_: [])
    monkeypatch.setattr(queue, "run_cell", run_cell)
    return BUDGETS["tiny"]


def test_a_cell_that_fails_is_recorded_and_tried_again_after_the_others(tmp_path, monkeypatch):
    def run_cell(budget, variant, seed, *_, **__):
        if variant.name == "dfm_b":
            raise ValueError("the loss is not finite\nat step 3")
        return synthetic_cell(budget, variant, seed)

    budget = two_cells(monkeypatch, run_cell)
    written = queue.run(tmp_path, budget="tiny", device="cpu", commit="c")
    assert [path.name for path in written] == ["tiny-ar-seed0.json"]
    (failure,) = read_failures(tmp_path, "tiny")
    assert (failure.variant, failure.error, failure.commit) == ("dfm_b", "ValueError: the loss is not finite", "c")
    (tmp_path / "tiny-ar-seed0.json").unlink()
    assert [variant.name for variant, _ in queue.missing(budget, tmp_path)] == ["ar", "dfm_b"]
    queue.run(tmp_path, budget="tiny", device="cpu")
    assert "| dfm_b, seed 0 | ValueError: the loss is not finite | missing |" in page(tmp_path, "tiny")


def test_an_interrupted_cell_is_not_a_failed_one(tmp_path, monkeypatch):
    def run_cell(*_, **__):
        raise KeyboardInterrupt

    two_cells(monkeypatch, run_cell)
    with pytest.raises(KeyboardInterrupt):
        queue.run(tmp_path, budget="tiny", device="cpu")
    assert list(read_failures(tmp_path, "tiny")) == []


def test_cells_that_do_not_fit_into_the_rest_of_the_time_are_passed_over(tmp_path, monkeypatch):
    budget = two_cells(monkeypatch, lambda budget, variant, seed, *_, **__: synthetic_cell(budget, variant, seed))
    slow = synthetic_cell("tiny", budget.variants[0], 1)
    device = queue.machine(queue.choose_device("cpu"))["device"]
    quick = replace(synthetic_cell("tiny", budget.variants[1], 1), seconds={"training": 1.0})
    for known in (replace(slow, seconds={"training": 500.0}), quick):
        replace(known, machine={"device": device}).write(tmp_path)
    written = queue.run(tmp_path, budget="tiny", device="cpu", minutes=1.0)
    assert [path.name for path in written] == ["tiny-ar-seed0.json"]


def test_the_time_that_the_judge_takes_counts(tmp_path, monkeypatch):
    two_cells(monkeypatch, lambda budget, variant, seed, *_, **__: synthetic_cell(budget, variant, seed))
    now = [0.0]
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(queue, "prepare_judges", lambda *_: now.__setitem__(0, 70.0) or [])
    lines = []
    assert queue.run(tmp_path, budget="tiny", device="cpu", minutes=2.0, expect=1.0, say=lines.append) == []
    assert lines == ["dfm_b, seed 0, takes about 60 s, 50 s are left", "ar, seed 0, takes about 60 s, 50 s are left"]


def test_a_cell_that_another_process_runs_or_has_run_is_passed_over(tmp_path, monkeypatch):
    def run_cell(budget, variant, seed, *_, **__):
        synthetic_cell("tiny", BUDGETS["tiny"].variants[2], 0).write(tmp_path)  # by another process, meanwhile
        return synthetic_cell(budget, variant, seed)

    two_cells(monkeypatch, run_cell)
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b", "ar", "dfm_o"))
    work, lines = tmp_path / "work", []
    with training_run.claimed(work, "tiny-dfm_b-seed0.json") as ours:
        assert ours
        written = queue.run(tmp_path, budget="tiny", work=work, device="cpu", say=lines.append)
    assert [path.name for path in written] == ["tiny-ar-seed0.json"]
    assert "dfm_b, seed 0: another process runs it" in lines
    assert "dfm_o, seed 0: another process has run it" in lines
    assert [path.name for path in queue.run(tmp_path, budget="tiny", work=work, device="cpu")] == [
        "tiny-dfm_b-seed0.json"
    ]


def test_a_run_that_another_process_trains_is_waited_for(tmp_path):
    order, said = [], Event()
    trains_later, trains_now = Mock(spec=Built), Mock(spec=Built)
    trains_later.recipe = trains_now.recipe = SimpleNamespace(steps=2)

    def say(line):
        order.append(line)
        said.set()

    def first(**_):
        waiting.start()
        assert said.wait(60)
        order.append("first")

    trains_now.train.side_effect = first
    trains_later.train.side_effect = lambda **_: order.append("second")
    waiting = Thread(target=training_run.train, args=(trains_later, tmp_path / "work" / "judge", say))
    training_run.train(trains_now, tmp_path / "work" / "judge", order.append)
    waiting.join(60)
    assert order == ["waiting for another process, which trains judge", "first", "second"]


@pytest.mark.parametrize(
    ("trained_elsewhere", "expected"),
    [(True, ["training", "judge", "samples"]), (False, ["judge", "training", "samples"])],
)
def test_a_cell_is_trained_while_another_process_trains_the_judge(tmp_path, monkeypatch, trained_elsewhere, expected):
    order, work = [], tmp_path / "work"

    def run_cell(budget, variant, seed, judges, *_, **__):
        order.append("training")
        judges()
        order.append("samples")
        return synthetic_cell(budget, variant, seed)

    two_cells(monkeypatch, run_cell)
    monkeypatch.setattr(queue, "prepare_judges", lambda *_: order.append("judge") or [])
    folder = judge_folder(TINY, work) if trained_elsewhere else tmp_path / "another"
    with training_run._alone(folder, lambda: None):
        queue.run(tmp_path, budget="tiny", work=work, device="cpu", variants=("ar",))
    assert order == expected


def test_the_forecast_of_a_cell_is_that_of_its_variant_then_of_its_protocol_then_the_expected_one():
    variant, other = tiny_budget("dfm_b", "ar").variants
    times = queue.CellTimes("gpu", unknown=7.0)
    assert times.forecast(variant) == 7.0
    times.add(replace(synthetic_cell("tiny", other, 0), machine={"device": "gpu"}))
    assert times.forecast(variant) == times.forecast(other) == 161.0
    times.add(replace(synthetic_cell("tiny", variant, 0), machine={"device": "gpu"}, seconds={"training": 3.0}))
    times.add(replace(synthetic_cell("tiny", variant, 0), machine={"device": "cpu"}, seconds={"training": 9.0}))
    assert times.forecast(variant) == 3.0


def test_the_forecast_on_a_shared_device_is_longer_than_a_cell_that_had_it_alone():
    (variant,) = tiny_budget("dfm_b").variants
    times = queue.CellTimes("gpu", shared=True)
    alone = replace(synthetic_cell("tiny", variant, 0), machine={"device": "gpu"}, seconds={"training": 100.0})
    times.add(alone)
    assert times.forecast(variant) == pytest.approx(160.0)
    times.add(replace(alone, machine={"device": "gpu", "shared": True}, seconds={"training": 170.0}))
    assert times.forecast(variant) == 170.0


def test_only_the_named_variants_and_seeds_are_run(tmp_path):
    chosen = queue.chosen_cells(BUDGETS["full"], tmp_path, ("dfm_b", "dfm_mmf"), (1, 2))
    assert [(variant.name, seed) for variant, seed in chosen] == [
        *(("dfm_b", 1), ("dfm_mmf", 1), ("dfm_b", 2), ("dfm_mmf", 2))
    ]
    with pytest.raises(ValueError, match="no variant 'dfm_x'; variants are dfm_o, dfm_b"):
        queue.chosen_cells(BUDGETS["full"], tmp_path, ("dfm_x",))


def test_a_cell_that_was_killed_while_it_was_measured_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_o"))
    monkeypatch.setattr(queue, "prepare_judges", lambda *_: [])
    whole = measure.measure_bounds

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure_bounds", killed)
    with pytest.raises(KeyboardInterrupt):
        queue.run(tmp_path, budget="tiny", work=tmp_path / "work", device="cpu", offline=True)
    lines = []
    monkeypatch.setattr(measure, "measure_bounds", whole)
    (path,) = queue.run(tmp_path, budget="tiny", work=tmp_path / "work", device="cpu", offline=True, say=lines.append)
    found = cells.read(path)
    assert not any("step 1 of" in line for line in lines)
    assert found.training["seconds"] > 0
    assert found.seconds["training"] >= found.training["seconds"]
    assert [step for step, _ in found.training_loss] == [1, 2]


def test_test_rows_are_read_once_for_all_cells(monkeypatch):
    read = []

    def named(name, *_, **__):
        read.append(name)
        return sets.TextSet(name, torch.arange(6)[:, None])

    monkeypatch.setattr(sets, "named", named)
    texts = EvaluationSets(offline=True, say=lambda text: None)
    subject = EvaluatedModel(Causal(5, "micro"), None, recipe={"length": 1})
    protocol = replace(TINY, test_set="novels:test", zero_shot_rows=3)
    first, again = (texts.test(protocol, subject).x1 for _ in range(2))
    assert torch.equal(first, again)
    assert (len(first), len(texts.zero_shot("ptb", protocol, subject).x1)) == (4, 3)
    texts.test(protocol, replace(subject, identity={"data.tokenizer_sha256": "another"}))
    assert read == ["novels:test", "ptb", "novels:test"]


def test_the_proposal_of_the_zero_shot_sets_is_the_tighter_one_on_the_test_set():
    loose, tight = bound([9.0], quantity="br", proposal="context"), bound([8.0], quantity="br", proposal="x0 head")
    assert _tightest_proposal([bound([1.0]), loose, tight]) == "x0 head"
    assert _tightest_proposal([bound([1.0]), loose, replace(tight, nats=[None])]) == "context"
    assert _tightest_proposal([]) == "context"


class OneNatJudge(Judge):
    """Every text has one token of one nat."""

    def __init__(self):
        """Without a network."""

    def score(self, texts):
        one = torch.ones(len(texts))
        return SimpleNamespace(nats=one, tokens=one.long(), bytes=one.long())

    identity, _nats = {}, None


def test_a_judge_can_score_the_stored_texts_later(tmp_path, monkeypatch):
    variant = BUDGETS["full"].variants[0]
    waiting = synthetic_cell("full", variant, 0, judges=("ar",))
    assert len(waiting.samples[0].texts) == waiting.samples[0].n == 8
    waiting.write(tmp_path)
    synthetic_cell("full", variant, 1).write(tmp_path)  # this one is complete
    judge = NamedJudge("smollm2", OneNatJudge(), {"identity": {"name": "smollm2"}})
    monkeypatch.setattr(late_judges, "load_named", lambda *_: judge)
    (path,) = late_judges.score_stored_texts(tmp_path)
    found = cells.read(path)
    assert found.seed == 0
    assert found.judges["smollm2"] == {"identity": {"name": "smollm2"}}
    assert all(point.judges["smollm2"].tokens == [1] * 8 and len(point.texts) == 4 for point in found.samples)
    assert late_judges.score_stored_texts(tmp_path) == []


def test_a_late_judge_that_is_stopped_keeps_the_points_that_it_has_scored(tmp_path, monkeypatch):
    class Stopped(OneNatJudge):
        calls = 0

        def score(self, texts):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().score(texts)

    path = synthetic_cell("full", BUDGETS["full"].variants[0], 0, judges=("ar",)).write(tmp_path)
    monkeypatch.setattr(late_judges, "load_named", lambda *_: NamedJudge("smollm2", Stopped(), {}))
    with pytest.raises(KeyboardInterrupt):
        late_judges.score_stored_texts(tmp_path)
    assert ["smollm2" in point.judges for point in cells.read(path).samples] == [True] * 2 + [False] * 10
    again, lines = OneNatJudge(), []
    monkeypatch.setattr(late_judges, "load_named", lambda *_: NamedJudge("smollm2", again, {}))
    assert late_judges.score_stored_texts(tmp_path, say=lines.append) == [path]
    assert lines == [f"{path.name}: smollm2 scores 80 samples"]
    assert late_judges.waiting(cells.read(path)) == []


def test_a_late_judge_scores_the_chosen_cells_and_those_that_were_run_again(tmp_path, monkeypatch):
    variants = BUDGETS["full"].variants[:2]
    for seed in (0, 1):
        for variant in variants:
            synthetic_cell("full", variant, seed, judges=("ar",)).write(tmp_path)
    again = synthetic_cell("full", variants[0], 0, judges=("ar",)).write(tmp_path / cells.REPEATED)
    monkeypatch.setattr(late_judges, "load_named", lambda *_: NamedJudge("smollm2", OneNatJudge(), {}))
    chosen = late_judges.score_stored_texts(tmp_path, variants=(variants[1].name,), seeds=(1,))
    assert [path.name for path in chosen] == [cells.file_name("full", variants[1].name, 1)]
    assert late_judges.score_stored_texts(tmp_path, repeat=True) == [again]
    assert len(late_judges.score_stored_texts(tmp_path)) == 3


@pytest.mark.slow
def test_every_variant_of_the_study_runs_in_miniature(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    small = tuple(replace(variant, protocol=TINY, seeds=(0,)) for variant in BUDGETS["full"].variants)
    monkeypatch.setitem(BUDGETS, "tiny", Budget("tiny", small))
    written = queue.run(tmp_path, budget="tiny", work=tmp_path / "work", device="cpu", offline=True)
    assert list(read_failures(tmp_path, "tiny")) == []
    assert len(written) == len(small)
    assert "missing: none" in page(tmp_path, "tiny")


def test_cells_of_a_shared_device_and_repeated_cells_are_marked(tmp_path, monkeypatch):
    two_cells(monkeypatch, lambda budget, variant, seed, *_, **__: synthetic_cell(budget, variant, seed))
    (path,) = queue.run(tmp_path, budget="tiny", device="cpu", variants=("ar",), shared=True)
    assert cells.read(path).machine["shared"] is True
    (again,) = queue.run(tmp_path, budget="tiny", device="cpu", variants=("ar",), repeat=True)
    assert again == tmp_path / "repeated" / path.name
    assert "shared" not in cells.read(again).machine


def test_with_limit_0_only_the_judge_is_trained(tmp_path, monkeypatch):
    asked = []
    two_cells(monkeypatch, lambda *_, **__: pytest.fail("a cell was run"))
    monkeypatch.setattr(queue, "prepare_judges", lambda *given: asked.append(given[-1]) or [])
    assert queue.run(tmp_path, budget="tiny", device="cpu", limit=0, later=("smollm2",)) == []
    assert asked == [("smollm2",)]


@pytest.mark.parametrize("study", ["text", "rectified"])
@pytest.mark.parametrize(("options", "expected"), [((), ["queue"]), (("--judge",), ["judges"]), (("--table",), [])])
def test_a_study_runs_its_queue_unless_an_option_asks_for_less(study, options, expected, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(queue, "run", lambda *_, **__: ran.append("queue"))
    monkeypatch.setattr(late_judges, "score_stored_texts", lambda *_, **__: ran.append("judges"))
    folder = tmp_path / "docs/results" / study
    folder.mkdir(parents=True)
    folders = ("--cells", folder, "--work", tmp_path / "work")
    assert exit_code("reproduce", study, *folders, *options) == 0
    assert ran == expected
    assert folder.with_suffix(".md").exists()
