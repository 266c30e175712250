"""The page of the text study with all cells: the paper's tables, findings and pictures, from made-up numbers."""

import shutil
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from synthetic_cells import synthetic_cell

from hopflow import cli
from hopflow.reproduce.text.budgets import BUDGETS
from hopflow.reproduce.text.cell import REPEATED
from hopflow.reproduce.text.claims import CLAIMS, verdicts
from hopflow.reproduce.text.findings import _paper_steps, cost_table
from hopflow.reproduce.text.page import page
from hopflow.reproduce.text.pictures import pictures
from hopflow.reproduce.text.protocol import CHARACTERS, FULL, SEEDS


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The folder of a study with made-up numbers in every cell."""
    folder = tmp_path_factory.mktemp("complete") / "results" / "text"
    for variant, seed in BUDGETS["full"].cells():
        synthetic_cell("full", variant, seed).write(folder)
    synthetic_cell("full", BUDGETS["full"].variants[0], 0).write(folder / REPEATED)
    return folder


def rows_after(text, heading):
    """The first cells of the rows of the table after a heading."""
    lines = text[text.index(heading) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1].strip())
    return rows


def test_the_first_ten_lines_of_the_page_decide_every_claim(complete):
    first = page(complete).splitlines()[:10]
    shown = "\n".join(first)
    assert all(claim({}).claim in shown for claim in CLAIMS)
    assert [line.split("**")[1] for line in first if line.startswith("**")] == ["Confirmed", "Refuted", "Open"]
    assert "of the gap is the bound" in shown


def test_the_paper_s_tables_have_its_row_order_and_its_values(complete):
    text = page(complete)
    bags = ["DFM-B", "DFM-B-Sinkhorn", "DFM-B-Exact", "DFM-B-Exact-EMA"]
    multimasks = ["DFM-MMF", "DFM-MMF-Sinkhorn", "DFM-MMF-Exact", "DFM-MMF-Exact-EMA"]
    assert rows_after(text, "#### Table 2") == ["SEDD", "DFM-N", "GPT2"]
    assert rows_after(text, "#### Table 6") == ["SEDD Absorb", "DFM-O", "DFM-N", "DFM-S"]
    assert rows_after(text, "#### Table 7") == bags
    assert rows_after(text, "#### Table 8") == ["DFM-O", "DFM-MMF", "DFM-MMF-Sinkhorn"]
    assert rows_after(text, "#### Table 9") == ["DFM-O", *multimasks]
    for heading in ("#### Tables 3", "#### Table 11", "#### Table 12"):
        assert rows_after(text, heading) == [*bags, "DFM-S", "DFM-N", "DFM-O", *multimasks]
    for values in ("(345.94)", "(394.67)", "(6.3)", "(184.81)", "(68.63)", "(68.37)", "(458.18)", "(77.7)"):
        assert values in text
    assert "| – |" not in text[text.index("#### Table 6") : text.index("## What the paper")].replace("| SEDD", "")


def test_steps_saved_by_ot_follow_from_the_paper_s_own_values():
    assert _paper_steps("dfm_b_sinkhorn", "ar", FULL.sampler_steps) == 128  # 8 times fewer
    assert _paper_steps("dfm_b_exact_ema", "ar", FULL.sampler_steps) == 32  # 32 times fewer


def test_a_repeated_cell_is_compared_with_the_first_run(complete, tmp_path):
    row = next(line for line in page(complete).splitlines() if line.startswith("| dfm_o, seed 0 | b0 |"))
    assert "| +0.00% ± 0.00% | ± 0." in row
    assert "| yes |" in row
    folder = tmp_path / "text"
    shutil.copytree(complete, folder)
    again = synthetic_cell("full", BUDGETS["full"].variants[0], 0)
    bounds = [replace(bound, nats=[nats + 4 for nats in bound.nats]) for bound in again.bounds]
    replace(again, bounds=bounds).write(folder / REPEATED)
    row = next(line for line in page(folder).splitlines() if line.startswith("| dfm_o, seed 0 | b0 |"))
    assert "| +3.17% ± 0.00% |" in row
    assert "| no |" in row


def test_the_pictures_are_drawn_from_the_cells(complete):
    drawn = pictures(complete)
    text = page(complete)
    for name, svg in drawn.items():
        assert f"pictures/{name}" in text
        ElementTree.fromstring(svg)
    assert "dfm_mmf_learned_cost" in drawn["text_bounds.svg"]


def test_cells_that_shared_the_device_do_not_count_for_the_cost_of_ot(tmp_path):
    variants = {variant.name: variant for variant in BUDGETS["full"].variants}
    group = {name: [synthetic_cell("full", variants[name], 0)] for name in ("dfm_b", "dfm_b_exact_ema")}
    assert "| dfm_b_exact_ema | 512 | 0.4% | 0.02 ± ? | +3.1% |" in cost_table(group)
    slow = replace(group["dfm_b"][0], seed=1, machine={"shared": True}, training={"late_tokens_per_second": 1.0})
    assert cost_table({**group, "dfm_b": [*group["dfm_b"], slow]}) == cost_table(group)
    assert "| dfm_b_exact_ema | 512 | 0.4% | 0.02 ± ? | – |" in cost_table({**group, "dfm_b": [slow]})


def test_the_command_writes_the_page_and_the_pictures_of_docs(complete, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hopflow", "reproduce", "text", "--table", "--cells", str(complete)])
    drawings = complete.parent.parent / "pictures"
    for exists in (False, True):
        if exists:
            drawings.mkdir()
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        assert (complete.parent / "text.md").read_text(encoding="utf-8") == page(complete)
        assert drawings.exists() == exists
    assert {file.name for file in drawings.iterdir()} == {"text_bounds.svg", "text_samples.svg", "text_hops.svg"}
    assert "(0 runs missing)" in capsys.readouterr().out


def test_a_study_by_characters_has_its_own_page_with_samples_in_place_of_the_paper_s_tables(tmp_path):
    folder = tmp_path / "results" / "text"
    for variant, seed in BUDGETS["characters"].cells():
        synthetic_cell("characters", variant, seed).write(folder)
    text = page(folder, "characters")
    assert text.startswith(f"# Results: {BUDGETS['characters'].title}\n")
    assert "missing: none" in text
    assert "budget=characters --table`" in text
    assert "## The paper's tables" not in text
    assert rows_after(text, "## Samples") == [variant.name for variant in BUDGETS["characters"].variants]
    rules = text[text.index("## Claims and rules") :]
    assert "by the judge ar |" in rules
    assert "both judges" not in rules
    assert "Pearson of log mean zero-shot b0" not in rules  # there are no zero-shot sets
    drawn = pictures(folder, "characters")
    assert set(drawn) == {f"text_characters_{name}.svg" for name in ("bounds", "samples", "hops")}
    assert all(f"pictures/{name}" in text for name in drawn)


def test_with_one_judge_its_difference_alone_decides_a_claim(tmp_path):
    variants = {variant.name: variant for variant in BUDGETS["characters"].variants}
    names = ("dfm_b", "dfm_b_exact_ema")
    cells = {name: [synthetic_cell("characters", variants[name], seed) for seed in SEEDS] for name in names}
    found = {result.claim: result for result in verdicts(cells, CHARACTERS)}
    assert found["OT improves samples of bag-of-words at 32 steps"].status == "confirmed"
    assert len(found) == len(CLAIMS) - 1
