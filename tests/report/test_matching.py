"""The report's section on the coupling: a batch before and after."""

import shutil
from dataclasses import replace

import pytest
import torch

import hopflow as hf
import reported_runs
from hopflow.report import matched, matching
from hopflow.report.matched import BATCHES, SHOWN, Matched, match, pair
from hopflow.report.matching import section
from hopflow.report.section import Figure, Prose, Table
from hopflow.report.story import Story
from hopflow.report.trained import Trained
from toys import generator


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Runs with and without a coupling, from tokens of the text and from masks."""
    home = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        reported_runs.run(
            home, "embedded", source="multimask", coupling="exact", cost="squared_embedding", ot_ema="0.99999"
        )
        reported_runs.run(home, "plain", source="bag_of_words", coupling="independent")
        reported_runs.run(home, "masks", source="mask", coupling="independent")
        yield home


def batches(count: int = 4, n: int = 16, length: int = 12, data: int = 3):
    gen = generator(0)
    return [tuple(torch.randint(data, (2, n, length), generator=gen)) for _ in range(count)]


@pytest.mark.parametrize("coupling", [hf.ExactOT(), hf.SinkhornOT(eps=0.05), hf.Independent()], ids=str)
def test_costs_are_those_that_the_coupling_reports(coupling):
    rows = batches()
    found = match(coupling, rows)
    exact = [hf.ExactOT().pair(x0, x1) for x0, x1 in rows]
    assert found.before[0] == pytest.approx(sum(p.independent_cost for p in exact) / len(rows))
    if coupling == hf.ExactOT():
        assert found.after[0] == pytest.approx(sum(p.cost for p in exact) / len(rows))
    else:
        assert found.after[0] >= sum(p.cost for p in exact) / len(rows) - 1e-9
    assert found.gain[0] == pytest.approx(1 - found.after[0] / found.before[0])


def test_by_hamming_what_is_not_paid_is_equal():
    found = match(hf.ExactOT(hf.Hamming()), batches(length=12))
    assert found.equal_before[0] == pytest.approx(1 - found.before[0] / 12)
    assert found.equal_after[0] == pytest.approx(1 - found.after[0] / 12)


@pytest.mark.parametrize("n", [16, SHOWN + 16])
def test_the_first_rows_of_the_first_batch_are_shown_with_their_partners(n):
    rows = batches(2, n)
    found = match(hf.ExactOT(), rows)
    costs, order = hf.Hamming().matrix(*rows[0]).double(), hf.ExactOT().match(*rows[0], generator(0)).order
    centred = costs - costs.mean(1, keepdim=True) - costs.mean(0) + costs.mean()
    few = min(n, SHOWN)
    torch.testing.assert_close(torch.tensor(found.drawn).double(), centred[:few, :few], rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found.paired).double(), centred[:few][:, order[:few]], rtol=0, atol=1e-4)
    assert found.rows == n


def test_histograms_hold_every_pair():
    found = match(hf.ExactOT(), batches())
    assert sum(found.all_pairs) == pytest.approx(1)
    assert sum(found.own_pairs) == pytest.approx(1)
    assert len(found.edges) == len(found.all_pairs) + 1


def test_costs_that_are_all_the_same_are_no_failure():
    rows = [(torch.full((8, 5), 3), torch.randint(3, (8, 5), generator=generator(i))) for i in range(3)]
    found = match(hf.ExactOT(), rows)
    assert found.flat
    assert found.gain == (0.0, 0.0)
    assert sum(found.all_pairs) == pytest.approx(1)


def test_pairs_that_cost_nothing_save_nothing():
    rows = [(torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 5, dtype=torch.long))] * 2
    assert match(hf.ExactOT(), rows).gain == (0.0, 0.0)


def test_a_single_row_has_only_one_partner():
    found = match(hf.ExactOT(), batches(n=1))
    assert found.before == found.after
    assert found.flat


# the section


def test_a_coupled_run_shows_a_matrix_a_histogram_and_a_table(home):
    found = section([Story.load(home / "embedded")])
    assert found.anchor == "coupling"
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    assert table.rows[0][:2] == ("embedded", "SquaredEmbedding")
    assert f"n = {BATCHES} batches" in table.caption


def test_the_embeddings_are_those_that_the_training_coupled_by(home):
    trained = Trained.load(Story.load(home / "embedded"))
    saved = hf.training.checkpoint.latest(home / "embedded" / "checkpoints")
    torch.testing.assert_close(trained.table, saved.groups["ot_ema"]["value"], rtol=0, atol=0)
    assert pair(trained).rows == 8  # the OT batch of the training


def test_a_run_without_a_coupling_shows_what_exact_transport_would_save(home):
    found = section([Story.load(home / "plain")])
    first = found.blocks[0]
    assert isinstance(first, Prose)
    assert first.text.startswith("plain uses independent pairs. Exact optimal transport on Hamming distances would")
    paired = matching.matched(Story.load(home / "plain"))
    assert (paired.rows, paired.coupling, paired.coupled) == (8, "ExactOT", False)  # the OT batch of the run
    assert paired.after[0] < paired.before[0]


def test_from_a_mask_there_is_nothing_to_choose_and_nothing_to_draw(home):
    found = section([Story.load(home / "masks")])
    (only,) = found.blocks
    assert only.text.startswith("masks: all pairs of a batch have the same Hamming cost")


def test_runs_stand_side_by_side_in_one_table(home):
    found = section([Story.load(home / name) for name in ("embedded", "masks", "plain")])
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    assert [row[0] for row in table.rows] == ["embedded"]  # the others are not coupled
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]


def test_runs_with_the_same_batches_share_their_pictures(home, tmp_path):
    twin = shutil.copytree(home / "embedded", tmp_path / "twin")
    found = section([Story.load(home / "embedded"), Story.load(twin)])
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]
    assert "embedded, twin: Costs" in next(block.caption for block in found.blocks if isinstance(block, Figure))


def test_a_batch_of_the_run_is_coupled_whatever_its_size(home):
    """A larger batch than the picture shows saves more than its first rows alone would."""
    story = Story.load(home / "plain")
    large = pair(Trained.load(replace(story, recipe={**story.recipe, "ot_batch": 2 * SHOWN})))
    small = pair(Trained.load(story))
    assert (large.rows, len(large.drawn)) == (2 * SHOWN, SHOWN)
    assert large.gain[0] > small.gain[0]


def test_without_a_text_or_a_network_it_says_so(home, tmp_path):
    story = Story.load(shutil.copytree(home / "plain", tmp_path / "plain"))
    (tmp_path / "plain" / "report-draws.json").unlink(missing_ok=True)
    (only,) = section([replace(story, recipe={**story.recipe, "data": "-"})]).blocks
    assert only.text == "plain: no batch was coupled, since its recipe does not name a text file."
    assert section([replace(story, checkpoint=None)]) is None


def test_what_was_paired_is_kept(home, tmp_path, monkeypatch):
    story = Story.load(shutil.copytree(home / "plain", tmp_path / "plain"))
    first = matching.matched(story)
    monkeypatch.setattr(matching, "pair", lambda trained: pytest.fail("it was coupled again"))
    again = matching.matched(story)
    assert isinstance(again, Matched)
    assert again == first


@pytest.mark.parametrize(("low", "high"), [(3, 3), (0, 23), (10, 64), (0, 1000)])
def test_bars_of_whole_costs_hold_as_many_of_them_each(low, high):
    costs = torch.arange(low, high + 1, dtype=torch.float64)
    edges = matched._edges(costs)
    counts = torch.bucketize(costs, edges[1:-1]).bincount(minlength=len(edges) - 1)
    assert len(counts) <= matched.BARS
    assert set(counts[:-1].tolist()) <= {int(edges[1] - edges[0])}
    assert 0 < int(counts[-1]) <= int(edges[1] - edges[0])


def test_costs_that_are_all_alike_still_have_a_bar():
    edges = matched._edges(torch.full((4,), 0.3, dtype=torch.float64))
    assert bool((edges.diff() > 0).all())
