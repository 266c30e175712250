"""The study of rectified pairs: teachers and pairs in miniature, and its page."""

import json
import math
import statistics
from dataclasses import replace

import pytest
from synthetic_cells import synthetic_cell
from tiny_study import TINY

from hopflow.reproduce.rectified import page as rectified_page
from hopflow.reproduce.rectified import pictures, variants
from hopflow.reproduce.rectified.page import Quantity, page, relative
from hopflow.reproduce.text import cell as cells
from hopflow.reproduce.text import queue
from hopflow.reproduce.text.budgets import BUDGETS
from hopflow.reproduce.text.failures import read_failures
from hopflow.reproduce.text.protocol import FULL, Budget
from hopflow.reproduce.text.statistics import Mean
from hopflow.runs.pair_store import PairStore

SMALL = variants._protocol(TINY, sampler_steps=(2, 4))


def small_budget() -> Budget:
    return Budget("tiny", variants.variants(SMALL, "dfm_b", "dfm_b_exact", (0,), steps=2, pairs=8))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The cells of a rectified flow, of one that was rectified twice and of its control; teachers are trained alone."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(folder / "cache"))
        patch.setitem(BUDGETS, "tiny", small_budget())
        queue.run(
            folder,
            budget="tiny",
            variants=("rectified_twice", "continued", "rectified_fresh_0p3"),
            work=folder / "work",
            device="cpu",
            offline=True,
        )
    assert list(read_failures(folder, "tiny")) == []
    return folder


def test_a_student_is_trained_on_the_pairs_of_its_teacher_from_its_weights(measured):
    found = cells.read(measured / "tiny-rectified_twice-seed0.json")
    assert found.recipe["coupling"] == "rectified:tiny-rectified-seed0-pairs"
    assert found.recipe["init"] == "tiny-rectified-seed0"
    store = PairStore.open(measured / "work" / "tiny-rectified-seed0-pairs")
    assert (len(store), store.length) == (8, SMALL.length)
    assert "teacher" in found.seconds


def test_the_hops_of_a_student_are_predicted_from_its_pairs(measured):
    found = cells.read(measured / "tiny-rectified_twice-seed0.json")
    store = PairStore.open(measured / "work" / "tiny-rectified-seed0-pairs")
    assert found.transport["predicted_jumps"].value == pytest.approx(store.hops()[0], rel=1e-6)


def test_students_of_one_teacher_share_its_pairs(measured):
    stores = {cells.read(path).recipe["coupling"] for path in measured.glob("tiny-[cr]*-seed0.json")}
    assert stores == {"rectified:tiny-independent-seed0-pairs", "rectified:tiny-rectified-seed0-pairs"}
    assert {path.name for path in (measured / "work").glob("*-pairs")} == {name.split(":")[1] for name in stores}


def test_the_control_has_independent_pairs_only(measured):
    assert cells.read(measured / "tiny-continued-seed0.json").recipe["fresh"] == 1.0


def test_br_is_measured_at_every_number_of_steps(measured):
    found = cells.read(measured / "tiny-rectified_twice-seed0.json")
    kinds = {(one.steps, one.paths, one.proposal) for one in found.bounds if one.quantity == "br"}
    assert kinds == {(n, k, how) for n in (2, 4) for k in (1, 2) for how in ("context", "x0 head")}


def test_a_cell_names_no_folder_of_the_machine(measured):
    for path in measured.glob("*.json"):
        assert str(measured) not in path.read_text()


def test_the_protocol_of_the_text_study_is_unchanged():
    """Cells that were measured before the study of rectified pairs existed belong to the same protocol."""
    assert {variant.protocol.sha256 for variant in BUDGETS["full"].variants} == {"6357b67880e0a73d", "e766040510d5371c"}


# -- page --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path, monkeypatch):
    """Synthetic cells of all variants over three seeds; rectified ones have fewer hops and worse samples."""
    chosen = Budget("morse", tuple(replace(v, seeds=(0, 1, 2)) for v in variants.RECTIFIED_BUDGETS[0].variants))
    monkeypatch.setitem(BUDGETS, "morse", chosen)
    monkeypatch.setattr(rectified_page, "RECTIFIED_BUDGETS", (chosen,))
    monkeypatch.setattr(pictures, "RECTIFIED_BUDGETS", (chosen,))
    for variant in chosen.variants:
        for seed in variant.seeds:
            found = synthetic_cell("morse", variant, seed)
            scale = 0.6 if variant.name.startswith("rectified") else 1.0
            points = [
                replace(point, jumps=scale * (80 + seed), jumps_stderr=0.1)
                for point in found.samples
                if point.steps in variants.STEPS and point.eta == 0
            ]
            replace(found, samples=points).write(tmp_path / "rectified")
    return tmp_path / "rectified"


def test_the_page_says_by_how_much_hops_fall_against_the_control(complete):
    text = page(complete)
    hops = "- **hops**: -40.0 ± 0.1 % at 4 steps, -40.0 ± 0.1 % at 128 steps (lower at 4, 8, 16, 32, 128 steps)"
    assert f"`rectified` against `continued`:\n\n{hops}\n" in text
    assert "`rectified_after_ot` against `exact_ot`:" in text
    assert "Missing runs: none" in text


def test_with_two_seeds_the_page_says_that_nothing_was_tested(complete):
    for file in complete.glob("*-seed2.json"):
        file.unlink()
    text = page(complete)
    assert "- **hops**: -40.0 ± 0.1 % at 4 steps, -40.0 ± 0.1 % at 128 steps (only 2 seeds: not tested)\n" in text


def test_the_picture_is_drawn_from_the_cells(complete):
    drawn = pictures.pictures(complete)
    assert list(drawn) == ["rectified_morse.svg"]
    assert "rectified_twice" in drawn["rectified_morse.svg"]


def test_a_difference_is_paired_by_seed_in_per_cent():
    def cell(seed, value):
        return replace(synthetic_cell("morse", BUDGETS["morse"].variants[0], seed), parameters=value)

    def number(group):
        return Mean(float(group[0].parameters), 0.0, 1)

    found = relative([cell(1, 18), cell(0, 9), cell(2, 5)], [cell(0, 10), cell(1, 20)], Quantity(number))
    assert (found.value, found.stderr, found.seeds) == (pytest.approx(-10.0), pytest.approx(0.0, abs=1e-12), 2)


def test_the_error_of_a_difference_is_not_below_that_of_the_samples_and_pairs_a_bound_by_sequence():
    def cells_of(shift):
        found = (synthetic_cell("tiny", BUDGETS["full"].variants[2], seed) for seed in (0, 1, 2))
        return [replace(one, bounds=[shifted(bound, shift) for bound in one.bounds]) for one in found]

    def shifted(bound, by):
        return replace(bound, nats=[nats + by * (1 + row % 2) for row, nats in enumerate(bound.nats)])

    compared = rectified_page._numbers(replace(FULL, sampler_steps=(128,)))
    br = relative(cells_of(2.0), cells_of(0.0), compared["br"][128])
    assert br.value == pytest.approx(100 * math.expm1(3 / 128))  # 8 rows, moved by 2 or 4 nats
    assert br.stderr == pytest.approx((100 + br.value) * statistics.stdev([2.0, 4.0] * 4) / math.sqrt(8) / 128)
    judged = relative(cells_of(0.0), cells_of(0.0), compared["judge ar"][128])
    assert (judged.value, judged.seeds) == (0.0, 3)
    assert judged.stderr > 0.1


def test_without_cells_nothing_is_stated(tmp_path):
    assert page(tmp_path).count("Not measured yet.") == len(variants.RECTIFIED_BUDGETS)


def test_the_command_writes_the_page_next_to_the_cells(hopflow, tmp_path):
    result = hopflow("reproduce", "rectified", "--table", "--cells", str(tmp_path / "cells"))
    assert result.code == 0
    assert "Missing runs: all." in (tmp_path / "rectified.md").read_text()


def test_cells_are_valid_json_of_the_text_study_s_schema(measured):
    for path in measured.glob("*.json"):
        assert json.loads(path.read_text())["schema"] == cells.SCHEMA
