"""What each section says of runs, and that it says nothing where there is nothing to say."""

import json

import pytest

from run_folders import LOOK, bound, coupled, frontier, make, sampled, step

pytest.importorskip("matplotlib")

from hopflow.recipes import Recipe, resolve
from hopflow.report import comparison, curves, measures, quality, repeating, samples, settings, summary, transport
from hopflow.report.compose import SECTIONS, compose
from hopflow.report.section import Figure, Folded, Prose, Samples, Table
from hopflow.report.story import DETAILED, Story


@pytest.fixture
def told(tmp_path):
    """Stories of folders made by hand, named a, b, …"""

    def tell(*contents):
        return [Story.load(make(tmp_path / name, **files)) for name, files in zip("abcdef", contents, strict=False)]

    return tell


def of(section, kind):
    return [block for block in section.blocks if isinstance(block, kind)]


def cells(table):
    return {row[0]: row[1:] for row in table.rows}


def test_a_run_with_one_logged_step_has_a_summary_and_a_way_to_repeat_it(told):
    report = compose(told({"metrics": [step(0, **LOOK)]}))
    assert [section.anchor for section in report.sections] == ["summary", "repeat"]


def test_the_summary_gives_every_number_its_error_and_n(told):
    logged = [step(i) for i in range(100)] + [step(100, **LOOK), step(101, **{**LOOK, "b0_ppl": 21.0})]
    (table,) = of(summary.section(told({"metrics": logged, "rows": [bound("b1", 12.0, 0.1)]})), Table)
    said = cells(table)
    assert said["steps"] == ("102",)
    assert said["b0, perplexity bound (last evaluation)"] == ("21.00 ± 0.50 (n = 64)",)
    assert said["b0, perplexity bound (best evaluation)"] == ("20.00 ± 0.50 (n = 64), step 101",)
    assert said["perplexity bound b1 on held-out (η = 0, continuous time)"] == ("12.00 ± 0.10 (n = 64)",)
    loss = said["loss of the last batches, nats per token"][0]
    assert "±" in loss
    assert "n = 10" in loss


def test_a_number_that_was_evaluated_again_is_shown_once(told):
    (table,) = of(summary.section(told({"metrics": [step(0, **LOOK)], "rows": [bound("b0", 12.0, 0.1)]})), Table)
    assert [name for name in cells(table) if "b0" in name] == [
        "perplexity bound b0 on held-out (η = 0, continuous time)"
    ]


def test_numbers_that_stand_side_by_side_are_not_in_the_summary(told):
    rows = [bound(), *frontier()]
    (table,) = of(summary.section(told({"rows": rows}, {"rows": rows})), Table)
    assert list(cells(table)) == ["hops per sample (η = 0, 64 steps)", "hops per sample (η = 1, 64 steps)"]


@pytest.mark.parametrize(
    ("ot_n", "coupling", "shown"), [(64, "ExactOT", True), (44, "ExactOT", False), (44, "Independent", True)]
)
def test_hops_are_predicted_for_the_ot_batch_of_the_run_only(told, ot_n, coupling, shown):
    """Held-out text that is too short for the OT batch of the training is coupled in smaller ones."""
    pairs = {
        "set": "transport",
        "is_bound": False,
        "ot_n": ot_n,
        "trained_ot_n": 64,
        "coupling": f"{coupling}(cost=Hamming())",
    }
    row = bound("predicted_jumps", 53.22, 0.11, n=2, unit="per sequence; n counts batches", **pairs)
    stories = told({"rows": [bound(), row]}, {"rows": [bound(), row]})
    (table,) = of(summary.section(stories[:1]), Table)
    assert ("hops predicted by the coupling" in cells(table)) == shown
    compared = [row for block in of(comparison.section(stories), Folded) for row in block.blocks[0].rows]
    assert [row[0] for row in compared] == ["predicted_jumps"] * shown


def test_an_evaluation_of_other_ot_batches_is_listed_with_both_sizes(told):
    pairs = {"set": "transport", "is_bound": False, "ot_n": 44, "trained_ot_n": 64, "coupling": "ExactOT()"}
    section = measures.section(told({"rows": [bound("predicted_jumps", 53.22, 0.11, unit="per sequence", **pairs)]}))
    assert (
        section.blocks[0].blocks[0].rows[0][1] == "η = 0, continuous time; ExactOT(), batches of 44 (trained with 64)"
    )


def test_the_summary_says_what_is_missing(told):
    said = " ".join(block.text for block in of(summary.section(told({"metrics": [step(0)]})), Prose))
    assert "a has no recipe.json" in said
    assert "`hopflow eval" in said


def test_curves_hold_the_numbers_they_draw_and_say_how_many_are_no_numbers(told):
    logged = [step(0, **LOOK), step(1, loss=float("nan")), step(2, **{**LOOK, "b0_ppl": 18.0, "jumps": 51.0})]
    section = curves.section(told({"metrics": logged}))
    loss, b0, jumps = of(section, Figure)
    assert (loss.name, b0.name, jumps.name) == ("loss", "b0", "jumps")
    assert loss.data["a"] == {"steps": [1.0, 3.0], "mean": [3.0, 2.998], "count": 2}
    assert [(look["step"], look["value"], look["stderr"]) for look in b0.data["a"]] == [(1, 20.0, 0.5), (3, 18.0, 0.5)]
    assert "n = 64" in b0.caption
    assert of(section, Prose)[0].text == "a: 1 values of loss are not finite and are left out."


def test_without_metrics_there_are_no_curves(told):
    assert curves.section(told({"rows": [bound()]})) is None


def test_a_single_evaluation_is_not_a_curve_and_a_constant_is_a_sentence(told):
    single = curves.section(told({"metrics": [step(0), step(1, **LOOK)]}))
    assert [figure.name for figure in of(single, Figure)] == ["loss"]
    masks = [step(i, **{**LOOK, "b0_ppl": 20.0 - i, "jumps": 64.0, "jumps_se": 0.0}) for i in range(3)]
    section = curves.section(told({"metrics": masks}))
    assert [figure.name for figure in of(section, Figure)] == ["loss", "b0"]
    assert of(section, Prose)[0].text == "Hops per sample: 64 at every evaluation."


def test_an_evaluation_of_one_sequence_has_an_unknown_error(told):
    alone = {"b0_ppl": 20.0, "b0_n": 1}
    stories = told({"metrics": [step(0, b0_se=0.0, **alone), step(1, b0_se=None, **alone | {"b0_ppl": 19.0})]})
    (table,) = of(summary.section(stories), Table)
    assert cells(table)["b0, perplexity bound (last evaluation)"] == ("19 ± ? (n = 1)",)
    assert [look["stderr"] for look in of(curves.section(stories), Figure)[1].data["a"]] == [None, None]


def test_many_looks_are_drawn_a_few_at_a_time_and_the_last_always(told):
    section = curves.section(told({"metrics": [step(i, **{**LOOK, "b0_ppl": 20.0 + i}) for i in range(1000)]}))
    b0 = of(section, Figure)[1]
    assert len(b0.data["a"]) == 200
    assert b0.data["a"][-1]["step"] == 1000
    assert "Every 5th evaluation" in b0.caption


def test_quality_is_drawn_over_steps_for_each_judge_and_beside_the_text_itself(told):
    section = quality.section(told({"rows": frontier()}))
    by_judge, entropy = of(section, Figure)
    assert by_judge.name == "quality-abcdef"
    assert list(by_judge.data) == ["η = 0", "η = 1"]
    assert [row["steps"] for row in by_judge.data["η = 0"]] == [4, 16, 64]
    assert "the text itself" in by_judge.svg
    assert "n = 32" in by_judge.caption
    assert list(entropy.data) == ["η = 0", "η = 1"]
    (table,) = of(section, Table)
    assert table.head[1] == "generative perplexity (a judge)"
    assert [row[0] for row in table.rows][-1] == "the text itself"
    assert "under a judge" in of(section, Prose)[0].text
    assert "(judge a judge)" in by_judge.caption


def test_judges_are_named_and_their_hash_is_shown_only_where_two_have_one_name(told):
    rows = [
        sampled("gen_ppl", 60.0, 16),
        sampled("gen_ppl", 50.0, 16, judge_hash="fedcba98", judge={"name": "/x/gpt2"}),
    ]
    said = json.dumps([section.as_json() for section in compose(told({"rows": rows}, {"rows": rows})).sections])
    assert "judge a judge" in said
    assert "judge gpt2" in said
    assert "abcdef" not in said.replace("quality-abcdef", "")
    twins = [rows[0], {**rows[1], "judge": {"name": "a judge"}}]
    (table,) = of(quality.section(told({"rows": twins})), Table)
    assert table.head[1:3] == ("generative perplexity (a judge (abcdef))", "generative perplexity (a judge (fedcba))")


def test_quality_tells_runs_and_temperatures_apart(told):
    warm = sampled("gen_ppl", 60.0, 16, temperature=1.2)
    section = quality.section(told({"rows": [*frontier(), warm]}, {"rows": frontier()}))
    assert list(of(section, Figure)[0].data) == [
        "a, η = 0",
        "a, η = 1",
        "a, η = 0, temperature 1.2",
        "b, η = 0",
        "b, η = 1",
    ]


def test_one_number_of_steps_makes_no_curve(told):
    rows = [sampled("entropy_bits", 4.0, 16)]
    assert quality.section(told({"rows": rows})) is None  # the summary has it
    assert "`steps=8,16,32`" in of(measures.section(told({"rows": rows})), Prose)[0].text
    judged = quality.section(told({"rows": [*rows, sampled("gen_ppl", 60.0, 16)]}))
    assert of(judged, Figure) == []
    assert of(judged, Table)[0].rows[0] == ("η = 0, 16 steps", "60.0 ± 1.0", "4.0 ± 1.0", "32")


def test_quality_without_a_judge_or_with_a_causal_network_is_drawn_too(told):
    causal = sampled("entropy_bits", 4.0, 0) | {"steps": None, "eta": None, "sampler": "left to right"}
    flow = [sampled("entropy_bits", 4.0, steps) for steps in (8, 16)]
    section = quality.section(told({"rows": [causal]}, {"rows": flow}))
    assert [figure.name for figure in of(section, Figure)] == ["entropy"]
    assert of(section, Prose) == []
    assert quality.section(told({"rows": [bound()]})) is None


def test_transport_counts_every_ot_batch_once(told):
    logged = [coupled(i // 2, step=i) for i in range(20)]  # each OT batch serves two steps
    section = transport.section(told({"metrics": logged, "recipe": {"seed": 0}}, {"metrics": [step(0)]}))
    (cost,) = of(section, Figure)  # the waiting time is constant
    assert cost.data["a"]["ot_cost"]["count"] == 10
    assert list(cost.data) == ["a"]
    (table,) = of(section, Table)
    assert table.rows[0][1] == "ExactOT"
    assert table.rows[0][-1] == "5"
    saved = [1 - (50 + batch % 7) / 60 for batch in range(5, 10)]
    assert table.rows[0][4].startswith(f"{100 * sum(saved) / 5:.1f} ± ")


def test_transport_of_one_batch_has_no_error_and_of_none_no_section(told):
    section = transport.section(told({"metrics": [coupled(0)]}))
    assert of(section, Table)[0].rows[0][2] == "50 ± ?"
    assert of(section, Figure) == []
    assert transport.section(told({"metrics": [step(0)]})) is None


def test_costs_that_stay_the_same_are_a_sentence(told):
    section = transport.section(told({"metrics": [{**coupled(0, step=i), "ot_cost": 50 + i / 10} for i in range(9)]}))
    assert of(section, Figure) == []
    assert of(section, Prose)[0].text == "Costs stay within 5% of their mean during training."


def test_samples_in_morse_code_are_decoded(told):
    text = {"metrics": [step(0)], "samples": ["... --- ...  .-. ..-- "], "recipe": {"tokens": "morse"}}
    (block,) = of(samples.section(told(text)), Samples)
    assert block.readings == ("SOS R▯",)
    (block,) = of(samples.section(told({**text, "recipe": {"tokens": "char"}})), Samples)
    assert block.readings == ()


def test_samples_are_shown_unchosen_and_cut_where_they_are_endless(told):
    texts = [f"text {i}" for i in range(20)] + ["x" * 100_000]
    (block,) = of(samples.section(told({"metrics": [step(0)], "samples": texts})), Samples)
    assert block.texts == tuple(texts[:8])
    assert "first 8 of 21" in block.facts
    (block,) = of(samples.section(told({"metrics": [step(0)], "samples": texts[-1:]})), Samples)
    assert len(block.texts[0]) < 21_000
    assert "80,000 characters more" in block.texts[0]


def test_zero_samples_are_no_section_and_are_said_beside_a_run_that_has_some(told):
    assert samples.section(told({"metrics": [step(0)]})) is None
    section = samples.section(told({"metrics": [step(0)]}, {"metrics": [step(0)], "samples": ["one"]}))
    assert section.blocks[0] == Prose("a has no samples.")


def test_evaluation_lists_all_numbers_folded(told):
    section = measures.section(told({"rows": [bound(), bound("coupled", is_bound=False), *frontier()]}))
    (folded,) = section.blocks
    assert [row[-1] for row in folded.blocks[0].rows][:2] == ["bound", "not a bound"]
    assert folded.blocks[0].rows[0][2] == "20.00 ± 0.50"


def test_runs_are_compared_only_if_two_were_evaluated(told):
    one = {"rows": [bound()]}
    assert comparison.section(told(one)) is None
    assert comparison.section(told(one, {"metrics": [step(0)]})) is None


def test_differences_carry_their_error_in_quadrature(told):
    section = comparison.section(told({"rows": [bound("b0", 20.0, 0.3)]}, {"rows": [bound("b0", 18.0, 0.4)]}))
    (table,) = of(section, Table)
    assert table.head == ("quantity", "sampler", "a", "b", "b − a")
    assert table.rows[0][2:] == ("20.00 ± 0.30 (n = 64)", "18.00 ± 0.40 (n = 64)", "-2.00 ± 0.50 (-4.0 s.e.)")


def test_settings_show_what_differs_and_fold_all_of_it(told):
    section = settings.section(
        told({"recipe": {"seed": 0, "lr": 0.001, "name": "x"}}, {"recipe": {"seed": 1, "lr": 0.001, "clip": None}})
    )
    (table,) = of(section, Table)
    assert table.rows == (("seed", "0", "1"), ("clip", "-", "null"))
    (every,) = of(section, Folded)
    assert ("lr", "0.001", "0.001") in every.blocks[0].rows


def test_settings_without_any_recipe_are_no_section(told):
    assert settings.section(told({"metrics": [step(0)]})) is None


@pytest.mark.parametrize("word", ["docs", "morse_exact_laptop"])
def test_the_command_that_is_shown_makes_the_same_recipe_again(told, word):
    recipe = resolve(word, {"steps": 7, "lr": 0.5, "weight_ema": 0.5, "ot_batch": "none", "batch": 8, "pack": False})
    keys = {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}
    (story,) = told({"recipe": json.loads(json.dumps(keys))})
    _, train, *words = repeating.train_command(story).split()
    assert train == "train"
    again = resolve(words[0], dict(word.split("=", 1) for word in words[1:]))
    assert {**vars(again), "out": None} == {**keys, "out": None}


def test_a_network_of_ones_own_has_no_command(told):
    (story,) = told({"recipe": {"steps": 3, "batch": 2}, "rows": frontier()})
    assert repeating.train_command(story) is None
    assert "steps=4,16,64 eta=0,1 n=32" in repeating.eval_command(story)
    section = repeating.section([story])
    assert "Trained from Python: a" in of(section, Prose)[0].text
    assert of(section, Table)[0].rows[0][1] == "0123456789abcdef"


def test_every_section_survives_whatever_is_missing(told):
    stories = told({"metrics": [step(0)]}, {"rows": [bound()]}, {"recipe": {}}, {"metrics": [coupled(0, **LOOK)]})
    for tell in (summary.section, *SECTIONS):
        section = tell(stories)
        if section is not None:
            json.dumps(section.as_json(), allow_nan=False)


def test_of_many_runs_all_have_a_row_and_the_first_ones_details(tmp_path, monkeypatch):
    files = {"metrics": [coupled(i) for i in range(30)], "rows": [bound("b0", 12.0), *frontier()], "samples": ["a"]}
    names = [f"run-{i:02}" for i in range(DETAILED + 3)]
    stories = [Story.load(make(tmp_path / name, **files)) for name in names]
    asked = []
    monkeypatch.setattr(summary, "prediction", lambda story: asked.append(story.name))
    report = compose(stories)
    assert report.title == f"run-00, run-01, run-02 and {DETAILED} more"
    assert f"of the first {DETAILED}. To see others, name fewer runs" in report.lead
    glance, *details = report.sections
    table = of(glance, Table)[0]
    assert [row[0] for row in table.rows] == names
    bounds = [place for place, name in enumerate(table.head) if "perplexity bound b0" in name]
    assert {row[place] for row in table.rows for place in bounds} == {"12.00 ± 0.50 (n = 64)"}
    said = json.dumps([section.as_json() for section in details])
    assert names[DETAILED - 1] in said
    assert not any(name in said for name in names[DETAILED:])
    assert asked == names[:DETAILED]


def test_nothing_is_reported_on_nothing():
    with pytest.raises(ValueError, match="name a run"):
        compose([])


def test_a_table_with_an_uneven_row_is_refused():
    with pytest.raises(ValueError, match="2 cells under 1"):
        Table(("a",), (("b", "c"),))
