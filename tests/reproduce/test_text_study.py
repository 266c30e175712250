"""The text study: cells, statistics, claims and page, at a size of seconds; and the cells that are checked in."""

import json
import math
from dataclasses import replace

import pytest
from pages import ROOT
from tiny_study import TINY, bound, tiny_budget

from hopflow.reproduce.text import cell as cells
from hopflow.reproduce.text import queue
from hopflow.reproduce.text.budgets import BUDGETS
from hopflow.reproduce.text.claims import ClaimResult, _bound_claim, _judged_claim
from hopflow.reproduce.text.page import page
from hopflow.reproduce.text.protocol import CHARACTERS, FULL, LAPTOP, PAPER_SIZE, SEEDS, Budget, StudyVariant
from hopflow.reproduce.text.statistics import (
    difference,
    judged_perplexity,
    over_seeds,
    perplexity,
    two_runs_apart,
)

STUDY = ROOT / "docs" / "results" / "text"


def cell(variant, seed, bounds=(), samples=()):
    return cells.Cell(
        schema=cells.SCHEMA,
        budget="tiny",
        variant=variant,
        seed=seed,
        protocol={},
        protocol_sha256="",
        recipe={},
        recipe_hash="",
        corpus={},
        machine={},
        commit=None,
        parameters=1,
        training_loss=[(1, 2.0)],
        training={},
        bounds=list(bounds),
        samples=list(samples),
        transport={},
        judges={},
        seconds={},
    )


def point(scale):
    scores = cells.JudgeScores([scale * 8.0, scale * 8.4], [4, 4], [20, 21])
    return cells.SamplePoint(32, 0.0, 2, 6.0, 0.1, 3.0, 0.1, 4.0, 1.0, {"ar": scores, "smollm2": scores}, ["a", "b"])


# -- statistics --------------------------------------------------------------------------------------------------------


def test_a_perplexity_is_that_of_the_mean_nats_per_token_with_the_error_over_sequences():
    value, error = perplexity(bound([8.0, 12.0]))
    assert value == pytest.approx(math.exp(10 / 4))
    assert error == pytest.approx(value * 2.0 / 4)  # standard error of {8, 12} is 2


def test_a_bound_that_is_infinite_for_one_sequence_is_infinite():
    assert perplexity(replace(bound([8.0]), nats=[8.0, None]))[0] == math.inf


def test_a_judged_perplexity_weighs_samples_by_their_tokens():
    value, _ = judged_perplexity(cells.JudgeScores([6.0, 30.0], [2, 10], [1, 1]))
    assert value == pytest.approx(math.exp(3))


def test_over_several_seeds_the_error_is_that_of_their_spread():
    found = over_seeds([(10.0, 5.0), (12.0, 5.0)])
    assert (found.value, found.stderr, found.seeds) == (11.0, pytest.approx(1.0), 2)


def test_an_unknown_error_is_shown_as_such():
    assert str(over_seeds([(10.0, math.nan)])) == "10.0 ± ?"
    assert str(over_seeds([(10.0, 0.0)])) == "10.0 ± 0.0"


def test_a_difference_is_paired_by_sequence_so_that_what_sequences_share_cancels():
    hard = [4.0, 40.0, 400.0]
    base = [cell("dfm_b", seed, [bound(hard)]) for seed in SEEDS]
    ours = [cell("x", seed, [bound(hard, seed_shift=-0.4 - 0.01 * seed)]) for seed in SEEDS]
    value, error, seeds = difference(ours, base, "test", "b0")
    assert seeds == 3
    assert value == pytest.approx(math.expm1(-0.41 / 4), rel=1e-3)
    assert error < 0.002


def test_two_runs_differ_by_the_spread_over_seeds_times_the_root_of_two():
    spread = [cell("x", seed, [bound([4.0 * seed])]) for seed in (0, 1)]  # log perplexities 0 and 1
    assert two_runs_apart(spread, "b0") == pytest.approx(1.0)
    assert two_runs_apart(spread[:1], "b0") is None


def test_a_difference_uses_only_seeds_that_both_variants_have():
    base = [cell("dfm_b", 1, [bound([4.0, 5.0])])]
    ours = [cell("x", seed, [bound([4.0, 5.0])]) for seed in SEEDS]
    assert difference(ours, base, "test", "b0")[2] == 1
    assert difference(ours, [], "test", "b0") is None


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "seeds", "status"), [(-0.4, 3, "confirmed"), (0.4, 3, "refuted"), (0.0, 3, "open"), (-0.4, 2, "open")]
)
def test_a_claim_about_a_bound_needs_three_seeds_and_two_standard_errors(shift, seeds, status):
    decide = _bound_claim("lower", "x", "dfm_b", "b0")
    base = [cell("dfm_b", seed, [bound([4.0, 9.0])]) for seed in range(seeds)]
    ours = [cell("x", seed, [bound([4.0, 9.0], seed_shift=shift + 0.01 * (seed - 1))]) for seed in range(seeds)]
    assert decide({"dfm_b": base, "x": ours}).status == status


@pytest.mark.parametrize(("scale", "status"), [(0.9, "confirmed"), (1.1, "refuted")])
def test_a_claim_about_samples_needs_both_judges(scale, status):
    decide = _judged_claim("lower", "x", "dfm_b", 32)
    base = [cell("dfm_b", seed, samples=[point(1.0)]) for seed in SEEDS]
    ours = [cell("x", seed, samples=[point(scale + 0.001 * seed)]) for seed in SEEDS]
    assert decide({"dfm_b": base, "x": ours}).status == status
    alone = [replace(one, samples=[replace(point(scale), judges={"ar": point(scale).judges["ar"]})]) for one in ours]
    assert decide({"dfm_b": base, "x": alone}).status == "open"


def test_a_claim_without_cells_is_open():
    assert isinstance(_bound_claim("lower", "x", "y", "b0")({}), ClaimResult)
    assert _bound_claim("lower", "x", "y", "b0")({}).status == "open"


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two cells that were trained and measured here, and their folder."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(folder / "cache"))
        patch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b_exact_ema", "ar"))
        written = queue.run(folder, budget="tiny", work=folder / "work", device="cpu", commit="c", offline=True)
    assert [path.name for path in written] == ["tiny-dfm_b_exact_ema-seed0.json", "tiny-ar-seed0.json"]
    return folder


def test_a_cell_keeps_the_nats_of_every_sequence_and_every_sample(measured):
    found = cells.read(measured / "tiny-dfm_b_exact_ema-seed0.json")
    kinds = [(one.quantity, one.steps, one.paths, one.proposal) for one in found.bounds]
    reversal = [("br", 4, paths, proposal) for proposal in ("context", "x0 head") for paths in (1, 2)]
    plain = [("b0", None, None, None), ("b1", None, None, None), ("bk", None, None, None), ("bn", 4, None, None)]
    assert kinds == [*plain, *reversal]
    assert all(len(one.nats) == TINY.rows for one in found.bounds)
    assert [(one.steps, one.eta) for one in found.samples] == [(4, 0.0), (4, 1.0)]
    assert all(len(one.judges["ar"].nats) == TINY.samples == one.n for one in found.samples)
    assert found.transport["predicted_jumps"].value <= TINY.length
    assert (found.commit, found.recipe["predict_x0"], found.protocol_sha256) == ("c", True, TINY.sha256)


def test_the_autoregressive_cell_has_the_exact_value_in_place_of_bounds(measured):
    found = cells.read(measured / "tiny-ar-seed0.json")
    assert [(one.quantity, one.is_bound) for one in found.bounds] == [("nll", False)]
    assert [one.steps for one in found.samples] == [None]
    assert found.judges["ar"]["identity"]["name"] == f"judge-{TINY.sha256}"  # no path of the machine


def test_cells_that_have_a_file_are_not_run_again(measured, monkeypatch):
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b_exact_ema", "ar"))
    assert queue.missing(BUDGETS["tiny"], measured) == []
    assert queue.run(measured, budget="tiny", work=measured / "work", device="cpu") == []


def test_no_cell_is_started_that_would_not_end_in_time(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b"))
    lines = []
    assert queue.run(tmp_path, budget="tiny", minutes=-1.0, work=tmp_path / "work", say=lines.append) == []
    assert "the next cell is dfm_b, seed 0" in lines[-1]


def test_the_page_is_made_from_the_files_alone(measured, monkeypatch):
    monkeypatch.setitem(BUDGETS, "tiny", tiny_budget("dfm_b_exact_ema", "ar"))
    text = page(measured, "tiny")
    assert text == page(measured, "tiny")
    assert "| dfm_b_exact_ema | 1 |" in text
    assert "missing: none" in text


def test_cells_of_another_protocol_are_not_mixed_into_a_page(measured, monkeypatch):
    other = replace(TINY, steps=3)
    monkeypatch.setitem(BUDGETS, "tiny", Budget("tiny", (StudyVariant("ar", "ar", seeds=(0,), protocol=other),)))
    with pytest.raises(ValueError, match="another protocol"):
        page(measured, "tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.update(schema=99), "schema 99"),
        (lambda plain: plain.pop("bounds"), "bounds"),
        (lambda plain: plain["bounds"][0].update(nats="many"), "bounds.0.nats"),
    ],
)
def test_a_file_that_is_not_a_cell_is_refused_with_the_place(measured, tmp_path, change, message):
    plain = json.loads((measured / "tiny-ar-seed0.json").read_text())
    change(plain)
    file = tmp_path / "tiny-ar-seed0.json"
    file.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=message):
        cells.read(file)


# -- the study that is checked in --------------------------------------------------------------------------------------


def test_the_schema_of_cells_is_the_one_that_is_checked_in():
    assert cells.schema() == json.loads((STUDY / "schema.json").read_text())


@pytest.mark.parametrize("budget", ["full", "characters"])
def test_the_page_of_the_study_follows_from_its_cells_to_the_last_digit(budget):
    assert page(STUDY, budget) == (STUDY.parent / str(BUDGETS[budget].page)).read_text(encoding="utf-8")


def test_with_evidence_the_loss_on_masks_trains_the_flow_of_the_loss_on_all_positions():
    masks, everywhere = (cells.read(STUDY / f"characters-{name}-seed0.json") for name in ("dfm_n", "dfm_o"))
    assert masks.training_loss == everywhere.training_loss
    assert [bound.nats for bound in masks.bounds] == [bound.nats for bound in everywhere.bounds]


def test_the_queue_runs_the_first_six_variants_with_all_seeds_before_the_others():
    queued = BUDGETS["full"].cells()
    assert [variant.name for variant, _ in queued[:6]] == [
        *("dfm_o", "dfm_b", "dfm_b_exact_ema", "dfm_mmf", "dfm_mmf_exact_ema", "dfm_o_plain")
    ]
    assert [seed for _, seed in queued[:18]] == [0] * 6 + [1] * 6 + [2] * 6
    assert len({(variant.name, seed) for variant, seed in queued}) == len(queued)


def test_every_variant_of_a_seed_sees_the_same_text_in_the_same_order():
    """What a step reads depends on the seed, the batch and the corpus, which all variants share."""
    shared = ("data", "tokens", "length", "batch", "steps", "seed", "holdout", "pack", "lr", "warmup", "dropout")
    recipes = [v.resolved(1) for v in BUDGETS["full"].variants if v.protocol == FULL]
    assert len({tuple(getattr(recipe, key) for key in shared) for recipe in recipes}) == 1


def test_recipes_with_ot_and_full_support_train_an_x0_head_and_others_do_not():
    with_head = {v.name for v in BUDGETS["full"].variants if v.resolved(0).predict_x0}
    assert with_head == {"dfm_b_exact_ema", "dfm_b_exact", "dfm_b_sinkhorn", "dfm_b_exact_ema_small"}


def test_the_protocols_are_those_that_were_fixed_before_the_study_ran():
    named = (("full", FULL), ("characters", CHARACTERS), ("laptop", LAPTOP), ("paper", PAPER_SIZE))
    assert {name: protocol.sha256 for name, protocol in named} == {
        "full": "6357b67880e0a73d",
        "characters": "22de814fdf918c71",
        "laptop": "ee084bdc9390a341",
        "paper": "e766040510d5371c",
    }


def test_seeds_1_and_2_are_run_for_the_six_main_variants_only():
    main = ["dfm_o", "dfm_b", "dfm_b_exact_ema", "dfm_mmf", "dfm_mmf_exact_ema", "dfm_o_plain"]
    assert {
        variant.name: variant.seeds for variant in BUDGETS["full"].variants if variant.seeds != (0,)
    } == dict.fromkeys(main, SEEDS)
