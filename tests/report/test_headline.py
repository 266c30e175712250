"""The headline: the result in one sentence, from numbers with known errors only."""

import json

import pytest
from run_folders import EVALUATION, bound, make, sampled, step

pytest.importorskip("matplotlib")

from hopflow import report
from hopflow.report.headline import headline
from hopflow.report.numbers import ValueWithError
from hopflow.report.run_data import RunData

INDEPENDENT, OT = {"coupling": "independent", "seed": 0}, {"coupling": "exact", "seed": 0}


def hops(value, error=0.5, steps=128, **more):
    return sampled("jumps", value, steps, stderr=error, length=16, **more)


def predicted(value, error=0.1, ot_n=64, coupling="ExactOT()"):
    pairs = {"set": "transport", "is_bound": False, "ot_n": ot_n, "trained_ot_n": 64, "coupling": coupling}
    return bound("predicted_jumps", value, error, n=16, unit="per sequence", **pairs)


@pytest.fixture
def headline_of(tmp_path):
    """The headline on runs with these files, named a, b, …"""

    def say(*contents):
        folders = [make(tmp_path / name, **files) for name, files in zip("abcdef", contents, strict=False)]
        return headline([RunData.load(folder) for folder in folders])

    return say


def rows(count, forecast, b0, error=0.3, **more):
    return [bound("b0", b0, error, **more), hops(count), predicted(forecast)]


def test_two_runs_are_compared_by_hops_their_prediction_and_bounds(headline_of):
    text = headline_of(
        {"rows": rows(88.4, 85.7, 20.0), "recipe": INDEPENDENT}, {"rows": rows(75.4, 73.9, 20.5), "recipe": OT}
    )
    assert text == "b: 14.71 ± 0.74 % fewer hops than a, 13.77 ± 0.15 % predicted; bound equal within errors."


def test_the_error_of_a_saving_is_that_of_the_ratio():
    saved = ValueWithError(75.0, 0.6).percent_below(ValueWithError(100.0, 0.8))
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
def test_bounds_are_equal_only_within_two_standard_errors(headline_of, b0, expected):
    text = headline_of({"rows": [bound("b0", 20.0, 0.3)]}, {"rows": [bound("b0", b0, 0.4)]})
    assert text == f"b: {expected}."


def test_equal_hops_and_more_hops_are_named_as_such(headline_of):
    assert "b: as many hops as a within errors (0.40 ± 0.71 % fewer hops)" in headline_of(
        {"rows": [hops(100.0)]}, {"rows": [hops(99.6)]}
    )
    assert headline_of({"rows": [hops(100.0)]}, {"rows": [hops(110.0)]}) == "b: 10.00 ± 0.74 % more hops than a."
    assert headline_of({"rows": [hops(64.0, 0.0)]}, {"rows": [hops(64.0, 0.0)]}) == "b: as many hops as a."


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_number_with_an_unknown_error_is_never_significant(missing):
    assert not ValueWithError(0.1, missing).is_significant
    assert not ValueWithError(100.0, missing).is_significant
    assert ValueWithError(1.0, missing).minus(ValueWithError(2.0, 0.1)).stderr is None
    assert str(ValueWithError(1.5, missing)) == "1.500 ± ?"


def test_bounds_of_a_single_sequence_are_not_compared(headline_of):
    text = headline_of({"rows": [bound("b0", 20.0, 0.0, n=1)]}, {"rows": [bound("b0", 25.0, 0.0, n=1)]})
    assert text == "b: bound not compared, since its error is unknown."


def test_a_prediction_for_another_ot_batch_is_not_quoted(headline_of):
    one = {"rows": [hops(88.4), predicted(85.7, ot_n=44, coupling="Independent()")], "recipe": INDEPENDENT}
    assert "predicted" not in headline_of(one, {"rows": [hops(75.4), predicted(74.9, ot_n=44)], "recipe": OT})
    assert "13.77 ± 0.15 % predicted" in headline_of(one, {"rows": [hops(75.4), predicted(73.9)], "recipe": OT})


def test_hops_of_different_samplers_are_not_compared(headline_of):
    assert headline_of({"rows": [hops(88.4, steps=128)]}, {"rows": [hops(75.4, steps=32)]}) == ""


def test_hops_with_and_without_refresh_are_not_compared(headline_of):
    refreshed = hops(140.0, sampler_label="128 Euler steps, refresh 4")
    assert "hops" not in headline_of({"rows": [hops(88.0)]}, {"rows": [refreshed]})
    assert "14.77" in headline_of({"rows": [hops(88.0), refreshed]}, {"rows": [refreshed, hops(75.0)]})


def test_more_than_two_significant_bounds_are_counted(headline_of):
    def bounds(values):
        return {
            "rows": [
                bound("bn", v, 0.1, steps=s, sampler=f"{s} steps") for s, v in zip((8, 16, 32, 64), values, strict=True)
            ]
        }

    text = headline_of(bounds([20.0] * 4), bounds([19.0, 19.0, 19.0, 20.0]))
    assert text == "b: 3 of 4 bounds lower by more than 2 standard errors."


def test_the_headline_of_one_run_has_its_lowest_bound_and_its_hops(headline_of):
    bits = {"bits_per_char": 2.65, "bits_per_char_stderr": 0.03}
    worse = bound("b0", 22.0, 0.4)
    text = headline_of(
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
        "75.40 ± 0.50 hops per sequence (η = 0, 128 steps), 73.90 ± 0.10 predicted."
    )


def in_steps(quantity, value, error=0.1, eta=0.0, steps=32, **more):
    return bound(quantity, value, error, eta=eta, steps=steps, sampler=f"η = {eta:g}, {steps} steps", **more)


def by_paths(one, eight, eta=0.0):
    return [in_steps("br", one, eta=eta, paths=1), in_steps("br", eight, eta=eta, paths=8)]


def test_runs_are_compared_by_the_tightest_bound_of_the_sampler_where_br_was_measured(headline_of):
    masks = [bound("b0", 20.0, 0.1), in_steps("bn", 21.0)]
    words = [bound("b0", 40.0, 0.1), in_steps("bn", 41.0), *by_paths(22.0, 19.0), *by_paths(18.0, 17.0, eta=1.0)]
    text = headline_of({"rows": masks, "recipe": INDEPENDENT}, {"rows": words, "recipe": OT})
    assert text == "b: tightest bound for η = 0, 32 steps (br with 8 paths; a: bn) lower by 2.00 ± 0.14."


def test_the_tightest_bounds_can_be_equal_within_errors_while_b0_differs(headline_of):
    runs = [
        {"rows": [bound("b0", b0, 0.1), in_steps("bn", b0), *by_paths(22.0, br)]} for b0, br in ((40, 19), (60, 19.1))
    ]
    assert headline_of(*runs) == "b: tightest bound for η = 0, 32 steps (br with 8 paths) equal within errors."


def test_the_headline_of_one_run_has_its_tightest_bound_where_br_was_measured(headline_of):
    rows = [bound("b0", 40.0, 0.1), in_steps("bn", 41.0), *by_paths(22.0, 19.0), *by_paths(18.0, 17.0, eta=1.0)]
    assert headline_of({"rows": rows}) == (
        "19.00 ± 0.10 perplexity per token on held-out text "
        "(bound br with 8 paths, the tightest for this sampler; η = 0, 32 steps; n = 64)."
    )


def test_seeds_are_averaged_by_the_tightest_bound_where_br_was_measured(headline_of):
    runs = [
        {"rows": [bound("b0", 40.0, 0.1), *by_paths(22.0, br)], "recipe": {"seed": seed, "lr": 1.0}}
        for seed, br in enumerate((19.0, 20.0, 21.0))
    ]
    assert headline_of(*runs) == (
        "3 runs with different seeds: perplexity 20.00 ± 0.58 per token on held-out text "
        "(br with 8 paths; η = 0, 32 steps; n = 3 runs)."
    )


def test_a_number_that_is_not_a_bound_is_not_in_the_headline(headline_of):
    coupled = bound("coupled", 5.0, 0.1, is_bound=False)
    assert headline_of({"rows": [coupled]}) == ""
    assert "20.00 ± 0.50 perplexity per token" in headline_of({"rows": [coupled, bound("b0", 20.0, 0.5)]})


def test_without_hopflow_eval_the_headline_has_the_last_evaluation_of_the_training(headline_of):
    text = headline_of({"metrics": [step(0, **EVALUATION), step(99, **{**EVALUATION, "b0_ppl": 18.0})]})
    assert text == (
        "18.00 ± 0.50 perplexity per token on held-out text "
        "(bound b0; η = 0, continuous time; n = 64; training step 100)."
    )
    assert headline_of({"metrics": [step(0)]}) == ""


def test_runs_that_differ_in_the_seed_are_averaged(headline_of):
    runs = [
        {"rows": [bound("b0", b0, 0.1)], "recipe": {"seed": seed, "lr": 1.0}}
        for seed, b0 in enumerate((19.0, 20.0, 21.0))
    ]
    text = headline_of(*runs)
    assert text == (
        "3 runs with different seeds: perplexity 20.00 ± 0.58 per token on held-out text "
        "(b0; η = 0, continuous time; n = 3 runs)."
    )


def test_groups_of_seeds_are_compared_by_their_means(headline_of):
    plain = [
        {"rows": [bound("b0", b0, 0.1), hops(100.0 + b0)], "recipe": {"coupling": "independent", "seed": b0}}
        for b0 in (19, 21)
    ]
    coupled = [
        {"rows": [bound("b0", b0, 0.1), hops(80.0 + b0)], "recipe": {"coupling": "exact", "seed": b0}}
        for b0 in (20, 21)
    ]
    text = headline_of(*(json.loads(json.dumps(run)) for run in (*plain, *coupled)))
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
