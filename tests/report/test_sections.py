"""The sections of a report, from folders with some or all files."""

import json

import pytest
from run_folders import EVALUATION, bound, coupled, frontier, make, sampled, step

pytest.importorskip("matplotlib")

from hopflow.recipes import Recipe, resolve
from hopflow.report.blocks import Collapsible, Figure, Paragraph, SampleTexts, TableBlock
from hopflow.report.run_data import DETAILED_RUNS, RunData
from hopflow.report.sections import SECTIONS, compose, curves, evaluation, samples, settings, summary, transport


@pytest.fixture
def runs_of(tmp_path):
    """Runs with these files, named a, b, …"""

    def load(*contents):
        return [RunData.load(make(tmp_path / name, **files)) for name, files in zip("abcdef", contents, strict=False)]

    return load


def of(section, kind):
    return [block for block in section.blocks if isinstance(block, kind)]


def cells(table):
    return {row[0]: row[1:] for row in table.rows}


def test_a_run_with_one_logged_step_has_a_summary_and_commands_only(runs_of):
    report = compose(runs_of({"metrics": [step(0, **EVALUATION)]}))
    assert [section.anchor for section in report.sections] == ["summary", "repeat"]


def test_the_summary_shows_every_number_with_its_error_and_n(runs_of):
    logged = [step(i) for i in range(100)] + [step(100, **EVALUATION), step(101, **{**EVALUATION, "b0_ppl": 21.0})]
    (table,) = of(summary.section(runs_of({"metrics": logged, "rows": [bound("b1", 12.0, 0.1)]})), TableBlock)
    said = cells(table)
    assert said["training steps"] == ("102",)
    assert said["perplexity bound b0 (last evaluation)"] == ("21.00 ± 0.50 (n = 64)",)
    assert said["perplexity bound b0 (best evaluation)"] == ("20.00 ± 0.50 (n = 64), step 101",)
    assert said["perplexity bound b1 on held-out text (η = 0, continuous time)"] == ("12.00 ± 0.10 (n = 64)",)
    loss = said["training loss of the last batches, nats per token"][0]
    assert "±" in loss
    assert "n = 10" in loss


def test_a_number_that_was_evaluated_again_is_shown_once(runs_of):
    (table,) = of(
        summary.section(runs_of({"metrics": [step(0, **EVALUATION)], "rows": [bound("b0", 12.0, 0.1)]})), TableBlock
    )
    assert [name for name in cells(table) if "b0" in name] == [
        "perplexity bound b0 on held-out text (η = 0, continuous time)"
    ]


def test_results_of_the_comparison_are_not_repeated_in_the_summary(runs_of):
    rows = [bound(), *frontier()]
    (table,) = of(summary.section(runs_of({"rows": rows}, {"rows": rows})), TableBlock)
    assert list(cells(table)) == ["hops per sequence (η = 0, 64 steps)", "hops per sequence (η = 1, 64 steps)"]


@pytest.mark.parametrize(
    ("ot_n", "coupling", "shown"), [(64, "ExactOT", True), (44, "ExactOT", False), (44, "Independent", True)]
)
def test_hops_are_predicted_for_the_ot_batch_of_the_run_only(runs_of, ot_n, coupling, shown):
    """Held-out text that is too short for the OT batch of the training is coupled in smaller ones."""
    pairs = {
        "set": "transport",
        "is_bound": False,
        "ot_n": ot_n,
        "trained_ot_n": 64,
        "coupling": f"{coupling}(cost=Hamming())",
    }
    row = bound("predicted_jumps", 53.22, 0.11, n=2, unit="per sequence; n counts batches", **pairs)
    runs = runs_of({"rows": [bound(), row]}, {"rows": [bound(), row]})
    (table,) = of(summary.section(runs[:1]), TableBlock)
    assert ("hops per sequence, predicted" in cells(table)) == shown
    compared = [row for block in of(evaluation.comparison(runs), Collapsible) for row in block.blocks[0].rows]
    assert [row[0] for row in compared] == ["hops per sequence, predicted"] * shown


def test_an_evaluation_of_other_ot_batches_is_listed_with_both_sizes(runs_of):
    pairs = {"set": "transport", "is_bound": False, "ot_n": 44, "trained_ot_n": 64, "coupling": "ExactOT()"}
    section = evaluation.all_results(
        runs_of({"rows": [bound("predicted_jumps", 53.22, 0.11, unit="per sequence", **pairs)]})
    )
    assert (
        section.blocks[1].blocks[0].rows[0][1] == "η = 0, continuous time; ExactOT(), batches of 44 (trained with 64)"
    )


def test_the_summary_says_what_is_missing(runs_of):
    said = " ".join(block.text for block in of(summary.section(runs_of({"metrics": [step(0)]})), Paragraph))
    assert "a has no recipe.json" in said
    assert "`hopflow eval" in said


def test_curves_contain_their_data_and_count_values_that_are_not_finite(runs_of):
    logged = [
        step(0, **EVALUATION),
        step(1, loss=float("nan")),
        step(2, **{**EVALUATION, "b0_ppl": 18.0, "jumps": 51.0}),
    ]
    section = curves.section(runs_of({"metrics": logged}))
    loss, b0, jumps = of(section, Figure)
    assert (loss.name, b0.name, jumps.name) == ("loss", "b0", "jumps")
    assert loss.data["a"] == {"steps": [1.0, 3.0], "mean": [3.0, 2.998], "count": 2}
    assert [(one["step"], one["value"], one["stderr"]) for one in b0.data["a"]] == [(1, 20.0, 0.5), (3, 18.0, 0.5)]
    assert "n = 64" in b0.caption
    assert of(section, Paragraph)[1].text == "a: 1 value of loss is not finite and is left out."


def test_without_metrics_there_are_no_curves(runs_of):
    assert curves.section(runs_of({"rows": [bound()]})) is None


def test_a_single_evaluation_is_not_a_curve_and_a_constant_is_a_sentence(runs_of):
    single = curves.section(runs_of({"metrics": [step(0), step(1, **EVALUATION)]}))
    assert [figure.name for figure in of(single, Figure)] == ["loss"]
    masks = [step(i, **{**EVALUATION, "b0_ppl": 20.0 - i, "jumps": 64.0, "jumps_se": 0.0}) for i in range(3)]
    section = curves.section(runs_of({"metrics": masks}))
    assert [figure.name for figure in of(section, Figure)] == ["loss", "b0"]
    assert of(section, Paragraph)[1].text == "Hops per sequence: 64 at every evaluation."


def test_an_evaluation_of_one_sequence_has_an_unknown_error(runs_of):
    alone = {"b0_ppl": 20.0, "b0_n": 1}
    runs = runs_of({"metrics": [step(0, b0_se=0.0, **alone), step(1, b0_se=None, **alone | {"b0_ppl": 19.0})]})
    (table,) = of(summary.section(runs), TableBlock)
    assert cells(table)["perplexity bound b0 (last evaluation)"] == ("19 ± ? (n = 1)",)
    assert [one["stderr"] for one in of(curves.section(runs), Figure)[1].data["a"]] == [None, None]


def test_many_evaluations_are_thinned_and_the_last_is_kept(runs_of):
    section = curves.section(runs_of({"metrics": [step(i, **{**EVALUATION, "b0_ppl": 20.0 + i}) for i in range(1000)]}))
    b0 = of(section, Figure)[1]
    assert len(b0.data["a"]) == 200
    assert b0.data["a"][-1]["step"] == 1000
    assert "Every 5th evaluation" in b0.caption


def test_quality_is_drawn_over_steps_for_each_judge_with_the_text_itself(runs_of):
    section = samples.quality(runs_of({"rows": frontier()}))
    by_judge, entropy = of(section, Figure)
    assert by_judge.name == "quality-abcdef"
    assert list(by_judge.data) == ["η = 0", "η = 1"]
    assert [row["steps"] for row in by_judge.data["η = 0"]] == [4, 16, 64]
    assert "the text itself" in by_judge.svg
    assert "n = 32" in by_judge.caption
    assert list(entropy.data) == ["η = 0", "η = 1"]
    (table,) = of(section, TableBlock)
    assert table.head[1] == "generative perplexity (a judge)"
    assert [row[0] for row in table.rows][-1] == "the text itself"
    assert "under a judge" in of(section, Paragraph)[1].text
    assert "(judge a judge)" in by_judge.caption


def test_judges_are_named_and_show_their_hash_only_if_names_are_equal(runs_of):
    rows = [
        sampled("gen_ppl", 60.0, 16),
        sampled("gen_ppl", 50.0, 16, judge_hash="fedcba98", judge={"name": "/x/gpt2"}),
    ]
    said = json.dumps([section.as_json() for section in compose(runs_of({"rows": rows}, {"rows": rows})).sections])
    assert "judge a judge" in said
    assert "judge gpt2" in said
    assert "abcdef" not in said.replace("quality-abcdef", "")
    twins = [rows[0], {**rows[1], "judge": {"name": "a judge"}}]
    (table,) = of(samples.quality(runs_of({"rows": twins})), TableBlock)
    assert table.head[1:3] == ("generative perplexity (a judge (abcdef))", "generative perplexity (a judge (fedcba))")


def test_quality_has_a_line_per_run_eta_and_temperature(runs_of):
    warm = sampled("gen_ppl", 60.0, 16, temperature=1.2)
    section = samples.quality(runs_of({"rows": [*frontier(), warm]}, {"rows": frontier()}))
    assert list(of(section, Figure)[0].data) == [
        "a, η = 0",
        "a, η = 1",
        "a, η = 0, temperature 1.2",
        "b, η = 0",
        "b, η = 1",
    ]


def test_another_sampler_has_a_line_and_summary_numbers_of_its_own(runs_of):
    named = {"sampler_label": "16 Euler steps, refresh 4", "sampler_family": "Euler on EvenGrid, refresh 4"}
    named |= {"sampler": "η = 0, 16 Euler steps, refresh 4"}
    rows = [sampled("gen_ppl", 70.0, 8), sampled("gen_ppl", 60.0, 16), sampled("gen_ppl", 50.0, 16) | named]
    runs = runs_of({"rows": rows})
    assert list(of(samples.quality(runs), Figure)[0].data) == ["η = 0", "η = 0, Euler on EvenGrid, refresh 4"]
    numbers = " ".join(value for row in of(summary.section(runs), TableBlock)[0].rows for value in row)
    assert "60.0 ± 1.0" in numbers
    assert "50.0 ± 1.0" in numbers


def test_quality_of_one_number_of_steps_has_no_curve(runs_of):
    rows = [sampled("entropy_bits", 4.0, 16)]
    assert samples.quality(runs_of({"rows": rows})) is None  # the summary has it
    assert "`steps=8,16,32`" in of(evaluation.all_results(runs_of({"rows": rows})), Paragraph)[1].text
    judged = samples.quality(runs_of({"rows": [*rows, sampled("gen_ppl", 60.0, 16)]}))
    assert of(judged, Figure) == []
    assert of(judged, TableBlock)[0].rows[0] == ("η = 0, 16 steps", "60.0 ± 1.0", "4.0 ± 1.0", "32")


def test_quality_without_a_judge_or_with_a_causal_network_is_drawn_too(runs_of):
    causal = sampled("entropy_bits", 4.0, 0) | {"steps": None, "eta": None, "sampler": "left to right"}
    flow = [sampled("entropy_bits", 4.0, steps) for steps in (8, 16)]
    section = samples.quality(runs_of({"rows": [causal]}, {"rows": flow}))
    assert [figure.name for figure in of(section, Figure)] == ["entropy"]
    assert len(of(section, Paragraph)) == 1
    assert samples.quality(runs_of({"rows": [bound()]})) is None


def test_transport_counts_every_ot_batch_once(runs_of):
    logged = [coupled(i // 2, step=i) for i in range(20)]  # each OT batch serves two steps
    section = transport.section(runs_of({"metrics": logged, "recipe": {"seed": 0}}, {"metrics": [step(0)]}))
    (cost,) = of(section, Figure)  # the waiting time is constant
    assert cost.data["a"]["ot_cost"]["count"] == 10
    assert list(cost.data) == ["a"]
    (table,) = of(section, TableBlock)
    assert table.rows[0][1] == "ExactOT"
    assert table.rows[0][-1] == "5"
    saved = [1 - (50 + batch % 7) / 60 for batch in range(5, 10)]
    assert table.rows[0][4].startswith(f"{100 * sum(saved) / 5:.1f} ± ")


def test_transport_of_one_batch_has_an_unknown_error_and_without_batches_no_section(runs_of):
    section = transport.section(runs_of({"metrics": [coupled(0)]}))
    assert of(section, TableBlock)[0].rows[0][2] == "50 ± ?"
    assert of(section, Figure) == []
    assert transport.section(runs_of({"metrics": [step(0)]})) is None


def test_constant_transport_costs_are_a_sentence(runs_of):
    section = transport.section(
        runs_of({"metrics": [{**coupled(0, step=i), "ot_cost": 50 + i / 10} for i in range(9)]})
    )
    assert of(section, Figure) == []
    assert of(section, Paragraph)[1].text == "Costs stay within 5% of their mean during training."


def test_samples_in_morse_code_are_decoded(runs_of):
    text = {"metrics": [step(0)], "samples": ["... --- ...  .-. ..-- "], "recipe": {"tokens": "morse"}}
    (block,) = of(samples.texts(runs_of(text)), SampleTexts)
    assert block.readings == ("SOS R▯",)
    (block,) = of(samples.texts(runs_of({**text, "recipe": {"tokens": "char"}})), SampleTexts)
    assert block.readings == ()


def test_the_first_samples_are_shown_and_very_long_ones_are_cut(runs_of):
    texts = [f"text {i}" for i in range(20)] + ["x" * 100_000]
    (block,) = of(samples.texts(runs_of({"metrics": [step(0)], "samples": texts})), SampleTexts)
    assert block.texts == tuple(texts[:8])
    assert "first 8 of 21" in block.facts
    (block,) = of(samples.texts(runs_of({"metrics": [step(0)], "samples": texts[-1:]})), SampleTexts)
    assert len(block.texts[0]) < 21_000
    assert "80,000 characters more" in block.texts[0]


def test_a_run_without_samples_is_named_next_to_one_that_has_some(runs_of):
    assert samples.texts(runs_of({"metrics": [step(0)]})) is None
    section = samples.texts(runs_of({"metrics": [step(0)]}, {"metrics": [step(0)], "samples": ["one"]}))
    assert section.blocks[1] == Paragraph("a has no samples.")


def test_all_evaluation_results_are_in_a_collapsed_table(runs_of):
    section = evaluation.all_results(runs_of({"rows": [bound(), bound("coupled", is_bound=False), *frontier()]}))
    _, folded = section.blocks
    assert [row[-1] for row in folded.blocks[0].rows][:2] == ["bound", "not a bound"]
    assert folded.blocks[0].rows[0][2] == "20.00 ± 0.50"


def test_runs_are_compared_only_if_two_were_evaluated(runs_of):
    one = {"rows": [bound()]}
    assert evaluation.comparison(runs_of(one)) is None
    assert evaluation.comparison(runs_of(one, {"metrics": [step(0)]})) is None


def test_differences_carry_their_error_in_quadrature(runs_of):
    section = evaluation.comparison(runs_of({"rows": [bound("b0", 20.0, 0.3)]}, {"rows": [bound("b0", 18.0, 0.4)]}))
    (table,) = of(section, TableBlock)
    assert table.head == ("quantity", "sampler", "a", "b", "b − a")
    assert table.rows[0][2:] == ("20.00 ± 0.30 (n = 64)", "18.00 ± 0.40 (n = 64)", "-2.00 ± 0.50 (-4.0 s.e.)")


def test_settings_show_differences_and_collapse_the_complete_list(runs_of):
    section = settings.section(
        runs_of({"recipe": {"seed": 0, "lr": 0.001, "name": "x"}}, {"recipe": {"seed": 1, "lr": 0.001, "clip": None}})
    )
    (table,) = of(section, TableBlock)
    assert table.rows == (("seed", "0", "1"), ("clip", "-", "null"))
    (every,) = of(section, Collapsible)
    assert ("lr", "0.001", "0.001") in every.blocks[0].rows


def test_without_a_recipe_there_is_no_section_of_settings(runs_of):
    assert settings.section(runs_of({"metrics": [step(0)]})) is None


@pytest.mark.parametrize("word", ["docs", "morse_exact_laptop"])
def test_the_shown_training_command_results_in_the_same_recipe(runs_of, word):
    recipe = resolve(word, {"steps": 7, "lr": 0.5, "weight_ema": 0.5, "ot_batch": "none", "batch": 8, "pack": False})
    keys = {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}
    (run,) = runs_of({"recipe": json.loads(json.dumps(keys))})
    _, train, *words = settings.train_command(run).split()
    assert train == "train"
    again = resolve(words[0], dict(word.split("=", 1) for word in words[1:]))
    assert {**vars(again), "out": None} == {**keys, "out": None}


def test_a_custom_network_has_no_training_command(runs_of):
    (run,) = runs_of({"recipe": {"steps": 3, "batch": 2}, "rows": frontier()})
    assert settings.train_command(run) is None
    assert "steps=4,16,64 eta=0,1 n=32" in settings.eval_command(run)
    section = settings.reproduce([run])
    assert "Trained from Python: a" in of(section, Paragraph)[1].text
    assert of(section, TableBlock)[0].rows[0][1] == "0123456789abcdef"


def test_every_section_works_with_missing_files(runs_of):
    runs = runs_of({"metrics": [step(0)]}, {"rows": [bound()]}, {"recipe": {}}, {"metrics": [coupled(0, **EVALUATION)]})
    for build in (summary.section, *SECTIONS):
        section = build(runs)
        if section is not None:
            json.dumps(section.as_json(), allow_nan=False)


def test_many_runs_all_have_a_summary_row_and_only_the_first_have_details(tmp_path, monkeypatch):
    files = {"metrics": [coupled(i) for i in range(30)], "rows": [bound("b0", 12.0), *frontier()], "samples": ["a"]}
    names = [f"run-{i:02}" for i in range(DETAILED_RUNS + 3)]
    runs = [RunData.load(make(tmp_path / name, **files)) for name in names]
    asked = []
    monkeypatch.setattr(summary, "predicted_total", lambda run: asked.append(run.name))
    report = compose(runs)
    assert report.title == f"run-00, run-01, run-02 and {DETAILED_RUNS} more"
    assert f"the first {DETAILED_RUNS}. To see others, name fewer runs" in report.lead
    glance, *details = report.sections
    table = of(glance, TableBlock)[0]
    assert [row[0] for row in table.rows] == names
    bounds = [place for place, name in enumerate(table.head) if "perplexity bound b0" in name]
    assert {row[place] for row in table.rows for place in bounds} == {"12.00 ± 0.50 (n = 64)"}
    said = json.dumps([section.as_json() for section in details])
    assert names[DETAILED_RUNS - 1] in said
    assert not any(name in said for name in names[DETAILED_RUNS:])
    assert asked == names[:DETAILED_RUNS]


def test_a_report_on_no_run_is_an_error():
    with pytest.raises(ValueError, match="report needs a run"):
        compose([])


def test_a_table_with_an_uneven_row_is_an_error():
    with pytest.raises(ValueError, match="2 cells under 1"):
        TableBlock(("a",), (("b", "c"),))
