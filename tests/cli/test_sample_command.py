"""hopflow sample and infill: what they draw, print, write and refuse."""

import errno
import io
import json
import re
import sys
from pathlib import Path

import commands
import pytest
import torch
from rich.console import Console
from saved_networks import LENGTH, LETTERS, SMALL, refused, rows
from terminals import terminal

import hopflow as hf
from hopflow.cli import draw_samples, sample_output, sampling_log, trained_network
from hopflow.cli.build_sampler import sampling_options
from hopflow.cli.command_settings import SampleSettings
from hopflow.cli.sample_output import DrawnSamples
from hopflow.cli.settings_parser import parse_settings
from hopflow.data.documents import ReadStatistics, read
from hopflow.data.tokenizers import END
from hopflow.system import atomic
from hopflow.system.safe_text import harmless


@pytest.fixture
def full(monkeypatch):
    """A disk without room."""

    def refuse(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "write", refuse)


@pytest.fixture(autouse=True)
def in_the_folder_of_networks(saved_networks, monkeypatch):
    monkeypatch.chdir(saved_networks)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_sample_prints_only_the_texts_on_stdout(hopflow, saved_networks):
    result = hopflow("sample", "masks", "n=3", "steps=5", "seed=2")
    kept = hf.from_pretrained(saved_networks / "masks")
    out = hf.generate(kept.model, kept.flow, n=3, length=LENGTH, steps=5, seed=2)
    assert result.code == 0
    assert result.out == f"\n{END}\n".join(out.text(kept.tokenizer)) + "\n"


@pytest.mark.parametrize("name", ["masks", "letters"])
def test_the_jsonl_file_of_sample_equals_the_result_of_generate(hopflow, saved_networks, tmp_path, name):
    file = tmp_path / "a.jsonl"
    result = hopflow(
        "sample", name, "n=5", "steps=7", "seed=3", "eta=1", "temperature=0.8", "top_k=9", "--out", str(file)
    )
    assert (result.code, result.out) == (0, "")
    kept = hf.from_pretrained(saved_networks / name)
    out = hf.generate(kept.model, kept.flow, n=5, length=LENGTH, steps=7, seed=3, eta=1.0, temperature=0.8, top_k=9)
    beside = {"sampler": "7 Euler steps", "steps": 7, "eta": 1.0, "temperature": 0.8, "top_k": 9, "top_p": None}
    beside |= {"min_p": None, "draw": "categorical", "seed": 3, "dtype": "float32"}
    assert rows(file) == [
        {
            "index": i,
            "text": out.text(kept.tokenizer)[i],
            "tokens": out.tokens[i].tolist(),
            "calls": int(out.calls[i]),
            "jumps": int(out.jumps[i]),
            "redraws": int(out.redraws[i].sum()),
            **beside,
        }
        for i in range(5)
    ]


def test_the_batch_size_of_sample_changes_no_token(hopflow, tmp_path):
    found = []
    for batch in ("1", "3", "64"):
        assert hopflow("sample", "letters", "n=5", f"batch={batch}", "--out", str(tmp_path / "a.jsonl")).code == 0
        found.append((tmp_path / "a.jsonl").read_text())
    assert found[0] == found[1] == found[2]


def test_another_seed_draws_other_texts(hopflow):
    texts = {hopflow("sample", "letters", f"seed={seed}").out for seed in (0, 1, 0)}
    assert len(texts) == 2


def test_a_text_file_is_read_back_as_the_same_documents(hopflow, tmp_path):
    file = tmp_path / "a.txt"
    assert hopflow("sample", "letters", "n=40", "cut=true", "--out", str(file)).code == 0
    assert hopflow("sample", "letters", "n=40", "cut=true", "--out", str(tmp_path / "a.jsonl")).code == 0
    texts = [row["text"] for row in rows(tmp_path / "a.jsonl")]
    assert any(text.startswith("\n") for text in texts)
    assert any(text.endswith("\n") for text in texts)
    assert [piece.text for piece in read([file], ReadStatistics())] == [text for text in texts if text.strip()]
    assert sample_output.END == END


def test_cut_prints_texts_up_to_end_of_text(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    assert hopflow("sample", "letters", "n=40", "--out", str(file)).code == 0
    whole = rows(file)
    assert hopflow("sample", "letters", "n=40", "cut=true", "--out", str(file)).code == 0
    assert any(END in row["text"] for row in whole)
    assert [row["text"] for row in rows(file)] == [row["text"].partition(END)[0] for row in whole]
    assert [row["tokens"] for row in rows(file)] == [row["tokens"] for row in whole]


def test_the_summary_of_sample_shows_numbers_with_errors_and_settings(hopflow, tmp_path):
    result = hopflow(
        "sample", "masks", "n=6", "steps=9", "top_p=0.9", "draw=gumbel32", "--json", str(tmp_path / "a.json")
    )
    assert result.facts["sequences"].startswith("6 of 12 tokens in ")
    assert result.facts["sequences"].endswith("per second on cpu, float32")
    assert result.facts["hops"] == "12.00 ± 0 per sequence (n=6, 9 Euler steps, η = 0)"
    assert re.fullmatch(r"\d\.\d\d ± 0\.\d+ per sequence \(n=6, 9 Euler steps, η = 0\)", result.facts["network calls"])
    assert result.facts["settings"] == "seed 0, top_p 0.9, draw gumbel32"
    content = json.loads((tmp_path / "a.json").read_text())
    assert (content["n"], content["longest"], content["draw"], content["device"]) == (6, LENGTH, "gumbel32", "cpu")
    assert [row["quantity"] for row in content["rows"]] == ["calls", "jumps", "redraws", "sequences_per_s"]
    jumps = content["rows"][1]
    assert jumps == {
        "run": "masks",
        "set": None,
        "quantity": "jumps",
        "value": 12.0,
        "stderr": 0.0,
        "unit": "hops per sequence",
        "n": 6,
        "is_bound": False,
        "eta": 0.0,
        "steps": 9,
        "dtype": "float32",
        "recipe_hash": None,
    }


def test_a_single_sequence_has_no_standard_error(hopflow, tmp_path):
    result = hopflow("sample", "masks", "n=1", "--json", str(tmp_path / "a.json"))
    assert result.facts["hops"].startswith("12.00 per sequence (n=1")
    assert json.loads((tmp_path / "a.json").read_text())["rows"][1]["stderr"] is None


def test_a_clock_that_does_not_move_during_sampling(hopflow, monkeypatch):
    monkeypatch.setattr(draw_samples.time, "perf_counter", lambda: 5.0)
    assert hopflow("sample", "masks", "n=1", "steps=1").code == 0


@pytest.mark.parametrize(
    ("words", "label", "steps"),
    [
        (["grid=cosine", "steps=4"], "4 Euler steps on CosineGrid", 4),
        (["grid=0,0.3,1"], "2 Euler steps at 0, 0.3", 2),
        (["sampler=random_order"], "random order, exact in continuous time", None),
        (["sampler=random_order", "per_call=4"], "random order, 4 positions per call, approximate", None),
        (["sampler=confidence:4"], "by confidence, 4 positions per call", None),
        (["sampler=entropy_bound:0.5"], "by entropy, at most 0.5 nats per call", None),
    ],
)
def test_the_sampler_is_the_one_that_was_asked_for(hopflow, tmp_path, words, label, steps):
    assert hopflow("sample", "masks", "n=1", *words, "--out", str(tmp_path / "a.jsonl")).code == 0
    (row,) = rows(tmp_path / "a.jsonl")
    assert (row["sampler"], row["steps"]) == (label, steps)
    if steps is None:
        calls = {"random order, exact in continuous time": LENGTH}
        assert label.startswith("by entropy") or row["calls"] == calls.get(label, LENGTH / 4)


def test_settings_of_sample_become_keywords_of_generate():
    words = ["eta=0.5", "seed=3", "batch=2", "compile=true", "top_p=0.5", "draw=gumbel32", "steps=3"]
    told = sampling_options(parse_settings(words, SampleSettings))
    passed = {"eta": 0.5, "seed": 3, "batch": 2, "compile": True, "top_p": 0.5}
    assert told == {**passed, "draw": hf.gumbel32, "sampler": hf.Euler(3)}


def test_samples_in_bf16_are_labelled_bf16(hopflow, tmp_path):
    result = hopflow("sample", "masks", "n=2", "precision=bf16", "--out", str(tmp_path / "a.jsonl"))
    assert result.facts["sequences"].endswith("on cpu, bf16")
    assert {row["dtype"] for row in rows(tmp_path / "a.jsonl")} == {"bf16"}


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """One run of the command line, and one of `hf.train`, whose recipe knows no length."""
    home = tmp_path_factory.mktemp("runs")
    (home / "fox.txt").write_text(commands.FOX)
    keys = [*commands.SMALL, "steps=1", "workers=0", "coupling=independent", "ot_ema=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        assert commands.exit_code("train", home / "fox.txt", *keys, f"out={home / 'run'}") == 0
        corpus = hf.data.load(home / "fox.txt", tokens="char", length=10, holdout=0.1)
        flow = hf.Flow(hf.Uniform(hf.Vocab(corpus.vocab_size)))
        hf.train(
            hf.Transformer(flow.vocab, SMALL),
            flow,
            corpus,
            out=home / "own",
            steps=1,
            batch=4,
            workers=0,
            eval_samples=0,
        )
    return home


@pytest.mark.parametrize(("name", "length"), [("run", 16), ("own", 10)])
def test_a_run_and_its_checkpoint_know_their_length_and_hash(hopflow, runs, tmp_path, name, length):
    digest = json.loads((runs / name / "recipe.json").read_text())["recipe_hash"]
    newest = runs / name / "checkpoints" / "step-000000001"
    for folder in (runs / name, newest):
        assert hopflow("sample", str(folder), "n=1", "--json", str(tmp_path / "a.json")).code == 0
        content = json.loads((tmp_path / "a.json").read_text())
        assert (content["run"], content["recipe_hash"], content["longest"]) == (str(newest), digest, length)


def test_a_longer_length_is_drawn_with_a_note(hopflow):
    result = hopflow("sample", "masks", "n=1", "length=20")
    assert result.code == 0
    assert "note: the network was trained on sequences of 12 tokens, not longer ones" in result.err
    assert result.facts["sequences"].startswith("1 of 20 tokens")
    assert hopflow("sample", "masks-without-length", "n=1", "length=20").code == 0


def test_a_causal_network_draws_token_by_token(hopflow, saved_networks, tmp_path):
    words = ("sample", "causal", "n=70", "temperature=0.7", "seed=1")
    assert hopflow(*words, "--out", str(tmp_path / "a.jsonl")).code == 0
    found = rows(tmp_path / "a.jsonl")
    model, generator = hf.from_pretrained(saved_networks / "causal").model, torch.Generator().manual_seed(1)
    expected = torch.cat([model.generate(n, LENGTH, generator, 0.7) for n in (64, 6)])
    assert [row["tokens"] for row in found] == expected.tolist()
    assert found[0] == {
        "index": 0,
        "text": LETTERS.decode(expected[0].tolist()),
        "tokens": expected[0].tolist(),
        "calls": LENGTH,
        "sampler": "token by token",
        "seed": 1,
        "temperature": 0.7,
        "dtype": "float32",
    }
    assert hopflow(*words, "cut=true", "--out", str(tmp_path / "b.jsonl")).code == 0
    assert [row["text"] for row in rows(tmp_path / "b.jsonl")] == [row["text"].partition(END)[0] for row in found]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["masks", "stps=3"], "did you mean 'steps'?"),
        (["masks", "n=0"], "n must be an integer ≥ 1, got 0."),
        (["masks", "n=x"], "n must be an integer ≥ 1, got x."),
        (["masks", "steps=0"], "steps must be an integer from 1 to 1048576, got 0."),
        (["masks", "device=meta"], "device must be auto or one of cpu"),
        (["masks", "n=-1"], "n must be an integer ≥ 1, got -1."),
        (["masks", "top_p=0"], "top_p must be a number > 0 and ≤ 1, got 0."),
        (["masks", "top_p=1.5"], "top_p must be a number > 0 and ≤ 1, got 1.5."),
        (["masks", "top_p=nan"], "top_p must be a number > 0 and ≤ 1, got nan."),
        (["masks", "top_k=0"], "top_k must be an integer ≥ 1, got 0."),
        (["masks", "min_p=2"], "min_p must be a number from 0 to 1, got 2."),
        (["masks", "temperature=-1"], "temperature must be a number ≥ 0, got -1."),
        (["masks", "temperature=hot"], "temperature must be a number ≥ 0, got hot."),
        (["masks", "eta=-1"], "eta must be a number ≥ 0, got -1."),
        (["masks", "length=0"], "length must be an integer from 1 to 1048576, got 0."),
        (["masks", "batch=0"], "batch must be an integer ≥ 1, got 0."),
        (["masks", "cut=yes"], "cut must be true or false, got yes."),
        (["masks", "grid=cosin"], "did you mean 'cosine'?"),
        (["masks", "grid=0,1,0.5"], "times must increase from 0 to 1"),
        (["masks", "grid=0,x,1"], "grid must be even, cosine, or times from 0 to 1 such as 0,0.3,1, got 0,x,1."),
        (["masks", "grid=0,0.5,1", "steps=3"], "2 steps, not 3"),
        (["masks", "per_call=2"], "sampler=random_order"),
        (["masks", "sampler=random_order", "steps=4"], "steps is a setting of sampler=euler"),
        (["masks", "sampler=random_order", "eta=1"], "no corrector"),
        (["masks", "sampler=random_order", "per_call=0"], "per_call must be an integer ≥ 1, got 0."),
        (["letters", "sampler=random_order"], "disjoint source"),
        (["letters", "sampler=confidence:4"], "Confidence needs a disjoint source"),
        (["masks", "sampler=confidence:0"], "must be an integer ≥ 1, got 0."),
        (["masks", "sampler=confidence:x"], "'x' is not a number"),
        (["masks", "sampler=entropy_bound", "eta=1"], "EntropyBound has no corrector"),
        (["masks", "sampler=margin", "steps=4"], "sampler=margin takes k after a colon"),
        (["masks", "device=abacus"], "device must be auto or one of cpu"),
        (["masks", "precision=fp16"], "'bf16'"),
        (["masks", "--out", "a.csv"], ".txt (text) or .jsonl"),
        (["masks", "--out", "nowhere/a.txt"], "its folder does not exist"),
        (["masks", "--json", "."], "this is a folder, not a file"),
        (["nowhere"], "there is no folder nowhere"),
        (["mask"], "did you mean 'masks'?"),
        (["."], ". is not the folder of a run or of a saved network, but contains causal, "),
        (["masks/config.json"], "is a file, not the folder of a run"),
        (["masks-without-length"], "length=128"),
        (["without-flow"], "saved without a flow"),
        (["without-tokenizer"], "saved without a tokenizer"),
        (["own-module"], "without its constructor arguments"),
        (["damaged-weights"], "model.safetensors is damaged"),
        (["damaged-config"], "config.json is damaged"),
        (["causal", "steps=3"], "its settings are n, length, seed, temperature, cut, device"),
        (["causal", "--watch"], "--watch does not apply to an autoregressive network"),
        ([], "RUN"),
    ],
)
def test_an_invalid_sample_command_is_one_message_and_exit_2(hopflow, words, message):
    refused(hopflow("sample", *words), message)


def test_a_missing_run_hints_at_a_folder_of_the_same_name(hopflow, tmp_path, monkeypatch):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'runs/first'?" in hopflow("sample", "first").err
    assert "did you mean 'runs/first'?" in hopflow("infill", "runs/frist", "a[MASK]").err


# -- Ctrl-C and the terminal -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sample", "infill", "causal"])
def test_ctrl_c_writes_the_finished_sequences_and_exits_with_4(command, hopflow, saved_networks, tmp_path, monkeypatch):
    words = {
        "sample": ("sample", str(saved_networks / "masks"), "n=12", "batch=1"),
        "infill": ("infill", str(saved_networks / "masks"), "a[MASK:4]", "b[MASK:3]", "n=8", "batch=1"),
        "causal": ("sample", str(saved_networks / "causal"), "n=12"),
    }[command]
    monkeypatch.setattr("hopflow.models.causal.PIECE", 4)
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert hopflow(*words, "--out", str(whole)).code == 0
    step = sampling_log.SamplingLog.step

    def interrupt(log, done, count):
        step(log, done, count)
        if done > {"sample": 9, "infill": 13, "causal": 7}[command]:  # a causal one finishes some before it says so
            raise KeyboardInterrupt

    monkeypatch.setattr(sampling_log.SamplingLog, "step", interrupt)
    ended = hopflow(*words, "--out", str(part), "--json", str(tmp_path / "part.json"))
    assert ended.code == 4
    finished, asked = (12, 16) if command == "infill" else (8, 12)
    assert f"interrupted: {finished} of {asked} sequences were drawn" in ended.err
    assert "per second" not in ended.err
    assert "bug" not in ended.err
    rows, all_rows = ([json.loads(line) for line in file.read_text().splitlines()] for file in (part, whole))
    # the shorter prompts first, which were asked for last
    assert rows == (all_rows[:4] + all_rows[8:] if command == "infill" else all_rows[:8])
    content = json.loads((tmp_path / "part.json").read_text())
    assert (content["n"], content["asked"]) == (finished, asked)
    assert "sequences_per_s" not in {row["quantity"] for row in content["rows"]}


@pytest.mark.parametrize(("seen", "printed"), [(True, ""), (False, "hi\n")])
def test_texts_that_a_replay_has_shown_are_not_printed_again(monkeypatch, capsys, saved_networks, seen, printed):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    how = {"sampler": "by hand", "seed": 0, "dtype": "float32"}
    draw_samples.write_samples(
        DrawnSamples(["hi"], [[1]], {}, how, trained_network.load(str(saved_networks / "masks")), 1.0, [0], 1),
        None,
        None,
        seen,
    )
    assert capsys.readouterr().out == printed


# -- progress ----------------------------------------------------------------------------------------------------------


def test_control_characters_become_visible_symbols():
    text = "a\n\t\x1b[2J\x00\x7f\x9b\u202eb\u2028\u200bé世😀"
    assert harmless(text) == "a⏎␉␛[2J␀␡\ufffd\ufffdb\ufffd\ufffdé世😀"
    assert harmless(text, "\n\t").startswith("a\n\t␛")


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\n␛[2J\n"), (False, "a\n\x1b[2J\n")])
def test_control_characters_are_replaced_on_a_terminal_only(monkeypatch, capsys, is_terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    sample_output._print("a\n\x1b[2J")
    assert capsys.readouterr().out == shown


def test_sampling_in_a_pipe_prints_progress_with_the_speed(monkeypatch, capsys):
    monkeypatch.setattr(sampling_log, "QUIET", 0.04)
    said = ""
    with sampling_log.sampling(Console(file=io.StringIO()), 10) as progress:
        while "drawing 10 sequences (0 s)" not in said:
            said += capsys.readouterr().err
        progress(5, 10)
        while not re.search(r"5 of 10 sequences, [\d.,]+ per second, .* left", said):
            said += capsys.readouterr().err


def test_the_progress_bar_of_sampling_disappears_at_the_end():
    screen = terminal()
    with sampling_log.sampling(screen, 10) as progress:
        progress(4, 10)
    said = screen.file.getvalue()
    assert "4/10" in said
    assert "per second" in said
    assert said.endswith("\x1b[2K")  # the line is cleared


@pytest.mark.parametrize(("rate", "text"), [(0.01234, "0.0123"), (12.34, "12.3"), (1234.5, "1,234")])
def test_speeds_have_three_digits(rate, text):
    assert sampling_log.speed(rate) == f"{text} per second"


def test_on_a_full_disk_the_texts_are_printed(saved_networks, tmp_path, hopflow, full):
    file = tmp_path / "drawn.txt"
    result = hopflow("sample", str(saved_networks / "masks"), "n=2", "steps=2", "--out", str(file))
    assert result.code == 3
    assert f"{file}: No space left on device" in result.err
    assert f"\n{END}\n" in result.out


def test_on_a_full_disk_the_results_are_printed(tmp_path, hopflow, full):
    result = hopflow("oracle", "analysis=first", "--json", str(tmp_path / "rows.json"))
    assert result.code == 3
    assert "No space" in result.err
    assert "first analysis" in result.out


def test_a_folder_that_contains_runs_is_refused_with_their_names(hopflow, tmp_path):
    home, run = tmp_path / "runs", tmp_path / "runs" / "fox"
    (run / "checkpoints").mkdir(parents=True)
    assert f"{home} is not the folder of a run or of a saved network, but contains {run}" in hopflow("sample", home).err
    assert f"there is no folder {home / 'hen'}; {home} contains {run}" in hopflow("sample", home / "hen").err
    (run / "recipe.json").write_text("{}")
    assert f"{run} has no checkpoint yet: hopflow train {run} writes one" in hopflow("sample", run).err
    (home / "empty").mkdir()
    assert hopflow("sample", home / "empty").err.endswith("empty is not the folder of a run or of a saved network\n")
