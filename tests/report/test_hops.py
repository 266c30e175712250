"""The section on hops: counted and predicted hops, their cache, and sentences on what is not available."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import reported_runs
import torch

import hopflow as hf
from hopflow.data.tokenizers import Characters
from hopflow.evaluation.predicted_jumps import predicted_jumps
from hopflow.report import hop_counts
from hopflow.report.animation import frames_at
from hopflow.report.blocks import AnimationBlock, Figure, Paragraph, TableBlock
from hopflow.report.hop_counts import MAX_BATCHES, STEPS, CountedHops, predict_hops
from hopflow.report.numbers import BINS, bin_width, binned
from hopflow.report.run_data import RunData
from hopflow.report.sections.hops import RunHops, section
from hopflow.report.trained_run import CACHE_FILE, TrainedRun, Unavailable, cached
from hopflow.runs import custom_network


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs: every token may hop again, or once."""
    home = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        reported_runs.run(home, "words", source="bag_of_words", coupling="exact", cost="hamming")
        reported_runs.run(home, "masks", source="mask", coupling="independent")
        yield home


@pytest.fixture(autouse=True)
def few(request, monkeypatch):
    """Sample 12 sequences, independent of the speed of the machine, except in tests that set the time of a call."""
    if "call" not in request.fixturenames:
        monkeypatch.setattr(hop_counts, "affordable", lambda model, rows: (12, STEPS))


@pytest.fixture
def words(home, tmp_path):
    """A copy that a test may change, without a cache."""
    return shutil.copytree(home / "words", tmp_path / "words", ignore=shutil.ignore_patterns(CACHE_FILE))


TIMES = tuple(step / STEPS for step in range(STEPS + 1))


def flat(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*xt.shape, 2)


def blocks(found, kind):
    return [block for block in found.blocks if isinstance(block, kind)]


def said(found) -> str:
    return " ".join(block.text for block in blocks(found, Paragraph))


def test_a_run_has_an_animation_a_table_and_two_figures(home):
    found = section([RunData.load(home / "words")])
    assert found.anchor == "hops"
    assert [figure.name for figure in blocks(found, Figure)] == ["jumps_by_step", "jumps_by_position"]
    assert len(blocks(found, TableBlock)) == 1
    (player,) = blocks(found, AnimationBlock)
    assert len(player.data["sequences"]) == 4
    assert [still.facts.partition(":")[0] for still in player.stills] == ["t = 0", "t = 0.5", "t = 1"]
    assert "4 of 12 samples" in said(found)


def test_runs_share_figures_and_have_separate_animations(home):
    found = section([RunData.load(home / name) for name in ("words", "masks")])
    assert [player.name for player in blocks(found, AnimationBlock)] == ["player-0", "player-1"]
    (table,) = blocks(found, TableBlock)
    assert [row[0] for row in table.rows] == ["words", "masks"]
    assert all(set(figure.data) == {"words", "masks"} for figure in blocks(found, Figure))


def test_hops_from_masks_are_a_sentence(home):
    assert "Every position hops once in each sequence." in said(section([RunData.load(home / "masks")]))


def test_counted_hops_are_those_of_generate(home):
    trained = TrainedRun.load(RunData.load(home / "words"))
    found = RunHops.of(0, trained.run).counted
    out = hf.generate(
        trained.model, trained.flow, n=found.n, length=16, steps=STEPS, trajectory=True, seed=hop_counts.SEED
    )
    assert found.jumps[0] == pytest.approx(float(out.jumps.mean()))
    assert sum(found.by_step.mean) == pytest.approx(found.jumps[0])
    assert sum(found.by_position.mean) == pytest.approx(found.jumps[0])
    for frame, row in zip(frames_at(found.animation, 1.0), out.tokens.tolist(), strict=False):
        assert frame.text == trained.tokenizer.decode(row)


def test_predicted_hops_equal_predicted_jumps_of_the_same_pairs(home):
    trained = TrainedRun.load(RunData.load(home / "words"))
    found = predict_hops(trained, TIMES)

    def rows(index: int):
        return trained.corpus.batch(0, 8 * index, 8)

    assumed = predicted_jumps(trained.flow, rows, length=16, size=8, count=MAX_BATCHES, seed=0)
    assert found.jumps == pytest.approx(assumed)
    assert sum(found.by_step.mean) == sum(found.by_position.mean) == pytest.approx(assumed[0])
    assert (found.batches, found.rows) == (MAX_BATCHES, 8)


def test_hops_are_predicted_for_the_ot_batch_size_of_the_run(home, monkeypatch):
    monkeypatch.setattr(hop_counts, "SECONDS", 0.0)  # two batches
    run = RunData.load(home / "words")
    trained = TrainedRun.load(replace(run, recipe={**run.recipe, "ot_batch": 600}))
    found = predict_hops(trained, TIMES)
    assert (found.batches, found.rows) == (2, 600)

    def rows(index: int):
        return trained.corpus.batch(0, 600 * index, 600)

    assert found.jumps == pytest.approx(predicted_jumps(trained.flow, rows, length=16, size=600, count=2, seed=0))
    assert found.jumps[0] < predict_hops(TrainedRun.load(run), TIMES).jumps[0]  # more rows to choose from


def test_an_ot_batch_that_would_take_too_long_is_not_replaced_by_a_smaller_one(home, monkeypatch):
    monkeypatch.setattr(hop_counts, "_seconds", lambda work: 1.0)
    run = RunData.load(home / "words")
    with pytest.raises(
        Unavailable, match="coupling two OT batches of 8,192 rows would take about 512 s on this machine"
    ):
        predict_hops(TrainedRun.load(replace(run, recipe={**run.recipe, "ot_batch": 8192})), TIMES)


def test_a_prediction_for_another_ot_batch_is_not_read_from_the_cache(words):
    run = RunData.load(words)
    assert RunHops.of(0, run).predicted.rows == 8
    assert RunHops.of(0, replace(run, recipe={**run.recipe, "ot_batch": 16})).predicted.rows == 16


def test_from_masks_every_position_hops_once_and_no_text_is_needed(home, monkeypatch):
    run = RunData.load(home / "masks")
    without_text = replace(run, recipe={**run.recipe, "data": "-"})
    found = predict_hops(TrainedRun.load(without_text), TIMES)
    assert found.jumps == (16.0, 0.0)
    assert found.batches == 0
    assert RunHops.of(0, run).counted.jumps == (16.0, 0.0)


def test_a_second_report_uses_the_cache(words, monkeypatch):
    first = RunHops.of(0, RunData.load(words))
    assert (words / CACHE_FILE).is_file()

    def refuse(*_):
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(hop_counts, "count_hops", refuse)
    monkeypatch.setattr(hop_counts, "predict_hops", refuse)
    again = RunHops.of(0, RunData.load(words))
    assert (again.counted, again.predicted) == (first.counted, first.predicted)


@pytest.mark.parametrize("damage", ["{", "[]", '{"hops": 1}', "null"])
def test_a_damaged_cache_is_computed_again(words, damage):
    first = RunHops.of(0, RunData.load(words)).counted
    (words / CACHE_FILE).write_text(damage)
    assert RunHops.of(0, RunData.load(words)).counted.animation == first.animation
    assert json.loads((words / CACHE_FILE).read_text())["hops"]["found"]["n"] == first.n


def test_a_cache_of_other_weights_is_not_used(words):
    RunHops.of(0, RunData.load(words))
    content = json.loads((words / CACHE_FILE).read_text())
    content["hops"]["key"]["weights"] = "of another step"
    content["hops"]["found"]["n"] = 1
    (words / CACHE_FILE).write_text(json.dumps(content))
    assert RunHops.of(0, RunData.load(words)).counted.n > 1


# not available


def test_a_run_without_a_checkpoint_is_named_next_to_one_that_has_one(home, words):
    shutil.rmtree(words / "checkpoints")
    found = section([RunData.load(words), RunData.load(home / "masks")])
    assert "words: no sequence was sampled, since it has no checkpoint" in said(found)
    (table,) = blocks(found, TableBlock)
    assert [row[0] for row in table.rows] == ["masks"]


def test_without_any_checkpoint_there_is_no_section_and_the_summary_says_so(words):
    shutil.rmtree(words / "checkpoints")
    run = RunData.load(words)
    assert section([run]) is None
    assert any("checkpoint" in what for what in run.missing)


def test_a_damaged_checkpoint_is_reported_in_a_sentence(words):
    for file in words.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"")
    assert "its checkpoint could not be loaded" in said(section([RunData.load(words)]))


def test_a_custom_network_is_reported_if_it_is_passed_with_its_text(home, tmp_path, monkeypatch):
    """Its recipe does not name a text, and its class is not known in another process: both are passed."""
    corpus = hf.data.load(home / "fox.txt", "char", 16)

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(corpus.vocab_size, 8), torch.nn.Linear(8, corpus.vocab_size)

        def forward(self, xt, t):
            return self.head(self.table(xt))

    flow = hf.Flow(hf.BagOfWords.fit(corpus.counts), coupling=hf.ExactOT(hf.Hamming()))
    small = {"batch": 4, "ot_batch": 8, "workers": 0, "device": "cpu", "eval_rows": 0, "eval_samples": 0}
    hf.train(Own(), flow, corpus, out=tmp_path / "own", steps=2, **small)
    monkeypatch.setattr(custom_network, "_KNOWN", {})  # as in another process
    assert "its checkpoint could not be loaded" in said(section([RunData.load(tmp_path / "own")]))
    found = section([RunData.load(tmp_path / "own", model=Own(), corpus=corpus)])
    (table,) = blocks(found, TableBlock)
    assert table.rows[0][0] == "own"
    assert "±" in table.rows[0][2]


def test_without_the_training_text_hops_are_counted_but_not_predicted(words):
    run = RunData.load(words)
    run = replace(run, recipe={**run.recipe, "data": str(words / "gone.txt")})
    found = section([run])
    assert "hops are not predicted, since its text could not be read" in said(found)
    (table,) = blocks(found, TableBlock)
    assert table.rows[0][2] == "unknown"


def test_a_text_that_changed_since_the_training_is_refused(words):
    run = RunData.load(words)
    run = replace(run, identity={**run.identity, "data.train_sha256": "another"})
    with pytest.raises(Unavailable, match="its text has changed since the training"):
        predict_hops(TrainedRun.load(run), TIMES)


def test_a_network_that_returns_nan_is_reported_in_a_sentence(words, monkeypatch):
    load = TrainedRun.load

    def broken(run):
        found = load(run)
        next(found.model.parameters()).data.fill_(torch.nan)
        return found

    monkeypatch.setattr(TrainedRun, "load", broken)
    assert "no sequence was sampled, since the network returned NaN: check its weights" in said(
        section([RunData.load(words)])
    )


@pytest.mark.parametrize(("call", "n", "steps"), [(4e-4, 64, 32), (0.05, 5, 32), (0.5, 1, 32), (2.0, 1, 8)])
def test_the_number_of_sequences_follows_from_the_time_of_a_network_call(monkeypatch, call, n, steps):
    monkeypatch.setattr(hop_counts, "_seconds", lambda work: call)
    assert hop_counts.affordable(flat, torch.zeros(4, 5, dtype=torch.long)) == (n, steps)


@pytest.mark.parametrize("call", [60.0])
def test_a_network_that_is_too_slow_is_not_sampled(monkeypatch, call):
    monkeypatch.setattr(hop_counts, "_seconds", lambda work: call)
    with pytest.raises(Unavailable, match="sampling one sequence would take about 480 s on this machine"):
        hop_counts.affordable(flat, torch.zeros(4, 5, dtype=torch.long))


# bins, and a single token


@pytest.mark.parametrize("length", [1, 31, 32, 33, 128, 1000])
def test_bins_cover_every_position_once(length):
    values = torch.arange(float(length))[None].repeat(2, 1)
    found = binned(values)
    assert found.shape[1] <= BINS
    assert float(found[0, 0]) == pytest.approx((bin_width(length) - 1) / 2)
    assert float(found[0, -1]) > length - 1 - bin_width(length)


def test_a_single_token_can_be_counted_and_cached_with_unknown_errors(tmp_path):
    letters = Characters("ab")
    flow = hf.Flow(hf.Mask(hf.Vocab(2, 1)))
    out = hf.generate(flat, flow, n=1, length=1, steps=STEPS, trajectory=True)
    found = CountedHops.of(out, torch.tensor(TIMES, dtype=torch.float64), letters, 2, "float32")
    assert found.by_position.mean == (1.0,)
    assert sum(found.by_step.mean) == 1
    assert all(math.isnan(error) for error in (found.jumps[1], *found.by_step.stderr, *found.by_position.stderr))
    for make in (lambda: found, lambda: None):  # made, then read: unknown errors are null in the file
        again = cached(tmp_path, "journey", {"key": 1}, CountedHops, make)
        assert math.isnan(again.jumps[1])
        assert math.isnan(again.by_step.stderr[0])
    assert "NaN" not in (tmp_path / CACHE_FILE).read_text()


@pytest.mark.parametrize(
    ("other", "shared"), [({}, True), ({"length": 9}, False), ({"sampler": "16 Euler steps"}, False)]
)
def test_hops_are_compared_between_runs_that_were_counted_in_the_same_way(monkeypatch, other, shared):
    counted = {"sampler": "32 Euler steps", "length": 8, "jumps": (3.0, 0.25), "n": 12}
    found = {"a": SimpleNamespace(**counted), "b": SimpleNamespace(**counted | {"jumps": (2.0, 0.5)} | other)}
    monkeypatch.setattr(hop_counts, "run_hops", lambda run: (found[run.name], None, ""))
    runs = [RunData(Path(name), name) for name in found]
    values, sampler = hop_counts.counted_totals(runs)
    assert sampler == ("η = 0, 32 Euler steps" if shared else "")
    assert [(one.value, one.stderr) for one in values.values()] == ([(3.0, 0.25), (2.0, 0.5)] if shared else [])
