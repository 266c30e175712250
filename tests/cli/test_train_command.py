"""hopflow train, list and config: what they print, write and give back."""

import io
import json
import os
import re
import signal
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import FOX, SMALL
from rich.console import Console

from hopflow.cli import training_log
from hopflow.cli.output import console
from hopflow.recipes import Recipe, build, named, names, resolve
from hopflow.runs.metrics import best, read
from hopflow.system.durations import duration
from hopflow.training import loop
from hopflow.training.signals import Interrupted
from hopflow.training.tasks import FlowTask, HeldOutEvaluation
from hopflow.training.trainer import Trainer

KEYS = (*SMALL, "workers=0", "source=multimask", "coupling=exact", "cost=hamming", "save_every=2")


def without(*keys: str) -> list[str]:
    return [word for word in KEYS if word.partition("=")[0] not in keys]


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_training_a_text_file_prints_metrics_and_a_summary(hopflow, fox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = hopflow("train", fox, *without("eval_every"), "steps=4", "eval_every=2")
    assert result.code == 0
    lines = result.err.splitlines()
    at = lines.index(next(line for line in lines if line.startswith("fox: tiny transformer with ")))
    assert lines[0] == f"loading {fox}"
    assert "sequences of 16 tokens, vocabulary of " in lines[at]
    steps = lines[at + 1 :]
    assert any(
        all(word in line for word in ("loss", "grad norm", "tok/s", "OT cost", "OT wait", "iB")) for line in steps
    )
    logged = [line for line in steps if "loss" in line]  # on a slow machine signs of life stand between them
    assert [line.partition("/")[0] for line in logged] == [f"step {n}" for n in (1, 2, 3, 4)]
    assert sum("perplexity bound b0:" in line and "hops:" in line and "n=2" in line for line in steps) == 2
    shown = dict(line.split(":", 1) for line in result.out.splitlines())
    assert list(shown)[:5] == ["steps", "time", "loss", "perplexity bound b0", "hops"]
    assert shown["sample"].strip()
    assert shown["steps"].split() == ["4,", "256", "tokens"]
    assert "runs/fox: checkpoints, metrics.csv, metrics.jsonl, recipe.json, samples.jsonl" in shown["folder"]
    assert shown["draw samples"].strip() == "hopflow sample runs/fox"
    assert shown["evaluate"].strip() == "hopflow eval runs/fox"
    assert shown["write report"].strip() == "hopflow report runs/fox"
    assert shown["train longer"].strip() == "hopflow train runs/fox steps=8"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_variable_of_torchrun_that_is_no_number_is_named(hopflow, fox, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    monkeypatch.setattr(os, "_exit", sys.exit)  # several processes leave by it
    result = hopflow("train", fox, *KEYS, "steps=1", f"out={tmp_path / 'run'}")
    assert result.code == 2
    assert f"{name} must be an integer, as set by torchrun, got 'x'" in result.message
    assert f"unset {name}" in result.message


def test_model_causal_trains_an_autoregressive_network(hopflow, fox, tmp_path):
    out = tmp_path / "run"
    result = hopflow("train", fox, *SMALL, "model=causal", "steps=2", f"out={out}")
    assert (result.code, result.message) == (0, "")
    assert read(out / "metrics.jsonl")[-1]["nll_n"] == 2
    assert hopflow("train", str(out), "steps=3").code == 0  # and it goes on


def test_every_row_of_metrics_has_a_loss_at_any_evaluation_interval(hopflow, fox, tmp_path):
    out = tmp_path / "run"
    keys = without("log_every", "eval_every")
    assert hopflow("train", fox, *keys, "log_every=4", "eval_every=3", "steps=7", f"out={out}").code == 0
    rows = read(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 2, 3, 5, 6]
    assert all({"loss", "grad_norm", "tokens_per_s", "ot_cost", "memory_bytes"} <= row.keys() for row in rows)
    assert [row["step"] for row in rows if "b0_ppl" in row] == [2, 5, 6]
    header, *lines = (out / "metrics.csv").read_text().splitlines()
    assert header.split(",")[:2] == ["step", "loss"]
    assert [line.split(",")[0] for line in lines] == ["0", "2", "3", "5", "6"]
    assert lines[1].endswith(f"float32,{rows[1]['recipe_hash']}")


def test_the_best_evaluation_is_the_one_with_the_lowest_bound():
    last = {"step": 9, "b0_ppl": 5.0, "b0_se": 0.5, "b0_n": 2, "loss": 1.0}
    rows = [{**last, "step": 4, "b0_ppl": 4.0}, last, {"step": 5, "loss": 0.1}]
    assert best(rows)["step"] == 4
    assert best([{"step": 1, "loss": 2.0}]) is None


def test_the_best_checkpoint_is_among_those_that_are_kept_and_named_at_the_end(hopflow, fox, tmp_path, monkeypatch):
    out, found = tmp_path / "run", iter([5.0, 3.0, 4.0, 6.0, 7.0])

    def evaluate(self, step, device):
        value = next(found)
        return HeldOutEvaluation({"b0_ppl": value, "b0_se": 0.1, "b0_n": 2}, [f"drawn at {value}"])

    monkeypatch.setattr(FlowTask, "evaluate", evaluate)
    keys = without("eval_every", "save_every")
    file = tmp_path / "run.json"
    words = (*keys, "steps=5", "save_every=1", "eval_every=1", "keep=1", f"out={out}", "--json", str(file))
    result = hopflow("train", fox, *words)
    assert result.code == 0, result.err
    kept = sorted(folder.name for folder in (out / "checkpoints").iterdir())
    assert kept == ["step-000000002", "step-000000005"]
    best_one = str(out / "checkpoints" / "step-000000002")
    shown = dict(line.split(":", 1) for line in result.out.splitlines())
    assert shown["best"].strip() == f"3 ± 0.1 (n=2), at step 2: hopflow sample {best_one}"
    assert shown["sample"].strip() == "drawn at 7.0"
    assert json.loads(file.read_text())["best_checkpoint"] == best_one
    assert hopflow("sample", best_one, "n=1", "steps=2").code == 0


def test_a_resumed_run_prints_its_step_and_the_expected_time(hopflow, fox, tmp_path):
    words = ("train", fox, *KEYS, f"out={tmp_path / 'run'}")
    first = hopflow(*words, "steps=2").err
    assert "resuming" not in first
    assert re.search(r"expected time .* on cpu with 1 thread: 2 steps of 4 sequences of 16 tokens", first)
    again = hopflow(*words, "steps=5").err
    assert "resuming from step 2 of 5" in again
    assert "3 steps of 4 sequences of 16 tokens" in again
    assert "the run has already finished its 5 steps" in hopflow(*words, "steps=5").err


def test_the_expected_time_names_the_threads_it_was_timed_with_and_those_of_the_run(hopflow, fox, tmp_path):
    shown = hopflow("train", fox, *KEYS, f"out={tmp_path / 'run'}", "steps=1", "threads=2").err
    assert re.search(r"expected time .* on cpu, timed with 1 thread \(the run uses 2\): 1 steps of 4 sequences", shown)


def test_json_holds_the_run_its_hash_and_its_last_and_best_numbers(hopflow, fox, tmp_path):
    file, out = tmp_path / "run.json", tmp_path / "run"
    assert hopflow("train", fox, *KEYS, "steps=2", f"out={out}", "--json", str(file)).code == 0
    content = json.loads(file.read_text())
    assert (content["run"], content["step"]) == (str(out), 2)
    assert content["recipe_hash"] == json.loads((out / "recipe.json").read_text())["recipe_hash"]
    assert content["last"] == content["best"] == read(out / "metrics.jsonl")[-1] | content["last"]
    assert content["last"]["b0_n"] == 2


def test_a_dry_run_prints_memory_and_time_and_writes_no_run(hopflow, fox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = hopflow(
        "train", fox, *without("source"), "source=bag_of_words", "steps=10", "--dry-run", "--json", "plan.json"
    )
    assert result.code == 0
    shown = dict(line.split(":", 1) for line in result.out.splitlines())
    assert list(shown) == ["parameters", "memory", "checkpoint", "text", "training tokens", "time", "coupling"]
    assert shown["training tokens"].split()[0] == "640"
    assert shown["time"].strip().endswith("on cpu with 1 thread")
    assert "less than independent pairs; " in shown["coupling"]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert f"{plan['parameters']:,}" in shown["parameters"]
    assert plan["ot_gain"] > 0 < plan["ot_gain_stderr"]
    assert {name.partition("/")[0] for name in files(tmp_path)} == {"cache", "fox.txt", "plan.json"}


def test_the_same_command_resumes_and_fresh_uses_a_new_folder(hopflow, fox, tmp_path):
    out = tmp_path / "run"
    train = ("train", fox, *KEYS, f"out={out}")
    assert hopflow(*train, "steps=2").code == 0
    before = {name: (out / name).read_bytes() for name in files(out)}
    fresh = hopflow(*train, "steps=2", "--fresh")
    assert fresh.code == 0
    assert f"{out}-2: checkpoints" in fresh.out
    assert {name: (out / name).read_bytes() for name in files(out)} == before
    assert hopflow(*train, "steps=4").code == 0
    assert [row["step"] for row in read(out / "metrics.jsonl")] == [0, 1, 2, 3]


def test_a_run_is_resumed_by_its_folder_alone(hopflow, fox, tmp_path):
    assert hopflow("train", fox, *KEYS, "steps=2", f"out={tmp_path / 'run'}").code == 0
    assert hopflow("train", fox, *KEYS, "steps=4", f"out={tmp_path / 'whole'}").code == 0
    (tmp_path / "run").rename(tmp_path / "moved")
    result = hopflow("train", str(tmp_path / "moved"), "steps=4")
    assert result.code == 0
    losses = [[row["loss"] for row in read(tmp_path / name / "metrics.jsonl")] for name in ("moved", "whole")]
    assert losses[0] == losses[1]


def test_a_recipe_as_toml_is_what_config_show_prints(hopflow, fox, tmp_path):
    shown = hopflow("config", "show", fox, *KEYS, "steps=2", "lr=1e-5", f"out={tmp_path / 'run'}")
    assert shown.code == 0
    keys = tomllib.loads(shown.out)
    assert keys.items() <= asdict(resolve(fox, keys)).items()
    file = tmp_path / "mine.toml"
    file.write_text(shown.out)
    assert resolve(str(file)) == Recipe.read(keys)
    assert resolve(str(file)).lr == 1e-5
    assert hopflow("train", str(file)).code == 0
    assert hopflow("config", "show", str(tmp_path / "run")).out == shown.out  # and a run prints the same again


@pytest.mark.parametrize("name", ["dfm_mmf_256_exact_ema", "morse_sinkhorn_0p1_laptop", "ar"])
def test_config_show_prints_a_recipe_that_can_be_read_back(hopflow, tmp_path, name):
    (tmp_path / "mine.toml").write_text(hopflow("config", "show", name).out)
    assert resolve(str(tmp_path / "mine.toml")) == named(name)


def test_a_text_may_come_through_a_pipe(hopflow, warm, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(FOX.encode())))
    monkeypatch.chdir(tmp_path)
    result = hopflow("train", "-", *KEYS, "steps=1")
    assert result.code == 0
    assert "hopflow sample runs/stdin" in result.out
    assert not any(f"hopflow {command} runs/stdin" in result.out for command in ("train", "eval"))  # the text is gone
    assert read(tmp_path / "runs" / "stdin" / "metrics.jsonl")[0]["step"] == 0


def test_a_corpus_is_trained_on_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "poems").mkdir(parents=True)
    (tmp_path / "data" / "poems" / "a.txt").write_text(FOX)
    for word in ("sotu", "docs", "poems", "hf:some/poems"):
        recipe = resolve(word)
        assert (recipe.data, recipe.base) == (word, "text")
    assert resolve("shakespeare") == named("shakespeare")  # a recipe of that name comes first
    with pytest.raises(ValueError, match="no recipe 'gpt2'"):  # a tokenizer is no text
        resolve("gpt2")


def test_list_shows_every_recipe_with_one_column_per_setting_in_which_recipes_differ(hopflow):
    result = hopflow("list")
    assert result.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line}
    assert {name for name in rows if name in names()} == {name for name in names() if not name.endswith("_laptop")}
    assert rows["dfm_mmf_exact"] == ["exact", "512", "0", "squared_embedding", "-"]
    assert rows["dfm_mmf_exact_ot4096"] == ["exact", "4096", "0", "squared_embedding", "-"]
    assert rows["dfm_b_exact_ema"] == ["exact", "0.99999"]
    assert rows["dfm_mmf_learned_cost"] == ["exact", "512", "0", "one_step_likelihood", "-"]
    assert rows["dfm_s"] == ["mask", "bound:0", "128", "transformer", "-"]
    assert rows["ar"] == ["-", "-", "128", "causal", "-"]
    assert rows["morse_exact"] == ["exact", "morse", "-"]
    text = " ".join(result.out.split())
    assert "optimal transport (400,000 steps, size=small, source=multimask)" in text
    assert "Add _laptop to a name for a small version" in result.out


def test_list_fits_a_terminal_of_80_columns(hopflow, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, hopflow("list").out.splitlines())) <= 80


def test_config_diff_prints_the_keys_that_differ_and_nothing_else(hopflow):
    result = hopflow("config", "diff", "dfm_b_exact", "dfm_b_exact_ema")
    assert result.code == 0
    assert result.out.splitlines() == ["ot_ema: 0.0 | 0.99999", "name: dfm_b_exact | dfm_b_exact_ema"]
    assert hopflow("config", "diff", "ar", "ar").out == ""
    assert "compile: false | true" in hopflow("config", "diff", "text", "text_gpu").out.splitlines()


def test_config_keys_lists_every_key_with_its_meaning(hopflow):
    result = hopflow("config", "keys")
    assert result.code == 0
    learned, _, runs = result.out.partition(
        "How it runs (may change on resume, except the text, predict_x0 and labels):"
    )
    legend, heading, learned = learned.partition(
        "What is learned (a resumed run must keep these, but steps may be raised):"
    )
    assert "marked Recipe" in " ".join(legend.split())  # the legend comes before the defaults it explains
    assert heading
    keys = [
        line.split()[0] for part in (learned, runs) for line in part.splitlines() if re.match(r"[a-z_0-9]+  ", line)
    ]
    assert sorted(set(keys) - {"setting"}) == sorted(asdict(Recipe()))
    assert "\nlr  " in learned
    assert "\ndevice  " in runs


@pytest.mark.parametrize(
    "words", [("train", "morse_exakt"), ("config", "show", "morse_exakt"), ("config", "diff", "morse_exakt", "ar")]
)
def test_a_recipe_that_is_not_there_is_named_with_the_nearest(hopflow, words):
    result = hopflow(*words)
    assert (result.code, result.out) == (2, "")
    assert "did you mean 'morse_exact'" in result.message


# -- signs of life -----------------------------------------------------------------------------------------------------


def test_progress_is_printed_while_no_step_ends(monkeypatch, capsys):
    monkeypatch.setattr(training_log, "QUIET", 0.04)
    with training_log.training(console(stderr=True), Recipe(steps=10)) as log:
        said = ""
        log.step(3, 10)  # where an earlier call had stopped
        while "computing the first step (0 s)" not in said:
            said += capsys.readouterr().err
        log.step(4, 10)
        while "step 4/10 done, evaluating or saving …" not in said:
            said += capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(training_log, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_remaining_time_counts_the_steps_of_this_process_only(clock):
    log = training_log.TrainingLog(100, lambda text: None)
    clock.now += 50.0  # reading a checkpoint is no step
    for done in (50, 51, 52, 53, 54):
        log.step(done, 100)
        clock.now += 2.0
    clock.now -= 2.0
    assert log.now() == "step 54/100, 1 min 32 s left"
    clock.now += 3.0
    assert log.now() == "step 54/100, 1 min 29 s left"  # it goes on while a step is under way


ROW = {"step": 6, "loss": 1.0, "grad_norm": 0.5, "tokens_per_s": 1000.0, "memory_bytes": 2**20}


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=width, _environ={})


def bar(screen: Console) -> str:
    """What stands beside the bar when it was drawn last."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue()).rpartition("━")[2].strip()


def test_the_progress_bar_of_a_resumed_run_starts_at_its_step(clock):
    screen = terminal()
    with training_log.training(screen, Recipe(steps=10)) as log:
        log.step(6, 10)
        log.bar.refresh()
        assert bar(screen) == "6/10"  # neither 0/10 nor a speed that counts steps of an earlier call
        clock.now += 2.0
        log.row({**ROW, "jumps": 3.0, "jumps_se": 0.1, "jumps_n": 5})
        log.step(7, 10)
        log.bar.refresh()
        assert bar(screen) == "7/10  1,000 tok/s  6.0 s left"
        clock.now += 6.0
        log.step(10, 10)
    said = screen.file.getvalue()
    assert "step  7/10  loss 1.0000  grad norm 0.50  1,000 tok/s  1.0 MiB" in said
    assert "hops: 3.00 ± 0.1 per sample (n=5)" in said
    assert bar(screen) == "10/10  1,000 tok/s  in 8.0 s"


def test_the_error_of_a_single_sample_is_unknown():
    row = {"jumps": 3.0, "jumps_se": 0.0, "jumps_n": 1}
    assert training_log.evaluation_results(row) == {"hops": "3.00 ± ? per sample (n=1)"}
    assert training_log.evaluation_results({**row, "jumps_se": None}) == training_log.evaluation_results(row)
    assert training_log.evaluation_results({**row, "jumps_n": 2}) == {"hops": "3.00 ± 0 per sample (n=2)"}


def test_a_narrow_terminal_keeps_the_step_and_the_time_in_one_line(clock):
    screen = terminal(width=40)
    with training_log.training(screen, Recipe(steps=200_000)) as log:
        log.step(0, 200_000)
        clock.now += 1.0
        log.row(ROW)
        log.step(1, 200_000)
        log.bar.refresh()
        assert bar(screen) == "1/200000  2 d 7 h left"


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_that_are_asked_for_put_no_bar_into_a_log_file(hopflow, fox, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    result = hopflow("train", fox, *KEYS, "steps=2", f"out={tmp_path / 'run'}")
    assert result.code == 0
    assert "\x1b[?25l" not in result.err  # nothing hid the cursor
    assert [line.partition("  ")[0] for line in result.err.splitlines() if "loss" in line] == ["step 1/2", "step 2/2"]


def test_a_dumb_terminal_gets_plain_lines(capsys, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with training_log.training(screen, Recipe(steps=10)) as log:
        log.step(0, 10)
        log.row(ROW)
    assert screen.file.getvalue() == ""
    assert capsys.readouterr().err == "step  7/10  loss 1.0000  grad norm 0.50  1,000 tok/s  1.0 MiB\n"


@pytest.mark.parametrize("interactive", [False, True])
def test_a_process_that_is_not_the_first_prints_plain_lines_with_its_rank(capfd, interactive):
    screen = terminal()
    screen.is_interactive = interactive
    with training_log.training(screen, Recipe(steps=30, log_every=10, device="cpu"), rank=3) as log:
        for done in range(8, 31):
            log.step(done, 30)
    lines = capfd.readouterr().err.replace("\r", "").splitlines()
    assert [line.rpartition("  ")[0] for line in lines] == [f"rank 3: step {n}/30" for n in (10, 20, 30)]
    assert all(line.endswith(("MiB", "GiB")) for line in lines)
    assert screen.file.getvalue() == ""  # no second bar


def test_speed_and_time_of_a_resumed_run_leave_out_the_pause(fox, tmp_path, monkeypatch):
    now, told, update = SimpleNamespace(seconds=100.0), [], Trainer.update

    def clock() -> float:
        return now.seconds

    def half_a_second(self: Trainer, step: int, **options: object) -> None:
        update(self, step, **options)
        now.seconds += 0.5

    def stop_after_six(done: int, steps: int) -> None:
        told.append(done)
        if done == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=clock, monotonic=clock))
    monkeypatch.setattr(Trainer, "update", half_a_second)
    keys = {word.partition("=")[0]: word.partition("=")[2] for word in KEYS}
    recipe = resolve(fox, {**keys, "steps": "14", "log_every": "4", "out": str(tmp_path / "run")})
    with pytest.raises(Interrupted):
        build(recipe).train(progress=stop_after_six)
    now.seconds += 3600
    build(recipe).train(progress=lambda done, steps: told.append(done))
    assert told == [*range(7), *range(6, 15)]
    rows = read(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 3, 7, 11, 13]
    assert [row["tokens_per_s"] for row in rows] == [4 * 16 / 0.5] * 5
    assert [row["seconds"] for row in rows] == [0.5, 2.0, 4.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.017, "17 ms"), (3.44, "3.4 s"), (59.6, "60 s"), (61, "1 min 1 s"), (3700, "1 h 1 min"), (90000, "1 d 1 h")],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_a_device_that_is_not_here_is_refused_before_the_text_is_read(hopflow, tmp_path):
    result = hopflow("train", tmp_path / "nowhere.txt", "device=gpu")
    assert result.code == 2
    assert result.err.startswith("hopflow: device must be auto or one of cpu,")
