"""App. C.5 [C4]: the three tightness analyses, and the exact values of theory.md §5."""

import pytest
import torch

from hopflow import exact
from hopflow.evaluation import tightness


def test_the_first_analysis_to_five_digits():
    rows = {row.quantity: row.exact for row in tightness.first()}
    assert rows["law"] == pytest.approx([0.13, 0.585, 0.025, 0.26], abs=1e-12)
    assert rows["cross_entropy"] == pytest.approx(1.162671, abs=5e-7)
    assert rows["bound"] == pytest.approx(1.303922, abs=5e-7)
    assert rows["mean_nll"] == pytest.approx(1.903079, abs=5e-7)
    assert rows["mean_bound"] == pytest.approx(2.030486, abs=5e-7)


def test_the_second_analysis_is_tight_for_every_a_and_b():
    for a, b in ((0.7, 0.4), (0.05, 0.9), (0.5, 0.5)):
        for row in tightness.second(a, b):
            assert row.exact == pytest.approx(row.paper, abs=1e-9)


@pytest.mark.parametrize(("size", "paper"), list(tightness.BIGRAM.items()), ids=str)
def test_the_bigram_source_has_the_papers_entropy(size, paper):
    q = tightness.bigram(*size, paper[0], seed=0)
    assert float(torch.special.entr(q).sum()) == pytest.approx(paper[0], rel=1e-6)
    x = exact.Space(tightness.Vocab(size[0]), size[1]).data
    assert len(q) == len(x)
    assert float(q.sum()) == pytest.approx(1)


def test_the_third_analysis_in_its_smallest_setting():
    rows = {row.quantity: row for row in tightness.third(2, 2, tightness.BIGRAM[2, 2], seed=0, steps=600)}
    entropy, cross, bound = (rows[f"V2L2 {name}"].exact for name in ("data_entropy", "cross_entropy eta=0", "bound"))
    assert entropy == pytest.approx(0.471, rel=0.02)
    assert entropy <= cross <= bound < 1.02 * entropy
    assert rows["V2L2 cross_entropy eta=1"].exact == pytest.approx(cross, abs=1e-9)  # a mask leaves nothing to correct
    uniform = {name: rows[f"V2L2 uniform {name}"].exact for name in ("b0", "b1", "bk")}
    few_hops, corrected = (rows[f"V2L2 uniform cross_entropy eta={eta}"].exact for eta in (0, 1))
    assert few_hops <= min(uniform["b0"], uniform["bk"])
    assert corrected <= uniform["b1"] < uniform["b0"]
