"""hopflow eval: what it prints, what it keeps in the run's folder, and what it says when it cannot."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hopflow as hf
from hopflow.evaluation import per_sequence
from hopflow.evaluation.rows import NAMES, Row
from hopflow.recipes import Recipe, build

FOX = "the quick brown fox jumps over the lazy dog, and the dog sleeps on; who would not? " * 40
QUICK = {"length": 16, "batch": 8, "holdout": 0.2, "steps": 2, "workers": 0, "warmup": 1, "device": "cpu"}
QUICK |= {"eval_every": 0, "eval_rows": 0, "eval_samples": 0, "dropout": 0.0}
FAST = ("rows=16", "seconds=600", "error=0", "n=6", "steps=4")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A text, a flow from the bag of its letters with averaged weights, and causal networks of letters and bytes."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "fox.txt").write_text(FOX)
    flow = {"source": "bag_of_words", "coupling": "exact", "weight_ema": 0.5, **QUICK}
    causal = {"model": "causal", **QUICK}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(folder / "cache"))
        for name, keys in {"flow": flow, "judge": causal, "bytes": {"tokens": "byte", **causal}}.items():
            build(Recipe(data=str(folder / "fox.txt"), **keys)).train(out=folder / name)
    return folder


@pytest.fixture
def runs(home, tmp_path) -> Path:
    """A copy to write to."""
    shutil.copytree(home, tmp_path / "runs")
    return tmp_path / "runs"


def kept(run: Path) -> list[Row]:
    return [Row.from_json(row) for row in json.loads((run / "eval.json").read_text())["rows"]]


def test_help_and_typos_do_not_wait_for_torch():
    probe = (
        "import sys\nfrom hopflow.cli import main\ntry: main()\n"
        "finally: print([m for m in ('torch', 'scipy', 'numpy') if m in sys.modules], file=sys.stderr)"
    )
    for words, code in (["eval", "--help"], 0), (["eval", "RUN", "stps=1"], 2):
        run = subprocess.run([sys.executable, "-c", probe, *words], capture_output=True, text=True)
        assert run.returncode == code
        assert run.stderr.splitlines()[-1] == "[]"


def test_all_numbers_of_a_run_stand_in_one_table_and_in_its_folder(hopflow, runs):
    run, file = runs / "flow", runs / "rows.json"
    words = (*FAST, "ot_n=4", f"judge={runs / 'judge'}", "--json", str(file))
    result = hopflow("eval", str(run), *words)
    assert (result.code, result.message) == (0, "")
    rows = kept(run)
    assert json.loads(file.read_text())["rows"] == [row.as_json() for row in rows]
    held = {(row.quantity, row.eta, row.is_bound) for row in rows if row.unit == "ppl"}
    bounds = {("b0", 0.0, True), ("b1", 1.0, True), ("bn", 0.0, True), ("bn", 1.0, True), ("bk", 0.0, True)}
    bounds |= {("br", 0.0, True), ("br", 1.0, True)}
    assert held == bounds | {("coupled", 0.0, False), ("coupled_info", 0.0, True)}
    drawn = {(row.quantity, row.eta) for row in rows if row.set == "samples"}
    wanted = ("gen_ppl", "gen_ppl_mean", "gen_bits_per_byte", "entropy_bits", "entropy_nats", "jumps", "calls")
    assert drawn >= {(name, eta) for name in (*wanted, "distinct_2", "repeated_4") for eta in (0.0, 1.0)}
    travelled = {row.quantity for row in rows if row.set == "transport"}
    assert travelled >= {"jumps", "predicted_jumps", "excess_jumps", "dynamic_cost_hamming", "gain_squared_embedding"}
    assert all(row.more["data_sha256"] for row in rows if row.set == "transport")  # another text, another number
    identity = json.loads((run / "recipe.json").read_text())["recipe_hash"]
    for row in rows:
        assert row.as_json().keys() >= set(NAMES)
        assert (row.run, row.recipe_hash, row.dtype) == (str(run), identity, "float32")
        assert (row.more["weights"], row.more["checkpoint"], row.more["seed"]) == ("average", 2, 0)
        assert row.more["sampler"]
    each = per_sequence.read(run)  # for `hopflow compare`, which pairs them
    for row in (row for row in rows if row.unit == "ppl"):
        assert len(each[per_sequence.name(row)]) == row.n
        assert float(each[per_sequence.name(row)].mean()) == pytest.approx(row.more["nats"], rel=1e-9)
    judged = [row for row in rows if row.quantity == "gen_ppl"]
    assert {row.set for row in judged} == {"samples", "held-out"}  # and what the judge says of the text itself
    assert all(row.more["judge"]["sha256"] and row.more["retokenised"] for row in judged)
    page = (run / "eval.md").read_text()
    lines = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| b")]
    assert [name for name in lines if name in ("b0", "b1", "bn", "bk")] == ["b0", "b1", "bn", "bn", "bk"]
    assert "coupled (ExactOT, Hamming, n = 4) " in page
    assert "| not a bound |" in page
    assert "coupled (not a bound)" in result.out
    assert re.match(r"held-out: at most [\d.]+ ± [\d.]+ bits per character with η = 0 \(b[nr], n = 16\)", result.out)
    assert re.search(
        r"\nLower is better. For comparison: [\d.]+ for random tokens, [\d.]+ for the token\s+"
        r"frequencies\s+of\s+the\s+training\s+text\.\n",
        result.out,
    )
    assert re.search(r"the text itself\s[\d.]+ ± [\d.]+ \(n = 6\)", result.out)
    assert "b0 on held-out: 16 of " in result.err


def test_the_same_evaluation_changes_no_row_and_another_one_only_adds_rows(hopflow, runs):
    run = runs / "flow"
    words = (*FAST, "gen=false", "coupling=none", "eta=0")
    assert hopflow("eval", str(run), *words).code == 0
    first = kept(run)
    assert hopflow("eval", str(run), *words).code == 0
    assert kept(run) == first
    result = hopflow("eval", str(run), *FAST, "gen=false", "coupling=sinkhorn", "eps=0.5", "ot_n=8", "eta=0", "seed=1")
    assert result.code == 0
    assert kept(run)[: len(first)] == first
    (coupled,) = [row for row in kept(run) if row.quantity == "coupled"]
    assert (coupled.more["coupling"], coupled.more["eps"], coupled.more["ot_n"], coupled.n) == ("SinkhornOT", 0.5, 8, 2)


def test_several_texts_give_a_table_each(hopflow, runs):
    (runs / "more.txt").write_text("the lazy fox would not jump, and the quick dog sleeps on; " * 20)
    texts = [str(runs / "more.txt"), str(runs / "fox.txt")]
    words = (*FAST, "gen=false", "coupling=none", "eta=0", *(f"data={text}" for text in texts))
    result = hopflow("eval", str(runs / "flow"), *words)
    assert result.code == 0
    page = (runs / "flow" / "eval.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [f"## {t}, step 2" for t in texts]
    assert page.count("the run was trained on this text") == 1
    said = result.out.partition("##")[0].replace("\n", " ")
    assert said.count(" at most ") == 2  # a verdict each
    assert said.count("token frequencies of this text") == 2  # the training text is not at hand
    assert {row.set: row.more["trained_on"] for row in kept(runs / "flow")} == dict(
        zip(texts, (False, True), strict=True)
    )


def test_a_causal_run_reports_its_exact_value(hopflow, runs):
    result = hopflow("eval", str(runs / "judge"), *FAST, "judge=" + str(runs / "judge"), "retokenise=false")
    assert result.code == 0
    (row,) = [row for row in kept(runs / "judge") if row.unit == "ppl"]
    assert (row.quantity, row.is_bound, row.more["exact"], row.more["weights"]) == ("nll", False, True, "last")
    assert re.match(r"held-out: [\d.]+ ± [\d.]+ bits per character \(nll, n = 16\), exact\.", result.out)
    assert all(row.more["retokenised"] is False for row in kept(runs / "judge") if row.quantity == "gen_ppl")


def test_under_plain_one_line_says_why_only_the_steps_are_bounded(hopflow, tmp_path, home):
    recipe = Recipe(data=str(home / "fox.txt"), source="uniform", prediction="plain", **QUICK)
    build(recipe).train(out=tmp_path / "plain")
    result = hopflow("eval", str(tmp_path / "plain"), *FAST, "gen=false")
    assert result.code == 0
    assert {row.quantity for row in kept(tmp_path / "plain")} == {"bn", "br"}
    (line,) = [line for line in result.out.split("\n\n") if line.startswith("No bounds in continuous time")]
    assert "under Plain with Uniform they are infinite" in line.replace("\n", " ")
    assert re.match(r"held-out: at most .* with η = 0 \(b[nr], n = 16\)", result.out)
    assert "in 4 steps." in result.out.partition("##")[0].replace("\n", " ")


def test_a_folder_of_save_pretrained_is_measured_and_nothing_is_written_to_it(hopflow, runs, tmp_path):
    found = hf.from_pretrained(runs / "flow")
    hf.save_pretrained(tmp_path / "saved", found.model, found.flow, tokenizer=found.tokenizer)
    words = (*FAST, "gen=false", "coupling=none", "length=16", f"data={runs / 'fox.txt'}")
    result = hopflow("eval", str(tmp_path / "saved"), *words)
    assert result.code == 0
    assert "\nb0  " in result.out
    assert not (tmp_path / "saved" / "eval.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps=0"], "steps must be an integer from 1 to 1048576, or a comma-separated list, got 0."),
        (["stps=8"], "did you mean 'steps'"),
        (["length=0"], "length must be an integer from 1 to 1048576, got 0."),
        (["eta=a"], "eta must be a number ≥ 0, or a comma-separated list, got a."),
        (["eta=-1"], "eta must be a number ≥ 0, or a comma-separated list, got -1."),
        (["n=4", "n=5"], "setting 'n' is typed twice"),
        (["data="], "data must be a file or a name, got ''."),
        (["data=a.txt", "data=a.txt"], "setting 'data=a.txt' is typed twice"),
        (["data=nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["data=nothing"], "'nothing' is neither a file nor a corpus"),
        (["data=text8"], "text8 was not found, and hopflow does not download it"),
        (["data=EMPTY"], "empty.txt is empty"),
        (["data=SHORT"], "is too short: it has 3 tokens, but sequences of this run have 16"),
        (["data=OTHER"], "is not among the"),
        (["judge=smolm2"], "'smolm2' is not a judge: did you mean 'smollm2'?"),
        (["judge=FLOW"], "contains a Transformer, but a judge must predict each token"),
        (["judge=BYTES", "retokenise=false"], "has another vocabulary than"),
        (["coupling=ot"], "coupling must be own, exact, sinkhorn or none, got ot."),
        (["ot_n=512"], "ot_n must be at most"),
        (["detokenise=moses"], "detokenise must be auto, none, words or wikitext, got moses."),
        (["device=tpu"], "device must be auto or one of cpu, cuda, mps"),
    ],
)
def test_a_mistake_is_one_message_and_exit_2(hopflow, runs, tmp_path, monkeypatch, words, message):
    monkeypatch.delenv("HOPFLOW_DATA", raising=False)
    for name, text in {"empty.txt": "", "short.txt": "fox", "other.txt": "ÄÖÜ " * 20}.items():
        (tmp_path / name).write_text(text)
    places = {"EMPTY": "empty.txt", "SHORT": "short.txt", "OTHER": "other.txt"}
    spelled = {key: str(tmp_path / name) for key, name in places.items()}
    spelled |= {"FLOW": str(runs / "flow"), "BYTES": str(runs / "bytes")}
    words = [f"{key}={spelled.get(value, value)}" for key, _, value in (word.partition("=") for word in words)]
    result = hopflow("eval", str(runs / "flow"), *words)
    assert result.code == 2
    assert message in result.message
    assert len(result.message.splitlines()) <= 6
    assert "Traceback" not in result.err
    assert not (runs / "flow" / "eval.json").exists()


def test_a_judge_whose_extra_is_missing_is_exit_3(hopflow, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    (runs / "other").mkdir()
    for name, text in {
        "config.json": '{"model_type": "gpt2"}',
        "tokenizer.json": "{}",
        "model.safetensors": "",
    }.items():
        (runs / "other" / name).write_text(text)
    result = hopflow("eval", str(runs / "flow"), *FAST, f"judge={runs / 'other'}")
    assert result.code == 3
    assert "pip install 'hopflow[eval]'" in result.message


def test_what_is_no_run_or_has_a_damaged_record_is_said_before_the_work(hopflow, runs, tmp_path):
    result = hopflow("eval", str(tmp_path / "nothing"))
    assert result.code == 2
    assert "there is no folder" in result.message
    (tmp_path / "text.txt").write_text("the fox")
    assert "text.txt is a file, not the folder of a run" in hopflow("eval", str(tmp_path / "text.txt")).message
    (runs / "flow" / "eval.json").write_text("{")
    result = hopflow("eval", str(runs / "flow"), *FAST)
    assert result.code == 2
    assert "eval.json cannot be read" in result.message
    assert "b0 on" not in result.err


def test_a_run_that_holds_nothing_out_is_one_message(hopflow, tmp_path, home):
    build(Recipe(data=str(home / "fox.txt"), **{**QUICK, "holdout": 0.0})).train(out=tmp_path / "all")
    result = hopflow("eval", str(tmp_path / "all"))
    assert result.code == 2
    assert "has no test split: it was trained with holdout=0; pass data=FILE" in result.message


def test_what_was_measured_is_kept_when_the_rest_fails(hopflow, runs, tmp_path, monkeypatch):
    from hopflow.evaluation.sample_rows import SampleEvaluation

    def broken(self, *args):
        raise ValueError("the judge has lost his glasses")

    folder = tmp_path / "copy"
    shutil.copytree(runs / "flow", folder)
    for file in ("eval.json", "eval.md", per_sequence.FILE):
        (folder / file).unlink(missing_ok=True)
    monkeypatch.setattr(SampleEvaluation, "rows", broken)
    result = hopflow("eval", str(folder), *FAST, "--json", str(tmp_path / "rows.json"))
    assert (result.code, result.message.strip()) == (2, "hopflow: the judge has lost his glasses")
    assert {"b0", "b1", "bn", "bk"} <= {row.quantity for row in kept(folder)}
    assert json.loads((tmp_path / "rows.json").read_text())["rows"]


def test_from_masks_b0_and_b1_are_one_line_and_two_rows(hopflow, tmp_path, home):
    build(Recipe(data=str(home / "fox.txt"), source="multimask", **QUICK)).train(out=tmp_path / "masks")
    result = hopflow("eval", str(tmp_path / "masks"), *FAST[:3], "n=1", "steps=4")
    assert result.code == 0, result.err
    rows = {(row.quantity, row.eta): row for row in kept(tmp_path / "masks") if row.unit == "ppl"}
    assert rows.keys() == {("b0", 0.0), ("b1", 1.0), ("bn", 0.0), ("bn", 1.0)}
    assert rows["b1", 1.0].value == rows["b0", 0.0].value
    assert rows["b1", 1.0].more["equal_to_eta"] == 0.0
    assert rows["b1", 1.0].more["sampler"] == "η = 1, continuous time"
    assert re.search(r"\nb0 = b1 +η = 0 or 1, continuous", result.out)
    assert re.search(r"\nbn +η = 0 or 1, 4 steps", result.out)
    assert "(b0 = b1, n = 16)" in result.out.partition("##")[0].replace("\n", " ")
    assert "hops (Hamming): 16 in every sequence" not in result.out  # of one sample nothing is certain
    assert "saved by pairing" not in result.out  # pairs are independent
    assert "± ?" in result.out
    assert "nan" not in result.out.lower()
    stored = (tmp_path / "masks" / "eval.json").read_text()
    assert "NaN" not in stored
    assert '"stderr": null' in stored


def test_a_mistake_before_the_measurements_prints_no_remark_about_them(hopflow, tmp_path, home):
    build(Recipe(data=str(home / "fox.txt"), source="mask", **QUICK)).train(out=tmp_path / "masks")
    result = hopflow("eval", str(tmp_path / "masks"), *FAST, "metric=nothing")
    assert result.code == 2
    assert "there is no metric 'nothing'" in result.message
    assert result.out == ""


def test_eval_draws_samples_with_any_sampler(hopflow, tmp_path, home):
    build(Recipe(data=str(home / "fox.txt"), source="mask", **QUICK)).train(out=tmp_path / "masks")
    result = hopflow("eval", str(tmp_path / "masks"), *FAST, "sampler=random_order", "per_call=4")
    assert result.code == 0, result.err
    (calls,) = [row for row in kept(tmp_path / "masks") if (row.set, row.quantity) == ("samples", "calls")]
    assert (calls.value, calls.eta) == (QUICK["length"] / 4, 0.0)  # and no samples of another sampler


def test_eval_prints_the_exact_likelihood_of_a_planner_next_to_the_bounds_of_other_samplers(hopflow, tmp_path, home):
    build(Recipe(data=str(home / "fox.txt"), source="mask", **QUICK)).train(out=tmp_path / "masks")
    result = hopflow("eval", str(tmp_path / "masks"), *FAST, "sampler=confidence:4", "coupling=none")
    assert result.code == 0, result.err
    (row,) = [row for row in kept(tmp_path / "masks") if row.quantity == "planned"]
    saved = hf.from_pretrained(tmp_path / "masks")
    x1 = build(Recipe(data=str(home / "fox.txt"), source="mask", **QUICK)).corpus.test
    exactly = hf.planned_nll(saved.model, saved.flow, x1, hf.Confidence(4))
    assert min(exactly.each) <= row.more["nats"] <= max(exactly.each)
    assert (row.is_bound, row.more["exact"], row.n, row.more["calls"]) == (False, True, 16, QUICK["length"] / 4)
    shown = " ".join(result.out.split())
    assert "planned (exact)" in shown
    assert "η = 0, by confidence, 4 positions per call" in shown
    assert "bn and br bound Euler steps on an even grid, not: by confidence, 4 positions per call" in shown
    assert "`planned` is the likelihood of these samples" in shown
    assert result.out.splitlines()[0].startswith("held-out: at most")  # the verdict is about Euler in continuous time


def test_a_smaller_evaluation_afterwards_changes_no_number_of_a_larger_one(hopflow, runs):
    run = runs / "flow"
    words = ("seconds=600", "error=0", "gen=false", "coupling=none", "eta=0", "steps=4")
    assert hopflow("eval", str(run), *words, "rows=24").code == 0
    first = kept(run)
    assert {row.n for row in first} == {24}
    assert hopflow("eval", str(run), *words, "rows=16").code == 0
    assert kept(run) == first
    assert {len(each) for each in per_sequence.read(run).values()} == {24}


def test_eval_compare_list_and_config_keys_fit_80_columns(hopflow, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("flow", "judge"):
        shutil.copytree(home / name, tmp_path / name)
    for seed in (1, 2):
        recipe = Recipe(data=str(home / "fox.txt"), source="mask", seed=seed, **QUICK)
        build(recipe).train(out=tmp_path / f"mask-{seed}")
    fast = ("rows=16", "seconds=600", "error=0", "n=6", "steps=2,4", "temperature=1,0.5")
    asked = [("eval", "flow", *fast, "judge=judge")]
    asked += [("eval", name, "rows=16", "error=0", "n=2", "steps=2") for name in ("mask-1", "mask-2")]
    asked += [("compare", "flow", "mask-1"), ("compare", "flow", "mask-1", "mask-2"), ("compare", "mask-1", "mask-2")]
    asked += [("list",), ("config", "keys"), ("data", "list")]
    for words in asked:
        result = hopflow(*words)
        assert result.code == 0, result.err
        wide = [line for line in (*result.out.splitlines(), *result.err.splitlines()) if len(line) > 80]
        assert not wide, (words, wide)
        assert len(result.out.splitlines()) > 5
