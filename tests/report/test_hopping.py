"""The report's section on hops: what is drawn, what is expected, what is kept, and what it says where it cannot."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

import hopflow as hf
import reported_runs
from hopflow.data.tokenizers import Characters
from hopflow.report import expected, hopping, journey
from hopflow.report.expected import BATCHES, expect
from hopflow.report.film import stills
from hopflow.report.hopping import section
from hopflow.report.journey import Journey
from hopflow.report.kept import FILE, kept
from hopflow.report.means import BINS, binned
from hopflow.report.section import Figure, Player, Prose, Table
from hopflow.report.story import Story
from hopflow.report.trained import Trained, Unknown
from hopflow.training.jumps import predicted_jumps


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
    """Sequences, however fast this machine is; those that ask how many can be had find out."""
    if "call" not in request.fixturenames:
        monkeypatch.setattr(journey, "affordable", lambda model, rows: (12, journey.STEPS))


@pytest.fixture
def words(home, tmp_path):
    """A copy that a test may change, and that has not been reported on."""
    return shutil.copytree(home / "words", tmp_path / "words", ignore=shutil.ignore_patterns(FILE))


TIMES = tuple(step / journey.STEPS for step in range(journey.STEPS + 1))


def flat(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*xt.shape, 2)


def blocks(found, kind):
    return [block for block in found.blocks if isinstance(block, kind)]


def said(found) -> str:
    return " ".join(block.text for block in blocks(found, Prose))


def test_a_run_is_told_by_a_player_a_table_and_two_figures(home):
    found = section([Story.load(home / "words")])
    assert found.anchor == "hops"
    assert [figure.name for figure in blocks(found, Figure)] == ["jumps_by_step", "jumps_by_position"]
    assert len(blocks(found, Table)) == 1
    (player,) = blocks(found, Player)
    assert len(player.data["sequences"]) == 4
    assert [still.facts.partition(":")[0] for still in player.stills] == ["t = 0", "t = 0.5", "t = 1"]
    assert "4 of 12 sequences" in said(found)


def test_runs_share_figures_and_have_players_of_their_own(home):
    found = section([Story.load(home / name) for name in ("words", "masks")])
    assert [player.name for player in blocks(found, Player)] == ["player-0", "player-1"]
    (table,) = blocks(found, Table)
    assert [row[0] for row in table.rows] == ["words", "masks"]
    assert all(set(figure.data) == {"words", "masks"} for figure in blocks(found, Figure))


def test_the_numbers_are_those_of_the_sequences_that_generate_draws(home):
    trained = Trained.load(Story.load(home / "words"))
    found = hopping.Told.of(0, trained.story).journey
    out = hf.generate(
        trained.model, trained.flow, n=found.n, length=16, steps=journey.STEPS, trajectory=True, seed=journey.SEED
    )
    assert found.jumps[0] == pytest.approx(float(out.jumps.mean()))
    assert sum(found.by_step.mean) == pytest.approx(found.jumps[0])
    assert sum(found.by_position.mean) == pytest.approx(found.jumps[0])
    for still, row in zip(stills(found.film, 1.0), out.tokens.tolist(), strict=False):
        assert still.text == trained.tokenizer.decode(row)


def test_what_is_expected_is_what_training_predicts_of_the_same_pairs(home):
    trained = Trained.load(Story.load(home / "words"))
    found = expect(trained, TIMES)

    def rows(index: int):
        return trained.corpus.batch(0, 8 * index, 8)

    assumed = predicted_jumps(trained.flow, rows, length=16, size=8, count=BATCHES, seed=0)
    assert found.jumps == pytest.approx(assumed)
    assert sum(found.by_step.mean) == sum(found.by_position.mean) == pytest.approx(assumed[0])
    assert (found.batches, found.rows) == (BATCHES, 8)


def test_hops_are_predicted_for_the_ot_batch_of_the_run_whatever_its_size(home, monkeypatch):
    monkeypatch.setattr(expected, "SECONDS", 0.0)  # two batches
    story = Story.load(home / "words")
    trained = Trained.load(replace(story, recipe={**story.recipe, "ot_batch": 600}))
    found = expect(trained, TIMES)
    assert (found.batches, found.rows) == (2, 600)

    def rows(index: int):
        return trained.corpus.batch(0, 600 * index, 600)

    assert found.jumps == pytest.approx(predicted_jumps(trained.flow, rows, length=16, size=600, count=2, seed=0))
    assert found.jumps[0] < expect(Trained.load(story), TIMES).jumps[0]  # more rows to choose from


def test_an_ot_batch_that_would_take_too_long_is_not_replaced_by_a_smaller_one(home, monkeypatch):
    monkeypatch.setattr(expected, "_seconds", lambda work: 1.0)
    story = Story.load(home / "words")
    with pytest.raises(Unknown, match="two OT batches of 8,192 rows would take about 512 s to couple here"):
        expect(Trained.load(replace(story, recipe={**story.recipe, "ot_batch": 8192})), TIMES)


def test_a_prediction_for_another_ot_batch_is_not_read_from_the_cache(words):
    story = Story.load(words)
    assert hopping.Told.of(0, story).expected.rows == 8
    assert hopping.Told.of(0, replace(story, recipe={**story.recipe, "ot_batch": 16})).expected.rows == 16


def test_from_masks_every_position_hops_once_and_no_text_is_needed(home, monkeypatch):
    story = Story.load(home / "masks")
    without_text = replace(story, recipe={**story.recipe, "data": "-"})
    found = expect(Trained.load(without_text), TIMES)
    assert found.jumps == (16.0, 0.0)
    assert found.batches == 0
    assert hopping.Told.of(0, story).journey.jumps == (16.0, 0.0)


def test_a_second_report_draws_nothing_again(words, monkeypatch):
    first = hopping.Told.of(0, Story.load(words))
    assert (words / FILE).is_file()

    def refuse(*_):
        raise AssertionError("it was drawn again")

    monkeypatch.setattr(hopping, "draw", refuse)
    monkeypatch.setattr(hopping, "expect", refuse)
    again = hopping.Told.of(0, Story.load(words))
    assert (again.journey, again.expected) == (first.journey, first.expected)


@pytest.mark.parametrize("damage", ["{", "[]", '{"hops": 1}', "null"])
def test_what_is_kept_and_damaged_is_drawn_again(words, damage):
    first = hopping.Told.of(0, Story.load(words)).journey
    (words / FILE).write_text(damage)
    assert hopping.Told.of(0, Story.load(words)).journey.film == first.film
    assert json.loads((words / FILE).read_text())["hops"]["found"]["n"] == first.n


def test_other_weights_are_drawn_anew(words):
    hopping.Told.of(0, Story.load(words))
    content = json.loads((words / FILE).read_text())
    content["hops"]["key"]["weights"] = "of another step"
    content["hops"]["found"]["n"] = 1
    (words / FILE).write_text(json.dumps(content))
    assert hopping.Told.of(0, Story.load(words)).journey.n > 1


# what cannot be told


def test_without_a_checkpoint_it_says_so_beside_a_run_that_has_one(home, words):
    shutil.rmtree(words / "checkpoints")
    found = section([Story.load(words), Story.load(home / "masks")])
    assert "words: no sequence was drawn, since it has no checkpoint" in said(found)
    (table,) = blocks(found, Table)
    assert [row[0] for row in table.rows] == ["masks"]


def test_where_no_run_has_a_checkpoint_the_summary_says_so_and_there_is_no_section(words):
    shutil.rmtree(words / "checkpoints")
    story = Story.load(words)
    assert section([story]) is None
    assert any("checkpoint" in what for what in story.missing)


def test_a_damaged_checkpoint_is_named_in_a_sentence(words):
    for file in words.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"")
    assert "its checkpoint could not be loaded" in said(section([Story.load(words)]))


def test_a_network_of_ones_own_is_told_like_any_other(home, tmp_path):
    """Its recipe names no text, and its file does not say how to build it: both are handed over."""
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
    assert "pass it, from_pretrained" in said(section([Story.load(tmp_path / "own")]))
    found = section([Story.load(tmp_path / "own", model=Own(), corpus=corpus)])
    (table,) = blocks(found, Table)
    assert table.rows[0][0] == "own"
    assert "±" in table.rows[0][2]


def test_without_its_text_jumps_are_counted_and_none_expected(words):
    story = Story.load(words)
    story = replace(story, recipe={**story.recipe, "data": str(words / "gone.txt")})
    found = section([story])
    assert "no hops are predicted, since its text could not be read" in said(found)
    (table,) = blocks(found, Table)
    assert table.rows[0][2] == "unknown"


def test_a_text_that_changed_is_not_taken_for_the_one_of_the_training(words):
    story = Story.load(words)
    story = replace(story, identity={**story.identity, "data.train_sha256": "another"})
    with pytest.raises(Unknown, match="its text has changed since the training"):
        expect(Trained.load(story), TIMES)


def test_a_network_that_gives_nan_is_told_in_a_sentence(words, monkeypatch):
    load = Trained.load

    def broken(story):
        found = load(story)
        next(found.model.parameters()).data.fill_(torch.nan)
        return found

    monkeypatch.setattr(hopping.Trained, "load", broken)
    assert "no sequence was drawn, since the network gave NaN" in said(section([Story.load(words)]))


@pytest.mark.parametrize(("call", "n", "steps"), [(4e-4, 64, 32), (0.05, 5, 32), (0.5, 1, 32), (2.0, 1, 8)])
def test_as_many_sequences_are_drawn_as_there_is_time_for(monkeypatch, call, n, steps):
    monkeypatch.setattr(journey, "_seconds", lambda work: call)
    assert journey.affordable(flat, torch.zeros(4, 5, dtype=torch.long)) == (n, steps)


@pytest.mark.parametrize("call", [60.0])
def test_a_network_that_would_take_all_day_is_not_asked(monkeypatch, call):
    monkeypatch.setattr(journey, "_seconds", lambda work: call)
    with pytest.raises(Unknown, match="would take about 480 s to draw here"):
        journey.affordable(flat, torch.zeros(4, 5, dtype=torch.long))


# small things


@pytest.mark.parametrize("length", [1, 31, 32, 33, 128, 1000])
def test_bins_cover_every_position_once(length):
    values = torch.arange(float(length))[None].repeat(2, 1)
    found = binned(values)
    assert found.shape[1] <= BINS
    assert float(found[0, 0]) == pytest.approx((journey.width(length) - 1) / 2)
    assert float(found[0, -1]) > length - 1 - journey.width(length)


def test_a_single_sequence_of_a_single_token_is_a_journey(tmp_path):
    letters = Characters("ab")
    flow = hf.Flow(hf.Mask(hf.Vocab(2, 1)))
    out = hf.generate(flat, flow, n=1, length=1, steps=journey.STEPS, trajectory=True)
    found = Journey.of(out, letters, 2, "float32")
    assert found.by_position.mean == (1.0,)
    assert sum(found.by_step.mean) == 1
    assert all(math.isnan(error) for error in (found.jumps[1], *found.by_step.stderr, *found.by_position.stderr))
    for make in (lambda: found, lambda: None):  # made, then read: unknown errors are null in the file
        again = kept(tmp_path, "journey", {"key": 1}, Journey, make)
        assert math.isnan(again.jumps[1])
        assert math.isnan(again.by_step.stderr[0])
    assert "NaN" not in (tmp_path / FILE).read_text()
