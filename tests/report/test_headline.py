"""The first sentence of a report: the result, with its errors, and nothing that the numbers do not show."""

import json

import pytest

from run_folders import LOOK, bound, make, sampled, step

pytest.importorskip("matplotlib")

from hopflow import report
from hopflow.report.headline import Number, headline
from hopflow.report.story import Story

INDEPENDENT, OT = {"coupling": "independent", "seed": 0}, {"coupling": "exact", "seed": 0}


def hops(value, error=0.5, steps=128, **more):
    return sampled("jumps", value, steps, stderr=error, length=16, **more)


def predicted(value, error=0.1, ot_n=64, coupling="ExactOT()"):
    pairs = {"set": "transport", "is_bound": False, "ot_n": ot_n, "trained_ot_n": 64, "coupling": coupling}
    return bound("predicted_jumps", value, error, n=16, unit="per sequence", **pairs)


@pytest.fixture
def said(tmp_path):
    """The headline of folders made by hand, named a, b, …"""

    def say(*contents):
        folders = [make(tmp_path / name, **files) for name, files in zip("abcdef", contents, strict=False)]
        return headline([Story.load(folder) for folder in folders])

    return say


def rows(count, forecast, b0, error=0.3, **more):
    return [bound("b0", b0, error, **more), hops(count), predicted(forecast)]


def test_two_runs_are_compared_by_hops_their_prediction_and_bounds(said):
    text = said({"rows": rows(88.4, 85.7, 20.0), "recipe": INDEPENDENT}, {"rows": rows(75.4, 73.9, 20.5), "recipe": OT})
    assert text == "b: 14.71 ± 0.74 % fewer hops than a, 13.77 ± 0.15 % predicted; bound equal within errors."


def test_the_error_of_a_saving_is_that_of_the_ratio():
    saved = Number(75.0, 0.6).saved(Number(100.0, 0.8))
    assert saved.value == pytest.approx(25.0)
    assert saved.stderr == pytest.approx((0.6**2 + (0.75 * 0.8) ** 2) ** 0.5)


@pytest.mark.parametrize(
    ("b0", "expected"),
    [
        (20.8, "bound equal within errors"),  # 1.6 standard errors
        (21.2, "b0 (η = 0, continuous time) higher by 1.20 ± 0.50"),
        (18.0, "b0 (η = 0, continuous time) lower by 2.00 ± 0.50"),
    ],
)
def test_bounds_are_equal_only_within_two_standard_errors(said, b0, expected):
    text = said({"rows": [bound("b0", 20.0, 0.3)]}, {"rows": [bound("b0", b0, 0.4)]})
    assert text == f"b: {expected}."


def test_hops_that_do_not_differ_and_hops_that_increase_are_called_so(said):
    assert "b: hops equal within errors to those of a (0.40 ± 0.71 % fewer hops)" in said(
        {"rows": [hops(100.0)]}, {"rows": [hops(99.6)]}
    )
    assert said({"rows": [hops(100.0)]}, {"rows": [hops(110.0)]}) == "b: 10.00 ± 0.74 % more hops than a."
    assert said({"rows": [hops(64.0, 0.0)]}, {"rows": [hops(64.0, 0.0)]}) == "b: as many hops as a."


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_without_an_error_nothing_is_called_equal(missing):
    assert not Number(0.1, missing).differs
    assert not Number(100.0, missing).differs
    assert Number(1.0, missing).less(Number(2.0, 0.1)).stderr is None
    assert str(Number(1.5, missing)) == "1.500 ± ?"


def test_single_sequences_are_not_compared(said):
    text = said({"rows": [bound("b0", 20.0, 0.0, n=1)]}, {"rows": [bound("b0", 25.0, 0.0, n=1)]})
    assert text == "b: bound not compared, since its error is unknown."


def test_a_prediction_for_another_ot_batch_is_not_quoted(said):
    one = {"rows": [hops(88.4), predicted(85.7, ot_n=44, coupling="Independent()")], "recipe": INDEPENDENT}
    assert "predicted" not in said(one, {"rows": [hops(75.4), predicted(74.9, ot_n=44)], "recipe": OT})
    assert "13.77 ± 0.15 % predicted" in said(one, {"rows": [hops(75.4), predicted(73.9)], "recipe": OT})


def test_hops_of_different_samplers_are_not_compared(said):
    assert said({"rows": [hops(88.4, steps=128)]}, {"rows": [hops(75.4, steps=32)]}) == ""


def test_many_bounds_are_counted(said):
    def bounds(values):
        return {
            "rows": [
                bound("bn", v, 0.1, steps=s, sampler=f"{s} steps") for s, v in zip((8, 16, 32, 64), values, strict=True)
            ]
        }

    text = said(bounds([20.0] * 4), bounds([19.0, 19.0, 19.0, 20.0]))
    assert text == "b: of 4 bounds 3 lower by more than 2 standard errors."


def test_one_run_has_its_bound_its_sampler_and_its_hops(said):
    bits = {"bits_per_char": 2.65, "bits_per_char_stderr": 0.03}
    worse = bound("b0", 22.0, 0.4)
    text = said(
        {
            "rows": [
                worse,
                bound("b1", 20.0, 0.4, eta=1.0, sampler="η = 1, continuous time", **bits),
                *rows(75.4, 73.9, 30.0)[1:],
            ]
        }
    )
    assert text == (
        "2.650 ± 0.030 bits per character on held-out text (bound b1; η = 1, continuous time; n = 64); "
        "75.40 ± 0.50 hops per sample (η = 0, 128 steps), 73.90 ± 0.10 predicted."
    )


def test_a_number_that_is_no_bound_is_not_the_result(said):
    coupled = bound("coupled", 5.0, 0.1, is_bound=False)
    assert said({"rows": [coupled]}) == ""
    assert "20.00 ± 0.50 perplexity per token" in said({"rows": [coupled, bound("b0", 20.0, 0.5)]})


def test_a_run_that_was_not_evaluated_has_its_last_evaluation(said):
    text = said({"metrics": [step(0, **LOOK), step(99, **{**LOOK, "b0_ppl": 18.0})]})
    assert text == (
        "18.00 ± 0.50 perplexity per token on held-out text (bound b0; η = 0, continuous time; n = 64; step 100)."
    )
    assert said({"metrics": [step(0)]}) == ""


def test_runs_that_differ_in_the_seed_are_averaged(said):
    runs = [
        {"rows": [bound("b0", b0, 0.1)], "recipe": {"seed": seed, "lr": 1.0}}
        for seed, b0 in enumerate((19.0, 20.0, 21.0))
    ]
    text = said(*runs)
    assert text == (
        "3 runs with different seeds: perplexity 20.00 ± 0.58 per token on held-out text "
        "(b0; η = 0, continuous time; n = 3 runs)."
    )


def test_groups_of_seeds_are_compared_by_their_means(said):
    plain = [
        {"rows": [bound("b0", b0, 0.1), hops(100.0 + b0)], "recipe": {"coupling": "independent", "seed": b0}}
        for b0 in (19, 21)
    ]
    coupled = [
        {"rows": [bound("b0", b0, 0.1), hops(80.0 + b0)], "recipe": {"coupling": "exact", "seed": b0}}
        for b0 in (20, 21)
    ]
    text = said(*(json.loads(json.dumps(run)) for run in (*plain, *coupled)))
    assert text.startswith("c (2 seeds): 16.25 ± ")
    assert text.endswith(" % fewer hops than a (2 seeds); bound equal within errors.")


def test_the_headline_is_on_the_page_in_the_document_and_in_the_json(tmp_path):
    folders = [
        make(tmp_path / name, rows=rows(*numbers))
        for name, numbers in {"a": (88.4, 85.7, 20.0), "b": (75.4, 73.9, 20.5)}.items()
    ]
    page = report.write(folders, tmp_path / "out")
    expected = json.loads((tmp_path / "out" / "report.json").read_text())["headline"]
    assert expected.startswith("b: 14.71 ± 0.74 % fewer hops than a")
    assert f'<p class="headline">{expected}</p>' in page.read_text().replace("\u00a0", " ")
    assert f"**{expected}**" in (tmp_path / "out" / "report.md").read_text()
