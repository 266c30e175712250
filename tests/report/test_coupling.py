"""The section on the coupling: costs of a batch before and after it."""

import shutil
from dataclasses import replace

import pytest
import reported_runs
import torch
from toys import generator

import hopflow as hf
from hopflow.report.blocks import Figure, Paragraph, TableBlock
from hopflow.report.run_data import RunData
from hopflow.report.sections import coupling as coupling_section
from hopflow.report.sections.coupling import (
    MAX_BATCHES,
    SHOWN_ROWS,
    CoupledBatches,
    couple_batches,
    coupled_costs,
    section,
)
from hopflow.report.trained_run import TrainedRun
from hopflow.runs import checkpoint


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
def test_costs_equal_those_of_the_coupling(coupling):
    rows = batches()
    found = coupled_costs(coupling, rows)
    exact = [hf.ExactOT().pair(x0, x1) for x0, x1 in rows]
    assert found.before[0] == pytest.approx(sum(p.independent_cost for p in exact) / len(rows))
    if coupling == hf.ExactOT():
        assert found.after[0] == pytest.approx(sum(p.cost for p in exact) / len(rows))
    else:
        assert found.after[0] >= sum(p.cost for p in exact) / len(rows) - 1e-9
    assert found.gain[0] == pytest.approx(1 - found.after[0] / found.before[0])


def test_with_hamming_the_share_of_equal_tokens_is_one_minus_the_cost_per_position():
    found = coupled_costs(hf.ExactOT(hf.Hamming()), batches(length=12))
    assert found.equal_before[0] == pytest.approx(1 - found.before[0] / 12)
    assert found.equal_after[0] == pytest.approx(1 - found.after[0] / 12)


@pytest.mark.parametrize("n", [16, SHOWN_ROWS + 16])
def test_the_first_rows_of_the_first_batch_are_shown_with_their_partners(n):
    rows = batches(2, n)
    found = coupled_costs(hf.ExactOT(), rows)
    costs, order = hf.Hamming().matrix(*rows[0]).double(), hf.ExactOT().match(*rows[0], generator(0)).order
    centred = costs - costs.mean(1, keepdim=True) - costs.mean(0) + costs.mean()
    few = min(n, SHOWN_ROWS)
    torch.testing.assert_close(torch.tensor(found.drawn).double(), centred[:few, :few], rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found.paired).double(), centred[:few][:, order[:few]], rtol=0, atol=1e-4)
    assert found.rows == n


def test_shares_of_a_histogram_add_up_to_one():
    found = coupled_costs(hf.ExactOT(), batches())
    assert sum(found.all_pairs) == pytest.approx(1)
    assert sum(found.own_pairs) == pytest.approx(1)
    assert len(found.edges) == len(found.all_pairs) + 1


def test_batches_with_equal_costs_everywhere_have_a_gain_of_zero():
    rows = [(torch.full((8, 5), 3), torch.randint(3, (8, 5), generator=generator(i))) for i in range(3)]
    found = coupled_costs(hf.ExactOT(), rows)
    assert found.all_equal
    assert found.gain == (0.0, 0.0)
    assert sum(found.all_pairs) == pytest.approx(1)


def test_pairs_that_cost_nothing_save_nothing():
    rows = [(torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 5, dtype=torch.long))] * 2
    assert coupled_costs(hf.ExactOT(), rows).gain == (0.0, 0.0)


def test_a_single_row_has_only_one_partner():
    found = coupled_costs(hf.ExactOT(), batches(n=1))
    assert found.before == found.after
    assert found.all_equal


# the section


def test_a_coupled_run_shows_a_matrix_a_histogram_and_a_table(home):
    found = section([RunData.load(home / "embedded")])
    assert found.anchor == "coupling"
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]
    (table,) = [block for block in found.blocks if isinstance(block, TableBlock)]
    assert table.rows[0][:2] == ("embedded", "SquaredEmbedding")
    assert f"n = {MAX_BATCHES} batches" in table.caption


def test_the_coupling_uses_the_averaged_embeddings_of_the_training(home):
    trained = TrainedRun.load(RunData.load(home / "embedded"))
    saved = checkpoint.latest(home / "embedded" / "checkpoints")
    torch.testing.assert_close(trained.embedding, saved.groups["ot_ema"]["value"], rtol=0, atol=0)
    assert couple_batches(trained).rows == 8  # the OT batch of the training


def test_a_run_without_a_coupling_shows_what_exact_transport_would_save(home):
    found = section([RunData.load(home / "plain")])
    first = found.blocks[1]
    assert isinstance(first, Paragraph)
    assert first.text.startswith("plain uses independent pairs. With exact optimal transport on Hamming distances,")
    paired = coupling_section.run_pairs(RunData.load(home / "plain"))
    assert (paired.rows, paired.coupling, paired.coupled) == (8, "ExactOT", False)  # the OT batch of the run
    assert paired.after[0] < paired.before[0]


def test_from_masks_the_section_is_a_sentence_without_figures(home):
    found = section([RunData.load(home / "masks")])
    _, only = found.blocks
    assert only.text.startswith("masks: all pairs of a batch have the same Hamming cost")


def test_the_table_lists_only_runs_with_a_coupling(home):
    found = section([RunData.load(home / name) for name in ("embedded", "masks", "plain")])
    (table,) = [block for block in found.blocks if isinstance(block, TableBlock)]
    assert [row[0] for row in table.rows] == ["embedded"]  # the others are not coupled
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]


def test_runs_with_the_same_batches_share_their_pictures(home, tmp_path):
    twin = shutil.copytree(home / "embedded", tmp_path / "twin")
    found = section([RunData.load(home / "embedded"), RunData.load(twin)])
    assert [block.name for block in found.blocks if isinstance(block, Figure)] == ["coupling_0", "pair_costs_0"]
    assert "embedded, twin: Costs" in next(block.caption for block in found.blocks if isinstance(block, Figure))


def test_batches_have_the_ot_batch_size_of_the_run(home):
    """A larger batch than the picture shows saves more than its first rows alone would."""
    run = RunData.load(home / "plain")
    large = couple_batches(TrainedRun.load(replace(run, recipe={**run.recipe, "ot_batch": 2 * SHOWN_ROWS})))
    small = couple_batches(TrainedRun.load(run))
    assert (large.rows, len(large.drawn)) == (2 * SHOWN_ROWS, SHOWN_ROWS)
    assert large.gain[0] > small.gain[0]


def test_without_a_text_the_section_says_why_and_without_a_network_there_is_none(home, tmp_path):
    run = RunData.load(shutil.copytree(home / "plain", tmp_path / "plain"))
    (tmp_path / "plain" / "report-draws.json").unlink(missing_ok=True)
    (only,) = section([replace(run, recipe={**run.recipe, "data": "-"})]).blocks
    assert only.text == "plain: no batch was coupled, since its recipe does not name a text file."
    assert section([replace(run, checkpoint=None)]) is None


def test_coupled_batches_are_cached(home, tmp_path, monkeypatch):
    run = RunData.load(shutil.copytree(home / "plain", tmp_path / "plain"))
    first = coupling_section.run_pairs(run)
    monkeypatch.setattr(coupling_section, "couple_batches", lambda trained: pytest.fail("it was coupled again"))
    again = coupling_section.run_pairs(run)
    assert isinstance(again, CoupledBatches)
    assert again == first


@pytest.mark.parametrize(("low", "high"), [(3, 3), (0, 23), (10, 64), (0, 1000)])
def test_bars_of_integer_costs_cover_equally_many_integers(low, high):
    costs = torch.arange(low, high + 1, dtype=torch.float64)
    edges = coupling_section._edges(costs)
    counts = torch.bucketize(costs, edges[1:-1]).bincount(minlength=len(edges) - 1)
    assert len(counts) <= coupling_section.BARS
    assert set(counts[:-1].tolist()) <= {int(edges[1] - edges[0])}
    assert 0 < int(counts[-1]) <= int(edges[1] - edges[0])


def test_equal_costs_have_bars_of_positive_width():
    edges = coupling_section._edges(torch.full((4,), 0.3, dtype=torch.float64))
    assert bool((edges.diff() > 0).all())
