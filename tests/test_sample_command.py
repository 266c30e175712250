"""hopflow sample and infill: what they draw, print, write and refuse."""

import errno
import io
import json
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

import commands
import hopflow as hf
from hopflow import atomic, cli
from hopflow.cli import drawing, drawn, sampling_log, saved
from hopflow.cli import watch as watching
from hopflow.cli.drawn import Drawn
from hopflow.cli.how import READERS, how
from hopflow.cli.watch import HOPPING, NOISE, PROMPT, SETTLED, Replay, watch
from hopflow.cli.words import parse_settings
from hopflow.data.making import from_text
from hopflow.data.pulse import Pulse
from hopflow.data.reading import Piece, Tally, read
from hopflow.data.tokenizers import END, Characters
from hopflow.symbols import harmless

LETTERS = Characters("\n abcdefghijklm", ends=True)
SMALL = hf.Size(layers=1, width=16, heads=2)
LENGTH = 12


@pytest.fixture
def full(monkeypatch):
    """A disk without room."""

    def refuse(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "write", refuse)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Saved networks that were never trained: two flows, a causal one, and some that lack something."""
    home = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    recipe = {"length": LENGTH}
    for name, source in {
        "masks": hf.MultiMask(hf.Vocab(LETTERS.size, 3)),
        "letters": hf.Uniform(hf.Vocab(LETTERS.size)),
    }.items():
        network = shaken(hf.Transformer(source.vocab, SMALL))
        hf.save_pretrained(home / name, network, hf.Flow(source), tokenizer=LETTERS, recipe=recipe)
        hf.save_pretrained(home / f"{name}-without-length", network, hf.Flow(source), tokenizer=LETTERS)
    hf.save_pretrained(home / "without-flow", network, tokenizer=LETTERS, recipe=recipe)
    hf.save_pretrained(home / "without-tokenizer", network, hf.Flow(source), recipe=recipe)
    hf.save_pretrained(home / "own-module", nn.Linear(2, 2), hf.Flow(source), tokenizer=LETTERS)
    hf.save_pretrained(home / "causal", shaken(hf.Causal(LETTERS.size, SMALL)), tokenizer=LETTERS, recipe=recipe)
    for name, file in {"damaged-weights": "model.safetensors", "damaged-config": "config.json"}.items():
        hf.save_pretrained(home / name, network, hf.Flow(source), tokenizer=LETTERS, recipe=recipe)
        content = bytearray((home / name / file).read_bytes())
        content[len(content) // 2] ^= 1
        (home / name / file).write_bytes(content)
    return home


def shaken(network: nn.Module) -> nn.Module:
    """A new network finds all tokens equally likely; this one does not."""
    nn.init.normal_(network.head.weight)
    return network


@pytest.fixture
def hopflow(home, tmp_path, monkeypatch, capsys):
    """Run a command beside the saved networks: its exit code and what it said, and where it may write."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        facts = dict(re.findall(r"^([a-z ]+): +(.*)$", err, re.MULTILINE))
        return SimpleNamespace(code=end.value.code, out=out, err=err, facts=facts)

    return command


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_stdout_holds_the_texts_and_nothing_else(hopflow, home):
    result = hopflow("sample", "masks", "n=3", "steps=5", "seed=2")
    kept = hf.from_pretrained(home / "masks")
    out = hf.generate(kept.model, kept.flow, n=3, length=LENGTH, steps=5, seed=2)
    assert result.code == 0
    assert result.out == f"\n{END}\n".join(out.text(kept.tokenizer)) + "\n"


@pytest.mark.parametrize("name", ["masks", "letters"])
def test_json_lines_hold_what_generate_gives(hopflow, home, tmp_path, name):
    file = tmp_path / "a.jsonl"
    result = hopflow(
        "sample", name, "n=5", "steps=7", "seed=3", "eta=1", "temperature=0.8", "top_k=9", "--out", str(file)
    )
    assert (result.code, result.out) == (0, "")
    kept = hf.from_pretrained(home / name)
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


def test_the_batch_changes_no_token(hopflow, tmp_path):
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
    assert [piece.text for piece in read([file], Tally())] == [text for text in texts if text.strip()]
    assert drawn.END == END


def test_a_text_is_cut_at_its_end_when_asked(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    assert hopflow("sample", "letters", "n=40", "--out", str(file)).code == 0
    whole = rows(file)
    assert hopflow("sample", "letters", "n=40", "cut=true", "--out", str(file)).code == 0
    assert any(END in row["text"] for row in whole)
    assert [row["text"] for row in rows(file)] == [row["text"].partition(END)[0] for row in whole]
    assert [row["tokens"] for row in rows(file)] == [row["tokens"] for row in whole]


def test_the_summary_says_how_every_number_came_about(hopflow, tmp_path):
    result = hopflow(
        "sample", "masks", "n=6", "steps=9", "top_p=0.9", "draw=gumbel32", "--json", str(tmp_path / "a.json")
    )
    assert result.facts["sequences"].startswith("6 of 12 tokens in ")
    assert result.facts["sequences"].endswith("per second on cpu, float32")
    assert result.facts["hops"] == "12.00 ± 0 per sequence (n=6, 9 Euler steps, eta 0)"
    assert re.fullmatch(r"\d\.\d\d ± 0\.\d+ per sequence \(n=6, 9 Euler steps, eta 0\)", result.facts["network calls"])
    assert result.facts["random numbers"] == "seed 0, top_p 0.9, draw gumbel32"
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


def test_one_sequence_has_no_error(hopflow, tmp_path):
    result = hopflow("sample", "masks", "n=1", "--json", str(tmp_path / "a.json"))
    assert result.facts["hops"].startswith("12.00 per sequence (n=1")
    assert json.loads((tmp_path / "a.json").read_text())["rows"][1]["stderr"] is None


@pytest.mark.parametrize(
    ("words", "label", "steps"),
    [
        (["grid=cosine", "steps=4"], "4 Euler steps on CosineGrid", 4),
        (["grid=0,0.3,1"], "2 Euler steps on GivenGrid", 2),
        (["sampler=random_order"], "random order, exact in continuous time", None),
        (["sampler=random_order", "per_call=4"], "random order, 4 positions a call, approximate", None),
    ],
)
def test_the_sampler_is_the_one_that_was_asked_for(hopflow, tmp_path, words, label, steps):
    assert hopflow("sample", "masks", "n=1", *words, "--out", str(tmp_path / "a.jsonl")).code == 0
    (row,) = rows(tmp_path / "a.jsonl")
    assert (row["sampler"], row["steps"]) == (label, steps)
    if steps is None:
        assert row["calls"] == (LENGTH if len(words) == 1 else LENGTH / 4)


def test_what_generate_takes_is_passed_on():
    words = ["eta=0.5", "seed=3", "batch=2", "compile=true", "top_p=0.5", "draw=gumbel32", "steps=3"]
    told = how(parse_settings(words, READERS))
    passed = {"eta": 0.5, "seed": 3, "batch": 2, "compile": True, "top_p": 0.5}
    assert told == {**passed, "draw": hf.gumbel32, "sampler": hf.Euler(3)}


def test_bf16_is_labelled(hopflow, tmp_path):
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
        patch.setattr(sys, "argv", ["hopflow", "train", str(home / "fox.txt"), *keys, f"out={home / 'run'}"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
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
    assert "note: trained on sequences of 12 tokens" in result.err
    assert result.facts["sequences"].startswith("1 of 20 tokens")
    assert hopflow("sample", "masks-without-length", "n=1", "length=20").code == 0


def test_a_causal_network_draws_token_by_token(hopflow, home, tmp_path):
    words = ("sample", "causal", "n=70", "temperature=0.7", "seed=1")
    assert hopflow(*words, "--out", str(tmp_path / "a.jsonl")).code == 0
    found = rows(tmp_path / "a.jsonl")
    model, generator = hf.from_pretrained(home / "causal").model, torch.Generator().manual_seed(1)
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
        (["masks", "n=0"], "from 1 on"),
        (["masks", "n=x"], "a whole number"),
        (["masks", "steps=0"], "at least one step"),
        (["masks", "device=meta"], "device=meta cannot be used here: it is none of cpu"),
        (["masks", "n=-1"], "from 1"),
        (["masks", "top_p=0"], "top_p is a probability in (0, 1]"),
        (["masks", "top_p=1.5"], "top_p is a probability in (0, 1]"),
        (["masks", "top_p=nan"], "a number is expected"),
        (["masks", "top_k=0"], "at least 1"),
        (["masks", "min_p=2"], "in [0, 1]"),
        (["masks", "temperature=-1"], "temperature must be ≥ 0"),
        (["masks", "temperature=hot"], "a number is expected"),
        (["masks", "eta=-1"], "0 or more"),
        (["masks", "length=0"], "a number of tokens from 1"),
        (["masks", "batch=0"], "from 1 on"),
        (["masks", "cut=yes"], "one of true, false"),
        (["masks", "grid=cosin"], "did you mean 'cosine'?"),
        (["masks", "grid=0,1,0.5"], "times rise from 0 to 1"),
        (["masks", "grid=0,x,1"], "a number is expected"),
        (["masks", "grid=0,0.5,1", "steps=3"], "2 steps, not 3"),
        (["masks", "per_call=2"], "sampler=random_order"),
        (["masks", "sampler=random_order", "steps=4"], "has no steps"),
        (["masks", "sampler=random_order", "eta=1"], "no corrector"),
        (["masks", "sampler=random_order", "per_call=0"], "at least one position"),
        (["letters", "sampler=random_order"], "disjoint source"),
        (["masks", "device=abacus"], "device=abacus cannot be used here"),
        (["masks", "precision=fp16"], "'bf16'"),
        (["masks", "--out", "a.csv"], ".txt (text) or .jsonl"),
        (["masks", "--out", "nowhere/a.txt"], "its folder does not exist"),
        (["masks", "--json", "."], "a file is needed"),
        (["nowhere"], "there is no folder nowhere"),
        (["mask"], "did you mean 'masks'?"),
        (["."], "it has no config.json"),
        (["masks/config.json"], "is a file; the folder"),
        (["masks-without-length"], "length=128"),
        (["without-flow"], "saved without a flow"),
        (["without-tokenizer"], "saved without a tokenizer"),
        (["own-module"], "a module of one's own"),
        (["damaged-weights"], "model.safetensors is damaged"),
        (["damaged-config"], "config.json is damaged"),
        (["causal", "steps=3"], "its settings are n, length, seed, temperature, cut, device"),
        (["causal", "--watch"], "--watch means nothing to a causal network"),
        ([], "RUN"),
    ],
)
def test_what_cannot_be_drawn_is_one_message_and_exit_2(hopflow, words, message):
    refused(hopflow("sample", *words), message)


def refused(result: SimpleNamespace, message: str) -> None:
    assert (result.code, result.out) == (2, "")
    said = result.err[result.err.index("hopflow: ") :]
    assert message in said
    assert len(said.splitlines()) <= 6
    assert "Traceback" not in said


def test_a_run_that_is_elsewhere_is_pointed_at(hopflow, tmp_path, monkeypatch):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'runs/first'?" in hopflow("sample", "first").err
    assert "did you mean 'runs/first'?" in hopflow("infill", "runs/frist", "a[MASK]").err


# -- infill ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["masks", "letters"])
def test_what_was_written_stays_and_holes_are_filled(hopflow, tmp_path, name):
    file = tmp_path / "a.jsonl"
    prompts = ("ab[MASK:3]cd", "[MASK]a[MASK]")
    assert hopflow("infill", name, *prompts, "n=20", "eta=1", "--out", str(file)).code == 0
    found = rows(file)
    assert [row["prompt"] for row in found] == [prompts[0]] * 20 + [prompts[1]] * 20
    assert [row["prompt_index"] for row in found] == [0] * 20 + [1] * 20
    a, b, c, d = LETTERS.encode("abcd")
    for row in found[:20]:
        assert (row["tokens"][:2], row["tokens"][5:]) == ([a, b], [c, d])
    assert {row["tokens"][1] for row in found[20:]} == {a}
    assert {len(row["tokens"]) for row in found[20:]} == {3}
    assert len({row["text"] for row in found[:20]}) > 10


def test_a_prompt_without_holes_is_continued(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    assert hopflow("infill", "masks", "abc", "[MASK]b", "--out", str(file)).code == 0
    prefix, hole = rows(file)
    assert (len(prefix["tokens"]), len(hole["tokens"])) == (LENGTH, 2)
    assert prefix["text"].startswith("abc")
    assert hopflow("infill", "masks", "abc", "[MASK]b", "length=8", "--out", str(file)).code == 0
    assert [len(row["tokens"]) for row in rows(file)] == [8, 8]
    assert rows(file)[1]["tokens"][1] == LETTERS.encode("b")[0]


def test_prompts_come_from_a_file_after_those_that_were_written(hopflow, tmp_path):
    (tmp_path / "a.txt").write_text("b[MASK]\nc[MASK]\n")
    result = hopflow("infill", "masks", "a[MASK]", f"prompts={tmp_path / 'a.txt'}")
    assert [text[0] for text in result.out.split(f"\n{END}\n")] == ["a", "b", "c"]


def test_a_prompt_may_look_like_a_setting_if_it_has_a_blank_or_a_hole(hopflow, home, tmp_path, monkeypatch):
    tokenizer = Characters("".join(sorted(set("abn= 1"))))
    flow = hf.Flow(hf.Uniform(hf.Vocab(tokenizer.size)))
    hf.save_pretrained(tmp_path / "net", hf.Transformer(flow.vocab, SMALL), flow, tokenizer=tokenizer)
    result = hopflow("infill", str(tmp_path / "net"), "a=[MASK]", "a=b [MASK]", "n=2")
    assert result.code == 0
    assert [text[:2] for text in result.out.split(f"\n{END}\n")] == ["a=", "a=", "a=", "a="]
    refused(hopflow("infill", str(tmp_path / "net"), "a=b"), "unknown setting 'a'")


def test_with_subwords_the_blank_before_a_hole_is_the_holes(hopflow, tmp_path):
    tokenizer = from_text("bpe:300", "", iter([Piece("Once upon a time, " * 40, True)]), Pulse(None))
    flow = hf.Flow(hf.MultiMask(hf.Vocab(tokenizer.size, 1)))
    model, out = hf.Transformer(flow.vocab, SMALL), tmp_path / "a.jsonl"
    hf.save_pretrained(tmp_path / "net", model, flow, tokenizer=tokenizer, recipe={"length": 16})
    prompts = ("Once upon a [MASK:1],", "Once upon a [MASK:9 chars],", "Once upon a ")
    assert hopflow("infill", str(tmp_path / "net"), *prompts, "--out", str(out)).code == 0
    hole, chars, continued = (row["tokens"] for row in rows(out))
    start, (comma,) = tokenizer.encode("Once upon a"), tokenizer.encode(",")
    assert hole[:-2] == start
    assert hole[-1] == comma
    assert len(chars) > len(hole)
    assert len(continued) == 16
    assert all(row["text"].startswith("Once upon a") for row in rows(out))


def test_guidance_asks_twice_and_is_recorded(hopflow, tmp_path):
    for guidance, calls in (("1", 1), ("2.5", 2)):
        file = tmp_path / "a.jsonl"
        result = hopflow("infill", "masks", "ab[MASK:4]", "steps=1", f"guidance={guidance}", "--out", str(file))
        assert result.code == 0
        (row,) = rows(file)
        assert (row["guidance"], row["calls"]) == (float(guidance), calls)
    assert result.facts["random numbers"] == "seed 0, guidance 2.5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["masks"], "there is no prompt"),
        (["masks", ""], "prompt 1 is empty"),
        (["masks", "a[MASK]", "abcabcabcabca"], "prompt 2 has 13 tokens, and the network was trained with 12"),
        (["masks", "[MASK:13]"], "or say length=13"),
        (["masks", "abcd", "length=3"], "more than length=3"),
        (["masks", "abc", "length=3"], "there is nothing to draw"),
        (["masks-without-length", "abc"], "length=128"),
        (["masks", "[MASK]é"], "prompt 1: the character 'é'"),
        (["masks", "[MASK:0]"], "is not a hole"),
        (["masks", "prompts=nowhere.txt"], "nowhere.txt: No such file"),
        (["masks", "prompts=masks"], ".jsonl"),
        (["masks", "a[MASK]", "steps=0"], "at least one step"),
        (["masks", "a[MASK]", "n=0"], "from 1 on"),
        (["masks", "a[MASK]", "top_p=2"], "(0, 1]"),
        (["masks", "a[MASK]", "stpes=3"], "did you mean 'steps'?"),
        (["masks", "a[MASK]", "guidance=strong"], "a number is expected"),
        (["masks", "[MASK:3]", "guidance=2"], "guidance leads towards"),
        (["nowhere", "a[MASK]"], "there is no folder"),
        (["damaged-weights", "a[MASK]"], "is damaged"),
        (["causal", "a[MASK]"], "fills no holes"),
        (["masks", "a[MASK]", "--out", "a.md"], ".txt (text) or .jsonl"),
    ],
)
def test_what_cannot_be_filled_is_one_message_and_exit_2(hopflow, words, message):
    refused(hopflow("infill", *words), message)


def test_an_empty_file_of_prompts_is_refused(hopflow, tmp_path):
    (tmp_path / "a.txt").write_text("")
    refused(hopflow("infill", "masks", f"prompts={tmp_path / 'a.txt'}"), "holds no prompt")


# -- watch -------------------------------------------------------------------------------------------------------------


def test_where_there_is_no_terminal_a_few_stills_are_printed(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    result = hopflow("sample", "masks", "n=6", "--watch", "--out", str(file))
    assert (result.code, result.out) == (0, "")
    times = [line for line in result.err.splitlines() if line.startswith("t = ")]
    assert [line.partition(",")[0] for line in times] == [f"t = {t}" for t in ("0.00", "0.25", "0.50", "0.75", "1.00")]
    assert (times[0], times[-1]) == ("t = 0.00, 0 hops", f"t = 1.00, {4 * LENGTH} hops")
    first, *_, last = (part.splitlines()[1:5] for part in result.err.split("t = ")[1:])
    assert [line.split()[1] for line in first] == ["░" * LENGTH] * 4
    texts = [harmless(row["text"]).replace(END, "␃") for row in rows(file)]
    assert any("␃" in text for text in texts[:4])
    assert [line[5:].ljust(LENGTH) for line in last] == texts[:4]


@dataclass(frozen=True)
class Script:
    """A tokenizer of six symbols, of which one rings and one clears the screen."""

    symbols: tuple[str, ...] = ("a", "b", "c", "\n", "\x1b", "\x07")
    end = None

    def decode(self, ids: list[int]) -> str:
        return "".join(self.symbols[i] for i in ids)


@pytest.fixture
def generation() -> hf.Generation:
    """Two short sequences: position 0 is a prompt, 1 hops twice, 2 once, 3 never; the second row is shorter."""
    out = hf.Generation(
        tokens=torch.tensor([[0, 1, 3, 2], [4, 5, -1, -1]]),
        x0=torch.tensor([[0, 6, 6, 2], [4, 6, -1, -1]]),
        fixed=torch.tensor([[True, False, False, False], [True, False, False, False]]),
        lengths=torch.tensor([4, 2]),
        calls=torch.tensor([3, 1]),
        redraws=torch.tensor([[0, 2, 1, 1], [0, 1, 0, 0]]),
        changes=torch.tensor([[0, 2, 1, 0], [0, 1, 0, 0]]),
        sampler=hf.Euler(4),
        eta=0.0,
        filter=hf.Filter(),
        draw="categorical",
        hops=hf.Hops(
            row=torch.tensor([0, 1, 0, 0]),
            t=torch.tensor([0.0, 0.25, 0.5, 0.75]),
            position=torch.tensor([1, 1, 2, 1]),
            before=torch.tensor([6, 6, 6, 2]),
            after=torch.tensor([2, 5, 3, 1]),
        ),
    )
    assert torch.equal(out.at(1.0), out.tokens)
    return out


def test_a_replay_shows_noise_then_hops_then_what_has_settled(generation, monkeypatch):
    monkeypatch.setattr(watching, "GLOW", 1)
    frames = list(Replay(generation, Script(), data=6).frames((0.0, 0.25, 0.5, 0.75, 1.0)))
    texts = [["".join(text for text, _ in row) for row in frame.rows] for frame in frames]
    assert texts == [["a░░c", "␛░"], ["ac░c", "␛░"], ["ac░c", "␛␇"], ["ac⏎c", "␛␇"], ["ab⏎c", "␛␇"]]
    assert [frame.jumps for frame in frames] == [[0, 0], [1, 0], [1, 1], [2, 1], [3, 1]]
    styles = [[style for _, style in frame.rows[0]] for frame in frames]
    assert styles == [
        [PROMPT, NOISE, NOISE, NOISE],
        [PROMPT, HOPPING, NOISE, NOISE],
        [PROMPT, HOPPING, NOISE, NOISE],  # it will hop again
        [PROMPT, HOPPING, HOPPING, NOISE],
        [PROMPT, SETTLED, SETTLED, SETTLED],
    ]
    assert [frame.rows[1][1][1] for frame in frames] == [NOISE, NOISE, HOPPING, SETTLED, SETTLED]


def test_a_hop_glows_for_a_few_frames(generation):
    times = [0.25 + i / 100 for i in range(8)]
    styles = [frame.rows[1][1][1] for frame in Replay(generation, Script(), data=6).frames(times)]
    assert styles == [NOISE, *[HOPPING] * watching.GLOW, *[SETTLED] * 3]


def terminal(height: int = 20, width: int = 60, **environment: str) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard",
        _environ={"TERM": "xterm", **environment},
    )


def plain(said: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)


def test_on_a_terminal_it_is_played_and_left_standing(generation):
    screen, slept = terminal(), []
    assert watch(Replay(generation, Script(), data=6), screen, slept.append) == 2
    assert sum(slept) == pytest.approx(6, abs=1)
    said = screen.file.getvalue()
    last = said[said.rindex("t \x1b[1m1.00") :]
    assert "4 hops" in plain(last)
    assert "4 Euler steps, eta 0" in plain(last)
    assert "ab⏎c" in plain(last)
    assert "noise  hopping  settled  prompt" in plain(last)
    assert "\x1b[4;34ma" in last  # the prompt is blue
    assert "\x1b[32mb⏎c" in last  # and what was drawn green
    assert "\x07" not in said


def test_a_narrow_terminal_shortens_the_words_and_wraps_nothing(generation):
    screen = terminal(width=36)
    assert watch(Replay(generation, Script(), data=6), screen, lambda _: None) == 2
    lines = plain(screen.file.getvalue()).splitlines()
    assert lines[-8].startswith("t 1.00")
    assert lines[-8].endswith("4 hops  4 Euler…")
    assert max(map(len, lines)) <= 36


def test_states_differ_without_colours(generation):
    screen = terminal(NO_COLOR="1")
    watch(Replay(generation, Script(), data=6), screen, lambda _: None)
    said = screen.file.getvalue()
    legend = said[said.rindex("noise") - 8 :]
    assert "\x1b[2mnoise\x1b[0m  \x1b[1mhopping\x1b[0m  settled  \x1b[4mprompt\x1b[0m" in legend
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", said)


def test_a_dumb_terminal_is_shown_stills(generation):
    screen = terminal(TERM="dumb")
    assert watch(Replay(generation, Script(), data=6), screen, lambda _: None) == 2
    assert plain(screen.file.getvalue()).startswith("t = 0.00, 0 hops\n  1  a░░c\n")


def test_what_does_not_fit_is_left_out(generation):
    assert watch(Replay(generation, Script(), data=6), terminal(height=8), lambda _: None) == 1
    assert watch(Replay(generation, Script(), data=6), terminal(height=5), lambda _: None) == 0


@pytest.mark.parametrize("command", ["sample", "infill", "causal"])
def test_ctrl_c_delivers_what_was_finished_and_says_so(command, hopflow, home, tmp_path, monkeypatch):
    words = {
        "sample": ("sample", str(home / "masks"), "n=12", "batch=1"),
        "infill": ("infill", str(home / "masks"), "a[MASK:4]", "b[MASK:3]", "n=8", "batch=1"),
        "causal": ("sample", str(home / "causal"), "n=12"),
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


def test_ctrl_c_ends_the_replay_and_loses_no_text(generation):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    assert watch(Replay(generation, Script(), data=6), terminal(), interrupt) == 0


def test_lines_break_where_they_are_full_and_nothing_moves():
    row = [(text, SETTLED) for text in ("ab", "cd", "世", "e", "fgh")]
    assert [[text for text, _ in line] for line in watching._lines(row, 4)] == [["ab", "cd"], ["世", "e"], ["fgh"]]


def test_masks_are_as_wide_as_what_they_become(generation):
    words = Script(("Alas", "poor", "Yorick", "I", "knew", "him"))
    (first,) = Replay(generation, words, data=6).frames([0.0])
    assert first.rows[0][1] == ("░░░░", NOISE)


@pytest.mark.parametrize(("seen", "printed"), [(True, ""), (False, "hi\n")])
def test_what_a_terminal_has_shown_is_not_printed_again(monkeypatch, capsys, home, seen, printed):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    how = {"sampler": "by hand", "seed": 0, "dtype": "float32"}
    drawing.deliver(Drawn(["hi"], [[1]], {}, how, saved.read(str(home / "masks")), 1.0, [0], 1), None, None, seen)
    assert capsys.readouterr().out == printed


# -- on the way --------------------------------------------------------------------------------------------------------


def test_signs_that_would_steer_a_terminal_are_pictures():
    text = "a\n\t\x1b[2J\x00\x7f\x9b\u202eb\u2028\u200bé世😀"
    assert harmless(text) == "a⏎␉␛[2J␀␡\ufffd\ufffdb\ufffd\ufffdé世😀"
    assert harmless(text, "\n\t").startswith("a\n\t␛")


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\n␛[2J\n"), (False, "a\n\x1b[2J\n")])
def test_only_a_terminal_is_spared_them(monkeypatch, capsys, is_terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    drawn._print("a\n\x1b[2J")
    assert capsys.readouterr().out == shown


def test_a_silence_ends_with_the_speed_so_far(monkeypatch, capsys):
    monkeypatch.setattr(sampling_log, "QUIET", 0.04)
    said = ""
    with sampling_log.sampling(Console(file=io.StringIO()), 10) as progress:
        while "drawing 10 sequences (0 s)" not in said:
            said += capsys.readouterr().err
        progress(5, 10)
        while not re.search(r"5 of 10 sequences, [\d.,]+ per second, .* left", said):
            said += capsys.readouterr().err


def test_on_a_terminal_a_bar_moves_and_goes():
    screen = terminal()
    with sampling_log.sampling(screen, 10) as progress:
        progress(4, 10)
    said = screen.file.getvalue()
    assert "4/10" in said
    assert "per second" in said
    assert said.endswith("\x1b[2K")  # the line is cleared


@pytest.mark.parametrize(("rate", "text"), [(0.01234, "0.0123"), (12.34, "12.3"), (1234.5, "1,234")])
def test_speeds_are_short(rate, text):
    assert sampling_log.speed(rate) == f"{text} per second"


def test_on_a_full_disk_what_was_drawn_is_still_shown(home, tmp_path, hopflow, full):
    file = tmp_path / "drawn.txt"
    result = hopflow("sample", str(home / "masks"), "n=2", "steps=2", "--out", str(file))
    assert result.code == 3
    assert f"{file}: No space left on device" in result.err
    assert f"\n{END}\n" in result.out


def test_on_a_full_disk_what_was_calculated_is_still_shown(tmp_path, hopflow, full):
    result = hopflow("oracle", "analysis=first", "--json", str(tmp_path / "rows.json"))
    assert result.code == 3
    assert "No space" in result.err
    assert "first analysis" in result.out
