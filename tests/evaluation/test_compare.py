"""Comparison of runs: which numbers are subtracted, with which error, and the steps that one needs to match another."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy.stats import kendalltau, pearsonr, spearmanr

from hopflow.evaluation import per_sequence
from hopflow.evaluation.compare import Comparison
from hopflow.evaluation.compare_table import page
from hopflow.evaluation.matching import QualityPoint, steps_to_match
from hopflow.evaluation.rows import Row

STEPS = (8, 16, 32, 64, 128, 1024)
DFM_B = (345.94, 241.16, 211.99, 197.48, 192.75, 185.12)
DFM_B_ERRORS = (1.71, 1.32, 1.12, 1.1, 1.04, 1.04)
EXACT_EMA = (302.76, 208.42, 182.4, 169.89, 164.42, 159.87)
EXACT_EMA_ERRORS = (1.85, 1.34, 1.19, 1.03, 0.99, 1.04)
SINKHORN = (331.88, 233.24, 203.08, 191.17, 185.06, 178.53)
SINKHORN_ERRORS = (1.67, 1.26, 1.06, 1.0, 1.01, 0.96)
"""Table 3 [tab:dfm_diff_gpt2_v2]."""


def row(quantity: str = "b0", value: float = 20.0, stderr: float = 0.3, **more) -> dict:
    own = {"set": "held-out", "n": 64, "unit": "ppl", "is_bound": True, "eta": 0.0, "dtype": "float32"}
    facts = {"data_sha256": "d", "source_sha256": "s", "split": "held out", "detokenised": "as is", "length": 16}
    facts |= {"seed": 0, "sampler": "η = 0, continuous time", "recipe_hash": None}
    return {"run": "r", "quantity": quantity, "value": value, "stderr": stderr, **own, **facts, **more}


def sample(quantity: str, value: float, stderr: float, steps: int, **more) -> dict:
    what = {"set": "samples", "unit": "bits" if quantity == "entropy_bits" else "per judge token", "is_bound": False}
    judge = {"judge_hash": "abcdef", "retokenised": True} if quantity.startswith("gen_") else {}
    point = {"steps": steps, "temperature": 1.0, "sampler": f"η = 0, {steps} steps", "length": 128}
    return {**row(quantity, value, stderr), **what, **point, **judge, **more}


def frontier(ppl, errors, entropy=None) -> list[dict]:
    rows = [sample("gen_ppl", value, error, steps) for steps, value, error in zip(STEPS, ppl, errors, strict=True)]
    entropies = entropy or [6.25] * len(STEPS)
    return rows + [sample("entropy_bits", bits, 0.001, steps) for steps, bits in zip(STEPS, entropies, strict=True)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Make a run's folder with such rows, and with a recipe if keys are given."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, *rows: dict, hash: str = "h", tokenizer: str = "t", **recipe) -> str:
        folder = tmp_path / name
        folder.mkdir()
        content = {"format": "hopflow evaluation", "version": 1, "rows": list(rows)}
        (folder / "eval.json").write_text(json.dumps(content))
        if recipe:
            identity = {**recipe, "flow.kind": "Flow", "data.tokenizer_sha256": tokenizer}
            what = {"format": "hopflow run", "version": 1, "recipe_hash": hash}
            (folder / "recipe.json").write_text(json.dumps({**what, "identity": identity, "recipe": recipe}))
        return name

    return make


def line(found: Comparison, quantity: str, **place):
    (one,) = [
        one
        for one in found.lines
        if one.place["quantity"] == quantity and all(one.place[key] == value for key, value in place.items())
    ]
    return one


# differences


def test_the_difference_is_from_the_first_run_and_independent_errors_add_in_quadrature(run):
    runs = [run("a", row(value=20, stderr=0.3)), run("b", row(value=19, stderr=0.4)), run("c", row(value=22))]
    found = Comparison.of(runs)
    one, other = line(found, "b0").differences
    assert (one.run, one.against, one.value, one.how) == ("b", "a", -1.0, "quadrature")
    assert one.stderr == pytest.approx(0.5)
    assert one.errors == pytest.approx(-2.0)
    assert other.value == 2.0
    text = page(found)
    assert "20 ± 0.3 (n=64)" in text
    assert "-1 ± 0.5 (-2.0 s.e.)" in text
    assert "quadrature" in text
    assert "paired" not in text


def test_numbers_share_a_line_if_sampler_coupling_and_judge_agree(run):
    different = {"eta": 1.0}, {"steps": 8}, {"coupling": "ExactOT", "ot_n": 64}, {"coupling": "ExactOT", "ot_n": 512}
    a = run("a", *(row(value=10 + place, **more) for place, more in enumerate(different)))
    b = run("b", *(row(value=20 + place, **more) for place, more in enumerate(reversed(different))))
    found = Comparison.of([a, b])
    assert len(found.lines) == 4
    assert [one.differences[0].value for one in found.lines] == [13, 11, 9, 7]
    judges = [sample("gen_ppl", 50, 1, 8, judge_hash=judge) for judge in ("one", "other")]
    found = Comparison.of([run("c", judges[0]), run("d", judges[1])])
    assert [len(one.rows) for one in found.lines] == [1, 1]
    assert found.matches == []


def test_values_per_sequence_make_a_difference_paired_with_a_smaller_error(run):
    torch.manual_seed(0)
    shared, own = 3 * torch.randn(64, dtype=torch.float64), 0.1 * torch.randn(2, 64, dtype=torch.float64)
    nats = 48 + shared + own
    rows = []
    for each in nats:
        ppl = math.exp(float(each.mean()) / 16)
        rows.append(row(value=ppl, stderr=ppl * float(each.std()) / 8 / 16))
    runs = [run("a", rows[0]), run("b", rows[1])]
    wide = line(Comparison.of(runs), "b0").differences[0]
    for folder, content, each in zip(runs, rows, nats, strict=True):
        per_sequence.write(Path(folder), {per_sequence.name(Row.from_json(content)): each})
    found = Comparison.of(runs)
    narrow = line(found, "b0").differences[0]
    assert (wide.how, narrow.how) == ("quadrature", "paired")
    assert narrow.value == wide.value
    assert narrow.stderr < wide.stderr / 5
    slopes = torch.tensor([one["value"] / 16 for one in rows])[:, None]
    assert narrow.stderr == pytest.approx(float((slopes * nats).diff(dim=0).std()) / 8)
    assert "paired)" in page(found)


@pytest.mark.parametrize("change", [{"seed": 1}, {"n": 32}, {"value": 21.0}, {"data_sha256": "other"}])
def test_values_of_other_sequences_or_of_another_evaluation_are_not_paired(run, change):
    nats = torch.full((64,), 16 * math.log(20.0), dtype=torch.float64) + torch.linspace(-1, 1, 64)
    rows = [row(value=20.0), row(value=20.0) | change]
    runs = [run("a", rows[0]), run("b", rows[1])]
    for folder, content in zip(runs, rows, strict=True):
        per_sequence.write(Path(folder), {per_sequence.name(Row.from_json(content)): nats})
    assert [one.how for one in line(Comparison.of(runs), "b0").differences] in (["quadrature"], [])


def test_where_n_differs_the_sequences_that_both_have_are_compared(run):
    torch.manual_seed(0)
    shared = 48 + 3 * torch.randn(48, dtype=torch.float64)
    nats = [shared, shared[:16] + 0.5 + 0.1 * torch.randn(16, dtype=torch.float64)]
    rows = [row(value=math.exp(float(each.mean()) / 16), n=len(each), stderr=0.4) for each in nats]
    runs = [run("a", rows[0]), run("b", rows[1])]
    for folder, content, each in zip(runs, rows, nats, strict=True):
        per_sequence.write(Path(folder), {per_sequence.name(Row.from_json(content)): each})
    found = Comparison.of(runs)
    (one,) = line(found, "b0").differences
    first = math.exp(float(shared[:16].mean()) / 16)
    assert (one.how, one.first) == ("paired", 16)
    assert one.value == pytest.approx(rows[1]["value"] - first)
    assert one.value > 0
    assert one.errors > 5  # the means of 48 and of 16 sequences differ by chance more than the runs do
    text = page(found)
    assert "paired, first 16)" in text
    assert "(n=48)" in text
    assert "(n=16)" in text
    assert "sequences that both runs have" in text


def test_numbers_of_a_text_from_different_n_are_not_subtracted_without_their_values(run):
    found = Comparison.of([run("a", row(n=48)), run("b", row(n=16))])
    assert line(found, "b0").differences == ()
    assert line(found, "b0").refused == {"b": "n = 48 and 16"}
    assert "evaluate both runs with the same rows=" in page(found)
    samples = [sample("jumps", 90, 1, 8, n=n) for n in (64, 16)]  # draws of each run's own
    (one,) = line(Comparison.of([run("c", samples[0]), run("d", samples[1])]), "jumps").differences
    assert one.how == "quadrature"


def test_runs_with_different_n_are_not_ranked_together(run):
    bounds, ppl = (6.0, 7.0, 8.0, 9.0, 9.5), (10.0, 12.0, 11.0, 14.0, 15.0)
    for n, count in (64, 1), (32, 0):
        runs = [
            run(f"{n}-{i}", row("b1", b, eta=1.0, n=n if i == 4 else 64), sample("gen_ppl", g, 0.1, 8))
            for i, (b, g) in enumerate(zip(bounds, ppl, strict=True))
        ]
        assert len(Comparison.of(runs).rank_agreements) == count


def test_the_difference_from_a_number_of_unknown_error_has_an_unknown_error(run):
    found = Comparison.of([run("a", row(n=1, stderr=None)), run("b", row(n=1, stderr=0.0, value=21))])
    (one,) = line(found, "b0").differences
    assert math.isnan(one.stderr)
    assert one.errors is None
    text = page(found)
    assert "20 ± ? (n=1)" in text
    assert "+1 ± ?" in text
    stored = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert stored["lines"][0]["differences"][0]["stderr"] is None


def test_a_damaged_file_of_values_is_named(run):
    runs = [run("a", row()), run("b", row())]
    Path("b", per_sequence.FILE).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"eval-values.safetensors is damaged.*\nremove it"):
        Comparison.of(runs)


# best bound


def test_bn_from_masks_and_br_from_another_source_are_compared_as_best_bounds(run):
    few = {"steps": 32, "sampler": "η = 0, 32 steps"}
    masks = run("masks", row("bn", 20.0, **few))
    uniform = run("uniform", row("bn", 30.0, **few), row("br", 22.0, paths=1, **few), row("br", 21.0, paths=8, **few))
    found = Comparison.of([masks, uniform])
    (best,) = found.best_bounds
    assert {name: one.quantity for name, one in best.rows.items()} == {"masks": "bn", "uniform": "br"}
    assert best.rows["uniform"].more["paths"] == 8
    assert best.differences[0].value == 1.0
    text = page(found)
    assert "| best bound " in text
    assert "20 ± 0.3 (bn) (n=64)" in text
    assert "21 ± 0.3 (br) (n=64)" in text
    assert "best bound, η = 0, 32 steps" in page(found, 120)
    assert json.loads(json.dumps(found.as_json()))["best_bounds"][0]["quantity"] == "best bound"


def test_runs_with_the_same_best_bound_have_no_further_line(run):
    few = {"steps": 32, "sampler": "η = 0, 32 steps"}
    runs = [run(name, row("bn", 30.0, **few), row("br", 22.0, paths=8, **few)) for name in ("a", "b")]
    assert Comparison.of(runs).best_bounds == []
    assert "best bound" not in page(Comparison.of(runs))


# what may not be compared


def test_perplexities_of_different_tokenizers_are_not_subtracted_and_bits_per_character_are(run):
    per_char = {"bits_per_char": 2.0, "bits_per_char_stderr": 0.03}
    a = run("a", row(value=20, **per_char), tokenizer="gpt2", size="tiny")
    b = run("b", row(value=4, data_sha256="other", length=64, **per_char | {"bits_per_char": 2.1}), size="tiny")
    found = Comparison.of([a, b])
    assert line(found, "b0").differences == ()
    assert line(found, "b0").refused == {"b": "different tokenizers"}
    bits = line(found, "b0_bits_per_char")
    assert bits.differences[0].value == pytest.approx(0.1)
    assert bits.differences[0].stderr == pytest.approx(0.03 * math.sqrt(2))
    text = page(found)
    assert "| b0, bits/char" in text
    assert "have different tokenizers: numbers per token depend on how much text a token is" in text


def test_with_one_tokenizer_bits_per_character_are_left_out_of_the_page(run):
    per_char = {"bits_per_char": 2.0, "bits_per_char_stderr": 0.03}
    found = Comparison.of([run("a", row(**per_char), size="tiny"), run("b", row(**per_char), size="tiny")])
    assert "bits/char" not in page(found)
    assert "b0_bits_per_char" in {one["quantity"] for one in found.as_json()["lines"]}


def test_quantities_have_the_names_of_the_tables_of_eval(run):
    names = {
        "entropy_bits": "entropy, bits",
        "distinct_2": "distinct 2-grams",
        "calls": "network calls",
        "jumps": "hops",
        "dynamic_cost_squared_embedding": "cost of samples (squared embedding)",
        "predicted_jumps": "predicted hops",
    }
    rows = [sample(quantity, 5.0, 0.1, 8) for quantity in names]
    text = page(Comparison.of([run("a", *rows, size="s"), run("b", *rows, size="s")]))
    shown = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")}
    assert shown >= set(names.values())
    assert not shown & set(names)


def test_samples_of_different_tokenizers_are_compared_only_by_a_judge_of_texts(run):
    rows = [sample("gen_ppl", 50, 1, 8), sample("entropy_bits", 6, 0.1, 8), sample("jumps", 90, 1, 8)]
    rows.append(sample("gen_ppl", 40, 1, 16))
    ids = sample("gen_ppl", 50, 1, 8, retokenised=False)
    found = Comparison.of([run("a", *rows, ids, tokenizer="x", size="s"), run("b", *rows, ids, size="s")])
    assert line(found, "gen_ppl", retokenised=True, steps=8).differences
    assert line(found, "gen_ppl", retokenised=False).refused == {"b": "different tokenizers"}
    assert line(found, "entropy_bits").refused == line(found, "jumps").refused == {"b": "different tokenizers"}
    assert {one.at["retokenised"] for one in found.matches} == {True}
    once = Comparison.of([run("c", *rows[:3], size="s"), run("d", *rows[:3], size="s")])
    assert once.matches == []  # of one number of steps there is no curve


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data_sha256": "other"}, "not the same text"),
        ({"length": 32}, "sequences of 16 and 32 tokens"),
        ({"unit": "nats"}, "ppl and nats"),
    ],
)
def test_numbers_of_another_text_length_or_unit_are_not_subtracted(run, change, reason):
    found = Comparison.of([run("a", row()), run("b", row(**change))])
    assert line(found, "b0").refused == {"b": reason}
    assert reason in page(found)


def test_runs_without_a_common_number_are_shown_with_a_remark(run):
    a = run("a", row("b0"), row("b1", eta=1.0))
    found = Comparison.of([a, run("b", row("b0", set="ptb"), row("bk"))])
    assert [len(one.rows) for one in found.lines] == [1] * 4
    text = page(found)
    assert "## held-out" in text
    assert "## ptb" in text
    assert "These runs have no number in common: evaluate them with the same settings." in text


def test_numbers_that_are_no_bound_are_marked_and_different_dtypes_are_named(run):
    coupled = {"is_bound": False, "coupling": "ExactOT", "ot_n": 64}
    a = run("a", row("coupled", **coupled), row("b0"))
    text = page(Comparison.of([a, run("b", row("coupled", **coupled), row("b0", dtype="bfloat16"))]))
    assert "coupled (not a bound)" in text
    assert "b0 (not a bound)" not in text
    assert "A difference of two bounds is not a difference of likelihoods" in text
    assert "Dtypes differ (bfloat16, float32)." in text


# which rows


def test_a_comparison_takes_the_newest_checkpoint_then_the_row_from_most_sequences(run):
    old, new = row(value=30, checkpoint=100, n=900), row(value=20, checkpoint=200, n=64)
    more = row(value=21, checkpoint=200, n=128)
    found = Comparison.of([run("a", new, more, old), run("b", row())])
    assert line(found, "b0").rows["a"].value == 21


def test_rows_of_another_recipe_are_left_out_and_counted(run):
    a = run("a", row(recipe_hash="h"), row("b1", eta=1.0, recipe_hash="before"), steps=40)
    found = Comparison.of([a, run("b", row(recipe_hash="h"), steps=40)])
    assert [one.place["quantity"] for one in found.lines] == ["b0"]
    assert "1 rows of a belong to another recipe than its folder has now and are left out: hopflow eval a" in page(
        found
    )
    b = run("c", row(recipe_hash="before"), steps=40)
    with pytest.raises(
        ValueError, match=r"all its rows belong to another recipe than recipe.json\nrun: hopflow eval c"
    ):
        Comparison.of(["a", b])


def test_recipe_keys_that_differ_are_shown(run):
    a = run("a", row(), steps=40, coupling="independent", eps=0.01, tokens="char", data="t.txt")
    b = run("b", row(), steps=40, coupling="exact", eps=0.01, tokens="char", data="t.txt", masks=None)
    found = Comparison.of([a, b])
    assert found.configuration == {"coupling": ["independent", "exact"]}
    assert "| coupling | independent | exact |" in page(found)
    same = Comparison.of([a, run("c", row(), steps=40, coupling="independent", eps=0.01, tokens="char", data="t.txt")])
    assert "They do not differ." in page(same)
    assert "Unknown" in page(Comparison.of([run("d", row()), run("e", row())]))


# recipes over seeds


def seeded(run, name: str, values: dict[int, float], **recipe) -> list[str]:
    return [run(f"{name}-{s}", row(value=v), seed=s, steps=40, **recipe) for s, v in values.items()]


def group_line(found: Comparison, quantity: str):
    (one,) = [one for one in found.group_lines if one.place["quantity"] == quantity]
    return one


def test_runs_that_differ_in_the_seed_only_are_one_recipe_with_an_error_over_runs(run):
    a = seeded(run, "plain", {0: 20.0, 1: 23.0, 2: 26.0}, coupling="independent")
    b = seeded(run, "ot", {0: 19.0, 1: 21.5, 2: 25.5}, coupling="exact")
    found = Comparison.of([*a, *b])
    assert [(group.name, len(group.runs)) for group in found.groups] == [("plain", 3), ("ot", 3)]
    line = group_line(found, "b0")
    assert line.numbers["plain"].value == pytest.approx(23)
    assert line.numbers["plain"].stderr == pytest.approx(3 / math.sqrt(3))
    assert (line.numbers["plain"].runs, line.numbers["plain"].n) == (3, (64,))
    (one,) = line.differences
    assert (one.run, one.against, one.how) == ("ot", "plain", "paired by seed")
    assert one.value == pytest.approx(-1)
    assert one.stderr == pytest.approx(0.5 / math.sqrt(3))  # of the differences -1, -1.5 and -0.5
    for width in (None, 80):
        text = page(found, width)
        assert "plain (3 runs, seeds 0, 1, 2)" in text
        assert "23 ± 1.7" in text
        assert "-1 ± 0.29" in text
        assert "standard error over runs" in text
    assert "| coupling | independent | exact |" in page(found)
    stored = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert stored["groups"][0] == {"name": "plain", "runs": a, "seeds": [0, 1, 2]}
    assert stored["group_lines"][0]["groups"]["plain"]["runs"] == 3


def test_seeds_that_two_recipes_share_are_paired_and_others_are_not(run):
    a = seeded(run, "plain", {0: 20.0, 1: 23.0, 7: 90.0}, coupling="independent")
    b = seeded(run, "ot", {0: 19.0, 1: 20.0, 8: 50.0}, coupling="exact")
    (one,) = group_line(Comparison.of([*a, *b]), "b0").differences
    assert (one.value, one.how) == (pytest.approx(-2), "paired by seed")
    c = seeded(run, "other", {3: 10.0, 4: 12.0}, coupling="sinkhorn")
    (one,) = group_line(Comparison.of([*a[:2], *c]), "b0").differences
    assert (one.value, one.how) == (pytest.approx(-10.5), "quadrature")
    assert one.stderr == pytest.approx(math.hypot(1.5, 1.0))


def test_the_error_over_runs_of_a_single_run_is_unknown(run):
    a = seeded(run, "plain", {0: 20.0, 1: 23.0}, coupling="independent")
    found = Comparison.of([*a, *seeded(run, "ot", {0: 19.0}, coupling="exact")])
    line = group_line(found, "b0")
    assert math.isnan(line.numbers["ot-0"].stderr)
    assert math.isnan(line.differences[0].stderr)
    assert "19 ± ?" in page(found, 80)
    json.dumps(found.as_json(), allow_nan=False)


def test_runs_of_different_recipes_or_of_one_seed_are_shown_alone(run):
    a, b = seeded(run, "plain", {0: 20.0}, lr=1.0), seeded(run, "ot", {0: 20.0}, lr=2.0)
    assert Comparison.of([*a, *b]).groups == []
    again = run("again", row(value=21), seed=0, steps=40, lr=1.0)  # the same recipe and seed once more
    assert Comparison.of([*a, again]).groups == []
    two = seeded(run, "two", {0: 20.0, 1: 21.0}, lr=3.0)  # nothing but the two: each is shown
    assert Comparison.of(two).groups == []
    assert len(Comparison.of([*two, *b]).groups) == 2


def test_a_mean_over_runs_is_of_the_sequences_that_all_of_them_have(run):
    torch.manual_seed(0)
    nats = [48 + torch.randn(n, dtype=torch.float64) for n in (48, 16, 48, 16)]
    runs = []
    for place, each in enumerate(nats):
        content = row(value=math.exp(float(each.mean()) / 16), n=len(each))
        name = run(f"{'ab'[place // 2]}-{place % 2}", content, seed=place % 2, lr=place // 2)
        runs.append(name)
        per_sequence.write(Path(name), {per_sequence.name(Row.from_json(content)): each})
    found = Comparison.of(runs)
    line = group_line(found, "b0")
    expected = [math.exp(float(each[:16].mean()) / 16) for each in nats]
    assert line.numbers["a"].value == pytest.approx(sum(expected[:2]) / 2)
    assert line.numbers["a"].n == (16,)
    for name in runs:
        Path(name, per_sequence.FILE).unlink()
    unknown = group_line(Comparison.of(runs), "b0")
    assert (unknown.numbers, unknown.differences, unknown.refused) == ({}, (), "n = 16 to 48")
    assert "are left out (n = 16 to 48)" in page(Comparison.of(runs), 80)


# steps to match


def test_the_papers_claims_of_32_and_8_times_fewer_steps_come_out_of_its_table(run):
    """Section 5.3 [exp_OT_l2]: 1024 steps without OT are matched by 32 with exact OT and averaged embeddings, by 128
    with Sinkhorn; interpolated, by a few less.
    """
    a, b = run("a", *frontier(DFM_B, DFM_B_ERRORS)), run("b", *frontier(EXACT_EMA, EXACT_EMA_ERRORS))
    found = Comparison.of([a, b, run("c", *frontier(SINKHORN, SINKHORN_ERRORS))])
    ema, sinkhorn = (one for one in found.matches if one.target == "a")
    assert (ema.run, ema.goal.steps, ema.reached.steps) == ("b", 1024, 32)
    assert 27 < ema.low < ema.steps < 32 < ema.high < 36
    assert ema.factor == pytest.approx(1024 / ema.steps)
    assert ema.factor > 32
    assert sinkhorn.reached.steps == 128
    assert 90 < sinkhorn.low < sinkhorn.steps < 128 < sinkhorn.high < 310
    goal = "a at 1024 steps (perplexity 185.1 ± 1)"
    assert f"b needs 29.6 steps (95 %: 27.1 to 32.6) to reach {goal}: 34.6 times fewer steps;" in page(found)
    (back,) = [one for one in found.matches if (one.run, one.target) == ("a", "b")]
    assert back.steps is back.reached is back.factor is back.low is None
    text = page(found)
    assert "a does not reach b at 1024 steps (perplexity 159.9 ± 1): its best is 185.1 ± 1 with 1024 steps" in text


def test_steps_are_interpolated_straight_in_logarithms():
    curve = [QualityPoint(4, 100.0, 0.0), QualityPoint(64, 25.0, 0.0)]  # ppl = 200/√steps
    found = steps_to_match("b", curve, "a", [QualityPoint(128, 50.0, 0.0), QualityPoint(8, 1.0, 0.0)], {})
    assert found.steps == pytest.approx(16.0)
    assert found.low == found.high == pytest.approx(16.0)
    assert found.factor == pytest.approx(8.0)


def test_errors_widen_the_interval_and_what_is_beyond_the_measured_steps_is_open():
    curve = [QualityPoint(4, 100.0, 1.0), QualityPoint(64, 48.0, 1.0)]
    found = steps_to_match("b", curve, "a", [QualityPoint(64, 50.0, 1.0)], {})
    assert found.low < found.steps < 64
    assert found.high is None
    assert "to more than was measured" in str(found)
    near = steps_to_match(
        "b", [QualityPoint(4, 100.0, 1.0), QualityPoint(64, 51.0, 1.0)], "a", [QualityPoint(64, 50.0, 1.0)], {}
    )
    assert near.steps is None
    assert near.low < 64
    assert "within the errors from" in str(near)


def test_fewest_measured_steps_that_suffice_at_once_are_an_upper_limit():
    found = steps_to_match("b", [QualityPoint(8, 40.0, 1.0)], "a", [QualityPoint(1024, 50.0, 1.0)], {})
    assert found.first
    goal = "a at 1024 steps (perplexity 50 ± 1)"
    assert f"needs at most 8 steps (95 %: less than 8 to 8) to reach {goal}: at least 128 times fewer steps" in str(
        found
    )


def test_steps_to_match_from_unknown_errors_have_no_interval():
    curve = [QualityPoint(4, 100.0, math.nan), QualityPoint(64, 25.0, math.nan)]
    found = steps_to_match("b", curve, "a", [QualityPoint(128, 50.0, math.nan)], {})
    assert found.steps == pytest.approx(16.0)
    assert found.low is found.high is None
    assert "needs 16 steps (their error is unknown) to reach a at 128 steps (perplexity 50 ± ?)" in str(found)
    json.dumps(found.as_json(), allow_nan=False)


def test_more_steps_are_called_more():
    found = steps_to_match(
        "b", [QualityPoint(8, 90.0, 0.1), QualityPoint(512, 40.0, 0.1)], "a", [QualityPoint(16, 45.0, 0.1)], {}
    )
    assert "times as many" in str(found)


def test_a_lower_perplexity_with_a_lower_entropy_is_called_repetitive(run):
    a = run("a", *frontier(DFM_B, DFM_B_ERRORS))
    found = Comparison.of([a, run("b", *frontier(EXACT_EMA, EXACT_EMA_ERRORS, [5.0] * 6))])
    (one,) = [one for one in found.matches if one.target == "a"]
    assert one.less_varied
    assert "entropy 5 against 6.25 bits: the text is more repetitive" in str(one)
    bare = steps_to_match("b", [QualityPoint(8, 40.0, 1.0)], "a", [QualityPoint(1024, 50.0, 1.0)], {})
    assert not bare.less_varied
    assert "entropies were not measured" in str(bare)


# the command


def test_the_command_writes_markdown_and_json(run, hopflow):
    runs = [
        run("a", row(), *frontier(DFM_B, DFM_B_ERRORS)),
        run("b", row(value=19), *frontier(SINKHORN, SINKHORN_ERRORS)),
    ]
    shown = hopflow("compare", *runs, "--json", "found.json")
    assert shown.code == 0
    assert shown.out.startswith("A  a\nB  b\n")
    assert "b0, η = 0, continuous  20 ± 0.3  19 ± 0.3  -1 ± 0.42 (-2.4 s.e.)" in shown.out
    found = json.loads(Path("found.json").read_text())
    assert found["runs"] == ["a", "b"]
    assert found["lines"][0]["differences"][0]["value"] == -1
    assert found["steps_to_match"][0]["goal"]["steps"] == 1024
    quiet = hopflow("compare", *runs, "--out", "found.md")
    assert (quiet.code, quiet.out) == (0, "")
    assert Path("found.md").read_text() == page(Comparison.of(runs))
    assert Path("found.md").read_text().startswith("# a and b\n")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"rows": []}', "cannot be read"),
        ('{"format": "hopflow evaluation", "version": 1, "rows": []}', "it has no rows"),
        ('{"format": "hopflow evaluation", "version": 9, "rows": []}', "its version is 9"),
        ('{"format": "hopflow evaluation", "version": 1, "rows": [{}]}', "a row has no run"),
        ('{"format": "hopflow evaluation", "version": 1, "rows": [3]}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("\x00\xff", "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_message_with_the_command_that_makes_a_new_one(run, hopflow, damage, words):
    runs = [run("a", row()), run("b", row())]
    Path("b", "eval.json").write_text(damage, encoding="latin-1")
    said = hopflow("compare", *runs)
    assert said.code == 2
    assert words in said.err
    assert "hopflow eval b" in said.err
    assert len(said.err.splitlines()) <= 6


@pytest.mark.parametrize(
    "change",
    [
        {"value": float("nan")},
        {"value": "many"},
        {"value": None},
        {"value": -1.0},
        {"stderr": -1.0},
        {"n": "some"},
        {"set": None},
        {"paths": "many"},
        {"tokenizer": ["char"]},
        {"value": 10**400},
        {"judge": json.loads(300 * "[" + 300 * "]")},
        {"quantity": ["b0"]},
        {"eta": [0.0]},
        {"steps": "few"},
        {"steps": 0},
        {"judge_hash": {}},
        {"checkpoint": "last"},
        {"bits_per_char": "two", "bits_per_char_stderr": 0.1},
        {"unit": 3},
    ],
    ids=str,
)
def test_a_row_with_an_invalid_value_is_one_message(run, hopflow, change):
    said = hopflow("compare", run("a", row()), run("b", row() | change))
    assert said.code == 2, said.err
    assert "b/eval.json" in said.err
    assert "hopflow eval b" in said.err


def test_missing_unevaluated_single_or_repeated_runs_are_one_message_each(run, hopflow):
    a = run("a", row())
    Path("empty").mkdir()
    cases = {
        (): "compare needs two or more runs",
        (a,): "compare needs two or more runs",
        (a, a): "named twice",
        (a, "./a"): "named twice",
        (a, "nowhere"): "nowhere is not a folder",
        (a, "empty"): "run: hopflow eval empty",
    }
    for words, message in cases.items():
        said = hopflow("compare", *words)
        assert said.code == 2
        assert message in said.err
    assert hopflow("compare", a, run("b", row()), "--out", "no/such/file.md").code == 2


def test_five_or_more_runs_show_the_correlation_of_bounds_and_samples(run):
    b1, ppl = (6.0, 7.0, 8.0, 9.0, 9.5), (10.0, 12.0, 11.0, 14.0, 15.0)
    runs = [
        run(
            f"r{i}",
            row("b1", bound, eta=1.0),
            sample("gen_ppl", 99 - judged, 0.1, 8),
            sample("gen_ppl", judged, 0.1, 64),
        )
        for i, (bound, judged) in enumerate(zip(b1, ppl, strict=True))
    ]
    found = Comparison.of(runs)
    (one,) = found.rank_agreements
    assert one.samples.place["steps"] == 64  # the most
    assert [by.value for by in one.by] == pytest.approx(
        [pearsonr(b1, ppl)[0], spearmanr(b1, ppl)[0], kendalltau(b1, ppl)[0]]
    )
    assert "Correlation of bounds and samples over the runs" in page(found)
    assert found.as_json()["correlations"][0]["correlations"][0]["n"] == 5
    assert Comparison.of(runs[:4]).rank_agreements == []
    assert "Correlation of bounds" not in page(Comparison.of(runs[:4]))
