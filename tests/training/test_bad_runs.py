"""What a user, a disk or a stranger can do wrong to a run, through the command line: one message, nothing lost."""

import json
import os
import random
import re
import resource
import socket
import string
import threading
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import SMALL, Command, is_one_message, losses, snapshot

from hopflow.recipes import Recipe
from hopflow.recipes.build import flow_of
from hopflow.runs import checkpoint
from hopflow.training.trainer import Trainer

KEYS = (*SMALL, "workers=0", "coupling=independent", "cost=hamming")


@pytest.fixture
def run(fox, hopflow, tmp_path) -> Path:
    """A run of 4 steps with checkpoints of 2 and 4."""
    assert hopflow("train", fox, *KEYS, "steps=4", "save_every=2", f"out={tmp_path / 'run'}").code == 0
    return tmp_path / "run"


# -- bad input -------------------------------------------------------------------------------------------------------

BAD = {
    "a missing file": (["{home}/missing.txt"], 2, "missing.txt"),
    "a text shorter than a row": (["{home}/short.txt"], 2, "tokens"),
    "an empty text": (["{home}/empty.txt"], 2, "is empty"),
    "binary junk": (["{home}/junk.txt"], 2, "junk.txt"),
    "a folder with no text": (["{home}/nothing"], 2, "nothing"),
    "an unknown key": (["{fox}", "sorce=mask"], 2, "did you mean 'source'"),
    "a key twice": (["{fox}", "lr=1", "lr=2"], 2, "typed twice"),
    "a word that is no key": (["{fox}", "fast"], 2, "key=value"),
    "a value of another type": (["{fox}", "steps=many"], 2, "steps=many"),
    "an unknown recipe": (["morse_exakt"], 2, "did you mean 'morse_exact'"),
    "an unknown size": (["{fox}", "size=tine"], 2, "did you mean 'tiny'"),
    "a batch that its parts do not divide": (["{fox}", "accumulate=3"], 2, "multiple of 3"),
    "a device that is not there": (["{fox}", "device=cuda:77"], 2, "device=auto uses the best available one"),
    "a device of no kind": (["{fox}", "device=toaster"], 2, "device must be auto or one of cpu"),
    "a file in place of the run": (["{fox}", "out={home}/short.txt"], 2, "out must be a folder"),
    "a folder of other things": (["{fox}", "out={home}/thesis"], 2, "not a run"),
    "a tokenizer that is not there": (["{fox}", "tokens={home}/no.json"], 2, "no.json"),
    "weights from what is no run": (["{fox}", "init={home}/thesis"], 2, "thesis"),
    "a recipe that is no TOML": (["{home}/bad.toml"], 2, "not a TOML file"),
    "a result where no file can be": (["{fox}", "--json", "{home}/no/such.json"], 2, "its folder does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_prints_one_message_and_changes_no_file(hopflow, fox, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    for name, content in (("short.txt", b"abc"), ("empty.txt", b""), ("junk.txt", bytes(range(256)) * 20)):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bad.toml").write_text("lr = ")
    for name in ("nothing", "thesis"):
        (tmp_path / name).mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("dear")
    before = {name: data for name, data in snapshot(tmp_path).items() if not name.startswith("cache")}
    words, code, said = BAD[case]
    words = [word.format(home=tmp_path, fox=fox) for word in words]
    given = {word.partition("=")[0] for word in words}
    keys = [key for key in (*KEYS, "steps=1") if key.partition("=")[0] not in given]
    result = hopflow("train", *words, *(keys if "exakt" not in words[0] and "toml" not in words[0] else []))
    assert result.code == code, result.err
    assert is_one_message(result.message), result.err
    assert said in result.message
    after = {name: data for name, data in snapshot(tmp_path).items() if not name.startswith("cache")}
    assert after == before


def test_weights_of_another_vocabulary_are_refused(hopflow, fox, run, tmp_path):
    result = hopflow("train", fox, *KEYS, "tokens=byte", "steps=1", f"init={run}", f"out={tmp_path / 'other'}")
    assert result.code == 2
    assert is_one_message(result.message)
    assert f"init={run}" in result.message
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_is_named(hopflow, fox, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    result = hopflow("train", fox, *KEYS, "steps=1", f"out={tmp_path / 'locked' / 'run'}")
    assert (result.code, is_one_message(result.message)) == (2, True)


def test_a_folder_on_a_read_only_disk_is_named(hopflow, fox, tmp_path, monkeypatch):
    def refuse(path, *options, **more):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("hopflow.runs.run_folder.os.open", refuse)
    result = hopflow("train", fox, *KEYS, "steps=1", f"out={tmp_path / 'run'}")
    assert (result.code, is_one_message(result.message)) == (3, True)
    assert "Read-only file system" in result.message


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["python", "gpu", "cpu"],
)
def test_out_of_memory_prints_what_to_try_and_keeps_the_checkpoints(hopflow, fox, run, monkeypatch, error):
    before = checkpoint.latest(run / "checkpoints").step

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Trainer, "update", fail)
    result = hopflow("train", fox, *KEYS, "steps=8", "save_every=2", f"out={run}")
    assert (result.code, is_one_message(result.message)) == (3, True)
    assert "accumulate=" in result.message
    assert checkpoint.latest(run / "checkpoints").step == before


def little_memory(more: int) -> Callable[[], None]:
    """As `ulimit -v` does: a process may take so many bytes more than it has."""

    def limit() -> None:
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + more, has + more))

    return limit


@pytest.mark.parametrize("more", [100 << 20, 900 << 20], ids=["while the network is built", "while it is saved"])
def test_a_memory_limit_of_the_process_prints_one_message(fox, tmp_path, more):
    words = ("train", fox, *KEYS, "size=small", "steps=1", "threads=1", f"out={tmp_path / 'run'}")
    command = Command(*words, log=tmp_path / "log", before=little_memory(more))
    assert command.wait() == 3, command.said
    assert is_one_message(command.message)
    assert "out of memory" in command.message


def test_training_works_in_a_process_that_may_start_no_thread(fox, tmp_path):
    def one_thread() -> None:
        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse

    command = Command(
        "train", fox, *KEYS, "steps=2", f"out={tmp_path / 'run'}", log=tmp_path / "log", before=one_thread
    )
    assert command.wait() == 0, command.said
    assert len(losses(tmp_path / "run")) == 2


# -- a full disk -----------------------------------------------------------------------------------------------------


def no_room() -> None:
    """As a quota does: no file may grow beyond a size that metrics stay below and a network does not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, resource.RLIM_INFINITY))


def test_a_full_disk_is_named_with_what_is_needed_and_free_and_the_run_goes_on_later(fox, run, tmp_path):
    words = ("train", fox, *KEYS, "steps=8", "save_every=2", f"out={run}")
    full = Command(*words, log=tmp_path / "full.log", before=no_room)
    assert full.wait() == 3, full.said
    assert is_one_message(full.message)
    assert "not enough disk space to save step 6" in full.message
    assert re.search(r"bytes needed, [\d,]+ free", full.message)
    assert checkpoint.latest(run / "checkpoints").step == 4
    assert [f.name for f in (run / "checkpoints").iterdir() if not f.name.startswith("step-")] == []
    later = Command(*words, log=tmp_path / "later.log")
    assert later.wait() == 0, later.said
    assert len(losses(run)) == 8


# -- damaged and hostile files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "config.json"])
def test_a_damaged_newest_checkpoint_is_named_and_the_previous_one_resumes(hopflow, fox, run, name):
    expected = losses(run)
    file = run / "checkpoints" / "step-000000004" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    result = hopflow("train", fox, *KEYS, "steps=4", "save_every=2", f"out={run}")
    assert result.code == 0, result.err
    assert f"hopflow: warning: {file} is damaged" in result.err
    assert "loading the previous checkpoint" in result.err
    assert losses(run) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.latest(run / "checkpoints").step == 4


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "missing"])
def test_sampling_from_a_run_with_a_damaged_newest_checkpoint_uses_the_previous_one(hopflow, run, name, gone, tmp_path):
    newer, older = (run / "checkpoints" / f"step-{step:09}" for step in (4, 2))
    (newer / name).unlink() if gone else (newer / name).write_bytes(b"{}")
    result = hopflow("sample", str(run), "n=1", "steps=2", "--json", str(tmp_path / "drawn.json"))
    assert result.code == 0, result.err
    assert f"loading the previous checkpoint, {older}" in result.err
    assert json.loads((tmp_path / "drawn.json").read_text())["run"] == str(older)
    result = hopflow("sample", str(newer), "n=1", "steps=2")  # whoever names a checkpoint gets no other one
    assert (result.code, "bug" in result.err) == (2, False)
    assert f"try the previous checkpoint: {older}" in result.err.replace("\n", "")
    (older / name).unlink()
    assert "try the previous" not in hopflow("sample", str(older), "n=1", "steps=2").err
    result = hopflow("sample", str(run), "n=1", "steps=2")
    assert (result.code, "bug" in result.err) == (2, False)
    assert "no checkpoint of" in result.err


def test_valid_checkpoints_are_kept_rather_than_newer_damaged_ones(hopflow, fox, run):
    """With keep=1 and a checkpoint of each step, the newest by name would be the damaged one."""
    file = run / "checkpoints" / "step-000000004" / "model.safetensors"
    file.write_bytes(b"")
    result = hopflow("train", fox, *KEYS, "steps=8", "save_every=1", "keep=1", f"out={run}", "--fresh")
    assert result.code == 0
    with pytest.MonkeyPatch.context() as patch:
        update = Trainer.update
        patch.setattr(Trainer, "update", lambda self, step, **o: update(self, step, **o) if step < 3 else 1 / 0)
        assert hopflow("train", fox, *KEYS, "steps=8", "save_every=1", "keep=1", f"out={run}").code == 1
    assert checkpoint.latest(run / "checkpoints").step == 3
    assert (run / "checkpoints" / "damaged-step-000000004").is_dir()


def change(**values):
    return lambda content: {**content, "recipe": {**content["recipe"], **values}}


HOSTILE = {
    "deep nesting": lambda content: "[" * 100_000,
    "a deep value": lambda content: json.dumps(change(lr="DEEP")(content)).replace('"DEEP"', "[" * 5000 + "]" * 5000),
    "a huge number": lambda content: json.dumps(change(steps="HUGE")(content)).replace('"HUGE"', "9" * 5000),
    "a large number": change(steps=10**30),
    "a large batch": change(batch=10**18),
    "a large seed": change(seed=10**40),
    "a word for a number": change(steps="os.system"),
    "a list for a number": change(lr=[1e-3]),
    "an object for a word": change(source={"__class__": "subprocess.Popen", "args": ["touch", "CANARY"]}),
    "a class's name": change(source="__import__"),
    "a dunder key": change(__class__="Exploit"),
    "a module's path": change(coupling="os:system"),
    "a command": change(objective="bound:__import__('os').system('touch CANARY')"),
    "a NaN": lambda content: json.dumps(change(lr="NAN")(content)).replace('"NAN"', "NaN"),
    "an infinity": lambda content: json.dumps(change(clip="INF")(content)).replace('"INF"', "1e999"),
    "a key twice": lambda content: json.dumps(content)[:-1] + ', "recipe": {"steps": 3}}',
    "a text outside": change(data="../../../../no/such/secret"),
    "a tokenizer outside": change(tokens="../../../../no/such/tokenizer.json"),
    "weights outside": change(init="../../../../no/such/run"),
    "no object": lambda content: "[]",
    "another format": lambda content: {**content, "format": "pickle"},
    "no recipe": lambda content: {key: value for key, value in content.items() if key != "recipe"},
    "a recipe of another kind": lambda content: {**content, "recipe": [1, 2]},
    "a hash of another kind": lambda content: {**content, "recipe_hash": {"$ref": "CANARY"}},
    "no text at all": lambda content: "\x00\xff",
    "another run's identity": lambda content: {**content, "identity": {"lr": 7}},
}


def test_a_hostile_recipe_is_refused_and_runs_nothing(hopflow, fox, run, monkeypatch):
    monkeypatch.chdir(run.parent)
    good = json.loads((run / "recipe.json").read_text())
    assert len(HOSTILE) >= 20
    for name, payload in HOSTILE.items():
        content = payload(good)
        (run / "recipe.json").write_text(content if isinstance(content, str) else json.dumps(content))
        before = snapshot(run)
        result = hopflow("train", str(run))
        assert result.code == 2, (name, result.err)
        assert is_one_message(result.message), (name, result.err)
        assert snapshot(run) == before, name
    assert not list(run.parent.rglob("*CANARY*"))


def test_a_recipe_that_names_another_folder_stays_in_its_own(hopflow, fox, run, tmp_path):
    content = change(out=str(tmp_path / "elsewhere"))(json.loads((run / "recipe.json").read_text()))
    (run / "recipe.json").write_text(json.dumps(content))
    assert hopflow("train", str(run), "steps=5").code == 0
    assert len(losses(run)) == 5
    assert not (tmp_path / "elsewhere").exists()


def tokenizer_with(**values):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    return json.dumps({"version": "1.0", "model": {**model, **values}})


TOKENIZERS = {
    "words without a token for others": json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"the": 0, "fox": 1}, "unk_token": "[UNK]"}}
    ),
    "a decoder that strips too much": json.dumps(
        {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 9}, **json.loads(tokenizer_with())}
    ),
    "deep nesting": "[" * 100_000,
    "a deep object": '{"model":' * 3000 + "1" + "}" * 3000,
    "empty": "",
    "no object": "[1, 2, 3]",
    "a number": "7",
    "NUL": "\x00",
    "no model": "{}",
    "a model that is a word": '{"model": "os.system"}',
    "no vocabulary": '{"model": {"type": "BPE"}}',
    "an empty vocabulary": tokenizer_with(vocab={}),
    "huge ids": tokenizer_with(vocab={"a": 2**31}),
    "ids beyond all": tokenizer_with(vocab={"a": 10**30}),
    "negative ids": tokenizer_with(vocab={"a": -1}),
    "ids that are words": tokenizer_with(vocab={"a": "b"}),
    "the same id twice": tokenizer_with(vocab={"a": 0, "b": 0}),
    "merges of nothing": tokenizer_with(merges=[["x", "y"]]),
    "merges that are numbers": tokenizer_with(merges=[1, 2]),
    "another type": tokenizer_with(type="subprocess.Popen"),
    "a class": '{"__class__": "os.system", "args": ["touch CANARY"]}',
    "a reducer": '{"model": {"py/reduce": [{"py/function": "os.system"}, ["touch CANARY"]]}}',
    "NaN ids": '{"model": {"type": "BPE", "vocab": {"a": NaN}, "merges": []}}',
    "a hostile expression": json.dumps(
        {
            "version": "1.0",
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": False},
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        }
    ),
}


def test_a_hostile_tokenizer_is_refused_and_runs_nothing(hopflow, fox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(TOKENIZERS) >= 20
    for name, content in TOKENIZERS.items():
        (tmp_path / "bad.json").write_text(content)
        result = hopflow("train", fox, *KEYS, "tokens=bad.json", "steps=1", "out=run")
        assert result.code == 2, (name, result.err)
        assert is_one_message(result.message), (name, result.err)
        assert not (tmp_path / "run").exists()
    assert not list(tmp_path.rglob("*CANARY*"))


# -- fuzzed keys -----------------------------------------------------------------------------------------------------

NAMES = [field.name for field in fields(Recipe)]
VALUES = ["", "0", "1", "-1", "2", "0.5", "1e9", "1e400", "-inf", "nan", "none", "true", "null", "9" * 30, "9" * 5000]
VALUES += [
    "mask",
    "exact",
    "sinkhorn",
    "bound:1",
    "bound:nan",
    "bound:",
    "polynomial:-1",
    "polynomial:1e9",
    "gpt2",
    ":",
]
VALUES += ["../..", "\x00", "é", "🦊", "a=b", "=", " ", "\n", "--fresh", "[1, 2]", "{}", "__class__", "tiny", "cpu"]


def word(dice: random.Random) -> str:
    """key=value: a known key or one with a slip, and a value that may be anything."""
    key = dice.choice(NAMES)
    if dice.random() < 0.3:
        at = dice.randrange(len(key))
        key = key[:at] + dice.choice(string.printable) + key[at + dice.randrange(2) :]
    value = dice.choice(VALUES)
    if dice.random() < 0.2:
        value = "".join(dice.choice(string.printable) for _ in range(dice.randrange(12)))
    return f"{key}={value}"


def fuzz(hopflow, monkeypatch, count: int, seed: int) -> dict[int, int]:
    """Commands of up to three fuzzed words; the text is not read, all else is as in a dry run."""
    dice, codes = random.Random(seed), {}
    counts = torch.ones(20, dtype=torch.int64)

    def built(recipe, **_):
        if recipe.model != "causal":
            flow_of(recipe, counts)
        raise SystemExit(0)

    monkeypatch.setattr("hopflow.recipes.build", built)
    for _ in range(count):
        words = [word(dice) for _ in range(dice.randrange(1, 4))]
        what = dice.choice(["morse_laptop", "dfm_mmf_exact", "dfm_b_sinkhorn_laptop", "ar", "fox.txt"])
        result = hopflow("train", what, "--dry-run", *words)
        assert result.code in (0, 2), (words, result.err)
        assert result.code == 0 or is_one_message(result.message), (words, result.err)
        codes[result.code] = codes.get(result.code, 0) + 1
    return codes


def test_fuzzed_keys_give_a_message(hopflow, monkeypatch):
    codes = fuzz(hopflow, monkeypatch, 300, seed=0)
    assert codes[0] > 2
    assert codes[2] > 100


@pytest.mark.torture
def test_five_thousand_fuzzed_commands_give_no_traceback(hopflow, monkeypatch, tries):
    tries["commands"] += sum(fuzz(hopflow, monkeypatch, 5000, seed=1).values())


# -- the network, and numbers that are none --------------------------------------------------------------------------


def test_training_on_a_file_asks_for_no_network(hopflow, fox, tmp_path, monkeypatch):
    attempts = []

    def note(*what, **_):
        attempts.append(what)
        raise OSError("no network here")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, note)
    monkeypatch.setattr(socket, "getaddrinfo", note)
    for words in (("--dry-run",), (), ("init=" + str(tmp_path / "run"), "seed=1", f"out={tmp_path / 'tuned'}")):
        out = () if any(word.startswith("out=") for word in words) else (f"out={tmp_path / 'run'}",)
        assert hopflow("train", fox, *SMALL, "workers=1", "steps=2", *words, *out).code == 0
    assert attempts == []


def poison(places: list[tuple[str, int]], hopflow, fox, tmp_path) -> None:
    """Make a number infinite or no number at one place of one step; the run must stop there, its weights intact."""
    for place, step in places:
        out = tmp_path / f"{place}-{step}"
        clean, update = {}, Trainer.update

        def broken(self, at, place=place, step=step, clean=clean, update=update, **options):
            if at != step:
                return update(self, at, **options)
            clean.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            where = self.model.head if place.startswith("loss") else next(self.model.parameters())
            value = float("nan" if place.endswith("nan") else "inf")
            if place.startswith("loss"):
                handle = where.register_forward_hook(lambda module, given, logits: logits * value)
            else:
                handle = where.register_hook(lambda gradient: gradient * value)
            try:
                return update(self, at, **options)
            finally:
                handle.remove()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "update", broken)
            result = hopflow("train", fox, *KEYS, "steps=6", "weight_ema=0", "save_every=3", f"out={out}")
        assert result.code == 2, result.err
        assert is_one_message(result.message)
        assert f"at step {step + 1};" in result.message
        found = checkpoint.latest(out / "checkpoints")
        assert found.step == step
        assert all(torch.equal(tensor, clean[name]) for name, tensor in found.groups["model"].items())
        assert json.loads((out / f"not-finite-{step}.json").read_text())["samples"] == [4 * step, 4 * step + 4]
        again = hopflow("train", fox, *KEYS, "steps=6", "weight_ema=0", "save_every=3", f"out={out}")
        assert again.code == 0, again.err  # what was wrong is gone: the same command goes on


def test_a_loss_that_is_not_finite_stops_before_the_update_and_saves_the_batch(hopflow, fox, tmp_path):
    poison([("loss nan", 0), ("gradient inf", 4)], hopflow, fox, tmp_path)


@pytest.mark.torture
def test_a_value_that_is_not_finite_stops_the_run_at_ten_places(hopflow, fox, tmp_path, tries):
    kinds = ("loss nan", "loss inf", "gradient nan", "gradient inf")
    poison([(kinds[n % 4], n % 6) for n in range(10)], hopflow, fox, tmp_path)
    tries["values"] += 10


def test_weights_that_overflowed_under_a_finite_gradient_are_not_saved(hopflow, fox, tmp_path, monkeypatch):
    update = Trainer.update

    def overflow(self, step, **options):
        update(self, step, **options)
        if step == 3:
            next(self.model.parameters()).data.flatten()[0] = float("inf")

    monkeypatch.setattr(Trainer, "update", overflow)
    for _ in range(2):
        result = hopflow("train", fox, *KEYS, "steps=6", "save_every=2", f"out={tmp_path / 'run'}")
        assert result.code == 2, result.err
        assert is_one_message(result.message)
        assert "is not finite after step 4; it was not saved" in result.message
        assert checkpoint.latest(tmp_path / "run" / "checkpoints").step == 2


def test_an_evaluation_that_is_not_finite_is_not_reported_and_training_continues(
    hopflow, fox, tmp_path, monkeypatch, caplog
):
    bound = SimpleNamespace(quantity="b0", ppl=float("inf"), ppl_stderr=1.0, n=2)
    monkeypatch.setattr("hopflow.training.tasks.nll_bound", lambda *_, **__: bound)
    result = hopflow("train", fox, *KEYS, "steps=2", f"out={tmp_path / 'run'}")
    assert result.code == 0, result.err
    assert "not finite and therefore not logged: b0_ppl" in caplog.text
    assert "inf" not in (tmp_path / "run" / "metrics.jsonl").read_text().lower()
