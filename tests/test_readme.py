"""The README and the guides do what they say: their Python runs in order, their commands run as typed.

Training is shortened (`shortened`): a step for a thousand, and small sizes.
"""

import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from hopflow import cli
from hopflow.cli.infill import KEYS
from hopflow.costs import Hamming

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {"length": 16, "batch": 4, "ot_batch": 8, "holdout": 0.1, "eval_rows": 2, "eval_samples": 2, "eval_steps": 2}
STEPS = 2000
"""What `hopflow train FILE` takes when it is not told."""


def blocks(text: str, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(text) if name == language]


def commands(code: str) -> list[list[str]]:
    """The `$ hopflow …` lines of a console block; a backslash continues a line."""
    lines = code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ hopflow ")]
    unsupported = [line for line in words if {"|", ">", "&&", ";"} & set(line)]
    assert not unsupported, f"only plain commands are run by this test: {unsupported}"
    return words


def shortened(words: list[str]) -> list[str]:
    """`hopflow train …` with a step for a thousand, and small sizes; other commands as they are."""
    if words[1] != "train":
        return words
    keys = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    small = {"steps": int(keys.get("steps", STEPS)) // 1000, **SMALL}
    kept = [word for word in words if word.partition("=")[0] not in small]
    return [*kept, *(f"{key}={value}" for key, value in small.items())]


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder to work in, with a text and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    text = "".join(f"{n} green bottles hanging on the wall, and if {n} of them should fall? " for n in range(400))
    (tmp_path / "my_book.txt").write_text(text)


def run_here(words: list[str], monkeypatch, capsys) -> tuple[int, str]:
    """A command in this process, which need not import torch again: its exit code and what it said."""
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, "".join(capsys.readouterr())


def test_the_readme_keeps_its_promises(book, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    namespace = {"__name__": "readme"}
    for number, code in enumerate(blocks(text, "python"), 1):
        exec(compile(code, f"README.md, Python block {number}", "exec"), namespace)
    for words in commands("".join(blocks(text, "console"))):
        code, said = run_here(shortened(words), monkeypatch, capsys)
        assert code == 0, f"{shlex.join(words)}\n{said}"
    assert Path("runs/my_book/checkpoints/step-000000004").is_dir()
    assert Path("runs/my_book-2").is_dir()


def follow(page: str, monkeypatch, capsys) -> dict:
    """Do what a guide says from top to bottom; the names that its Python has left."""
    namespace = {"__name__": page}
    guide = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for language, code in BLOCK.findall(guide):
        if language in ("toml", "text"):  # a file, whose first line is its name
            name, _, content = code.removeprefix("# ").partition("\n")
            Path(name).write_text(content)
    for language, code in BLOCK.findall(guide):
        if language == "python":
            exec(compile(code, f"docs/{page}", "exec"), namespace)
        for words in commands(code) if language == "console" else []:
            end, said = run_here(shortened(words), monkeypatch, capsys)
            assert end == 0, f"{shlex.join(words)}\n{said}"
    return namespace


def test_the_training_guide_runs_from_top_to_bottom(book, monkeypatch, capsys):
    namespace = follow("training.md", monkeypatch, capsys)
    assert [row["step"] for row in namespace["seen"]] == [0, 10, 20, 30, 39]
    assert Path("runs/my_book/checkpoints/step-000000008").is_dir()
    assert {f.name for f in Path("runs").iterdir()} >= {"words", "mine", "mine-1", "small", "own", "later", "my_book-2"}


def test_the_sampling_guide_runs_from_top_to_bottom(book, monkeypatch, capsys):
    namespace = follow("sampling.md", monkeypatch, capsys)
    assert torch.equal(namespace["out"].path_cost(Hamming()), namespace["out"].jumps.double())
    assert [text[:4] for text in namespace["filled"].text(namespace["saved"].tokenizer)] == ["ten ", "on t"]
    assert len(Path("samples.jsonl").read_text().splitlines()) == 64
    assert [json.loads(line)["prompt"] for line in Path("filled.jsonl").read_text().splitlines()] == [
        "on the [MASK:4]",
        "ten [MASK:5] fall",
    ]


def test_the_guide_to_reports_runs_from_top_to_bottom(book, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    namespace = follow("report.md", monkeypatch, capsys)
    assert namespace["page"] == Path("side_by_side/report.html")
    assert "Side by side" not in namespace["page"].read_text()  # only one of them was evaluated
    assert "Steps against quality" in Path("runs/my_book/report.html").read_text()


def test_the_sampling_guide_names_every_setting_and_field(book, monkeypatch, capsys):
    text = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if not re.search(rf"`?{key}(=|`|\b)", text)] == []
    assert run_here(shortened(["hopflow", "train", "my_book.txt"]), monkeypatch, capsys)[0] == 0
    words = ["hopflow", "infill", "runs/my_book", "a[MASK]", "guidance=1", "--out", "a.jsonl"]
    assert run_here(words, monkeypatch, capsys)[0] == 0
    (row,) = (json.loads(line) for line in Path("a.jsonl").read_text().splitlines())
    assert [field for field in row if field != "index" and f"`{field}`" not in text] == []


def test_the_run_folder_of_the_guide_is_the_one_that_is_written(book, monkeypatch, capsys):
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.partition("## The run folder")[2].partition("\n\nA look")[0]
    assert run_here(shortened(["hopflow", "train", "my_book.txt"]), monkeypatch, capsys)[0] == 0
    written = {f.name for f in Path("runs/my_book").iterdir()} - {"checkpoints", "tensorboard"}
    assert written == set(re.findall(r"`([\w.]+\.(?:jsonl?|csv)|\.lock)`", table)) - {"config.json", "state.json"}


def test_the_installed_command_trains(book):
    hopflow = Path(sys.executable).with_name("hopflow")
    words = shortened(["hopflow", "train", "my_book.txt"])
    run = subprocess.run([hopflow, *words[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    assert "runs/my_book" in run.stdout


@pytest.mark.slow
def test_the_guide_starts_several_processes(book):
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("$ torchrun ")]
    options, _, command = line.removeprefix("$ torchrun ").partition(" -m ")
    started = [sys.executable, "-m", "torch.distributed.run", *options.split(), "-m", *shortened(command.split())]
    run = subprocess.run([*started, "device=cpu"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("nats per token") == 1  # one of them speaks


def test_commands_are_found_and_the_others_left_alone():
    text = "$ make test\n$ hopflow oracle \\\n    seed=1  # note\noutput\n"
    assert commands(text) == [["hopflow", "oracle", "seed=1"]]


def test_a_command_that_would_need_a_shell_is_refused():
    with pytest.raises(AssertionError, match="plain commands"):
        commands("$ hopflow oracle | head\n")


def test_training_is_shortened_and_nothing_else_is():
    small = [f"{key}={value}" for key, value in SMALL.items()]
    assert shortened(["hopflow", "train", "a.txt", "lr=1"]) == ["hopflow", "train", "a.txt", "lr=1", "steps=2", *small]
    assert "steps=6" in shortened(["hopflow", "train", "a.txt", "steps=6000", "batch=512"])
    assert "batch=512" not in shortened(["hopflow", "train", "a.txt", "steps=6000", "batch=512"])
    assert shortened(["hopflow", "oracle", "seed=1"]) == ["hopflow", "oracle", "seed=1"]
