"""Nothing that comes from a file steers a terminal: names, numbers' labels and samples are printed without controls.

Every attack puts the same text into one place of one file, runs a command that shows it, and looks at the output.
"""

import ast
import io
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import FOX, exit_code
from safetensors.torch import load_file, save_file

from hopflow.cli import output
from hopflow.data.build_tokenizer import from_text
from hopflow.data.documents import DocumentChunk
from hopflow.runs import config_file, pretrained
from hopflow.system.progress import Progress

EVIL = "\x1b]0;owned\x07\x1b[31;66m\x9b2J\u202e\x08\u2028\rspoof"
STEERING = ("\x1b]", "\x1b[31;66m", "\x9b", "\x07", "\x08", "\u202e", "\u2028", "\rspoof")
SMALL = ("length=16", "batch=4", "holdout=0.1", "steps=1", "eval_rows=2", "eval_samples=2", "eval_steps=2", "warmup=2")
SMALL += ("device=cpu", "size=micro", "tokens=char")
DRAW = ("n=2", "steps=2", "length=16", "device=cpu")

Arguments = list[str]


class Terminal(io.StringIO):
    """A stream that is taken for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["terminal", "pipe"])
def run(request, monkeypatch) -> Callable[..., SimpleNamespace]:
    """Run a command with both streams on a terminal, or both in a pipe: its exit code and all that it printed."""

    def command(*arguments: str) -> SimpleNamespace:
        out = Terminal() if request.param == "terminal" else io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        monkeypatch.setenv("COLUMNS", "400")  # so that no label is cut
        monkeypatch.setenv("TERM", "xterm-256color")
        return SimpleNamespace(code=exit_code(*arguments), out=out.getvalue())

    command.kind = request.param
    return command


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with an evaluation."""
    home = tmp_path_factory.mktemp("runs")
    (home / "fox.txt").write_text(FOX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        patch.chdir(home)
        for arguments in (["train", "fox.txt", "out=run", *SMALL], ["eval", "run", "n=2", "rows=2", "steps=2"]):
            assert exit_code(*arguments) == 0
    return home / "run"


@pytest.fixture
def copy(trained, tmp_path, monkeypatch) -> Path:
    """A copy of the run, in the working directory."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fox.txt").write_text(FOX)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edit(file: Path, *path: str | int, value: object = EVIL, rename: bool = False) -> None:
    """Put a value, or a key, at a place in a JSON file."""
    content = json.loads(file.read_text())
    part: Any = content
    for key in path[:-1]:
        part = part[key]
    if rename:
        part[EVIL] = part.pop(path[-1])
    else:
        part[path[-1]] = value
    file.write_text(json.dumps(content))


def checkpoint(run: Path) -> Path:
    return sorted(run.glob("checkpoints/step-*"))[-1]


def config(*path: str, **how: Any) -> Callable[[Path], Arguments]:
    """A resealed config.json of the newest checkpoint."""

    def attack(run: Path) -> Arguments:
        file = checkpoint(run) / "config.json"
        edit(file, *path, **how)
        content = json.loads(file.read_text())
        content["sha256"]["config.json"] = config_file.digest(content)
        file.write_text(json.dumps(content))
        return ["sample", str(checkpoint(run)), *DRAW]

    return attack


def weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], Arguments]:
    """Other tensors in the newest checkpoint, under their right hash."""

    def attack(run: Path) -> Arguments:
        folder = checkpoint(run)
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
        content = json.loads((folder / "config.json").read_text())
        digest = pretrained.hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        content["sha256"]["model.safetensors"] = digest
        (folder / "config.json").write_text(json.dumps(content))
        return ["sample", str(folder), *DRAW]

    return attack


def recipe(*path: str, command: Arguments, **how: Any) -> Callable[[Path], Arguments]:
    def attack(run: Path) -> Arguments:
        edit(run / "recipe.json", *path, **how)
        return [part.replace("RUN", str(run)) for part in command]

    return attack


def evaluated(*keys: str) -> Callable[[Path], Arguments]:
    """These fields of every row of eval.json."""

    def attack(run: Path) -> Arguments:
        content = json.loads((run / "eval.json").read_text())
        for row in content["rows"]:
            row.update(dict.fromkeys(keys, EVIL))
        (run / "eval.json").write_text(json.dumps(content))
        return ["compare", str(run), str(shutil.copytree(run, run.with_name("other")))]

    return attack


def evaluation(*path: str | int) -> Callable[[Path], Arguments]:
    """One value of eval.json."""

    def attack(run: Path) -> Arguments:
        edit(run / "eval.json", *path)
        return ["compare", str(run), str(shutil.copytree(run, run.with_name("other")))]

    return attack


def samples(run: Path) -> Arguments:
    """What the summary of a run shows of its samples."""
    (run / "samples.jsonl").write_text(json.dumps({"text": EVIL}) + "\n")
    return ["train", str(run)]


def file(
    name: str, content: str, *command: str, beside: str = "", content_beside: str = ""
) -> Callable[[Path], Arguments]:
    """A file in the working directory, perhaps with another one next to it, and the command that reads it."""

    def attack(run: Path) -> Arguments:
        path = run.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if beside:
            path.with_name(beside).write_text(content_beside)
        return [part.replace("RUN", str(run)) for part in command]

    return attack


def tokenizer(run: Path) -> Arguments:
    """A tokenizer that can be used, in a file with an evil name."""
    name = f"{EVIL}.json"
    (run.parent / name).write_text(
        from_text("bpe:260", "", iter([DocumentChunk(FOX, True)]), Progress(None)).definition
    )
    return ["data", "prepare", "fox.txt", "length=16", f"tokens={name}"]


def moved(*command: str) -> Callable[[Path], Arguments]:
    """The run's folder has an evil name."""

    def attack(run: Path) -> Arguments:
        other = shutil.copytree(run, run.with_name("other"))
        home = run.rename(run.with_name(f"r{EVIL}"))
        return [part.replace("RUN", str(home)).replace("OTHER", str(other)) for part in command]

    return attack


ATTACKS: dict[str, Callable[[Path], Arguments]] = {
    "the class of the network": config("model", "kind"),
    "an argument of the network": config("model", "size", rename=True),
    "the module of a network of one's own": config("model", value={"kind": "custom", "class": EVIL}),
    "the class of the flow": config("flow", "kind"),
    "the class of the source": config("flow", "source", "kind"),
    "an argument of the source": config("flow", "source", "vocab", rename=True),
    "a value of the vocabulary": config("flow", "source", "vocab", "data"),
    "the class of the coupling": config("flow", "coupling", "kind"),
    "an extra tensor": weights(lambda tensors: {**tensors, EVIL: next(iter(tensors.values())).clone()}),
    "a recipe's value": recipe("recipe", "data", command=["config", "show", "RUN"]),
    "a recipe's key": recipe("recipe", "size", rename=True, command=["config", "show", "RUN"]),
    "a recipe's source": recipe("recipe", "source", command=["config", "show", "RUN"]),
    "a recipe's difference": recipe("recipe", "data", command=["config", "diff", "RUN", "text"]),
    "a recipe that is gone on with": recipe("identity", "tokens", command=["train", "RUN"]),
    "a key that is gone on with": recipe("identity", "tokens", rename=True, command=["train", "RUN"]),
    "a recipe's data": recipe("recipe", "data", command=["train", "RUN"]),
    "a recipe's size": recipe("recipe", "size", command=["train", "RUN", "--dry-run"]),
    "a recipe's format": recipe("format", command=["train", "RUN"]),
    "the set of a number": evaluated("set"),
    "the name of a number": evaluated("quantity"),
    "the sampler of a number": evaluated("sampler"),
    "the name of a run that is reported": moved("report", "RUN", "--out", "nowhere/report.html"),
    "the name of a file that is missing": lambda run: ["train", f"{EVIL}.txt"],
    "the name of a recipe": lambda run: ["train", EVIL],
    "the name of a setting": lambda run: ["train", "fox.txt", f"{EVIL}=1"],
    "the name of a text": file(f"{EVIL}.txt", FOX, "train", f"{EVIL}.txt", *SMALL, "--dry-run"),
    "the name of a corpus": file(f"corpora/{EVIL}/train.txt", FOX, "data", "list"),
    "the name of a run": moved("compare", "RUN", "OTHER"),
    "the name of a run that is drawn from": moved("sample", "RUN", *DRAW),
    "the name of a run that is evaluated": moved("eval", "RUN", "n=2", "rows=2", "steps=2"),
    "the name of the file for samples": lambda run: ["sample", str(run), *DRAW, "--out", f"{EVIL}.jsonl"],
    "the name of the report": lambda run: ["report", str(run), "--out", f"{EVIL}.html"],
    "a sample of an earlier evaluation": samples,
    "the format of eval.json": evaluation("format"),
    "a number of eval.json": evaluation("rows", 0, "value"),
    "the name of a tokenizer": tokenizer,
    "a class of a judge": file(
        "judge/config.json", json.dumps({"model_type": EVIL}), "eval", "RUN", "judge=judge", beside="model.safetensors"
    ),
    "a key of a judge": file(
        "judge/config.json", json.dumps({"model_type": "gpt2", f"layer{EVIL}": 10**9}), "eval", "RUN", "judge=judge"
    ),
    "a file of weights of a judge": file(
        *("judge/config.json", json.dumps({"model_type": "gpt2"}), "eval", "RUN", "judge=judge"),
        beside="model.safetensors.index.json",
        content_beside=json.dumps({"weight_map": {"a": f"{EVIL}.safetensors"}}),
    ),
    "a tokenizer's file name": file(f"{EVIL}.json", "{", "data", "prepare", "fox.txt", f"tokens={EVIL}.json"),
    "a line of a .jsonl": file("text.jsonl", json.dumps({EVIL: "no text"}), "data", "prepare", "text.jsonl"),
    "a name of a judge": lambda run: ["eval", str(run), f"judge={EVIL}"],
    "a traceback": lambda run: ["train", f"{EVIL}.txt", "--debug"],
}


def steering(text: str) -> list[str]:
    return [part for part in STEERING if part in text]


@pytest.mark.parametrize("place", ATTACKS)
def test_text_from_a_file_does_not_steer_a_terminal(run, copy, monkeypatch, place):
    monkeypatch.setenv("HOPFLOW_DATA", str(copy.parent / "corpora"))
    found = run(*ATTACKS[place](copy))
    assert steering(found.out) == []
    assert "owned" in found.out  # so that the text is shown at all
    assert found.code in (0, 2)


def test_what_is_logged_outside_of_training_does_not_steer_a_terminal(run, monkeypatch):
    run("--version")
    found = io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    logging.lastResort.handle(logging.LogRecord("hopflow", logging.WARNING, "", 0, "%s", (EVIL,), None))
    warnings.showwarning(EVIL, UserWarning, "", 0)
    assert found.getvalue().count("owned") == 2
    assert steering(found.getvalue()) == []


def test_a_table_a_box_and_a_bar_show_text_as_it_is_but_for_controls(monkeypatch):
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    screen = output.console()
    rows = output.figures(f"[red]title{EVIL}", 1, "column")
    rows.add_row(f"[bold]cell{EVIL}")
    screen.print(rows)
    screen.print(f"[link=file:///]line{EVIL}", style="red")
    output.box(screen, f"[b]box{EVIL}", {f"[i]name{EVIL}": f"[i]value{EVIL}"})
    for text in ("[red]title", "[bold]cell", "[link=file:///]line", "[b]box", "[i]name", "[i]value"):
        assert text in found.getvalue()
    assert steering(found.getvalue()) == []
    assert "\x1b[31m" in found.getvalue()  # the colors of our own


def test_commands_print_only_by_functions_that_replace_control_characters():
    allowed = {("output.py", "typer.echo"), ("sample_output.py", "sys.stdout.write"), ("training_log.py", "typer.echo")}
    ways = {"print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"}
    ways |= {"Console", "traceback.print_exc", "rich.print"}
    found = {
        (file.name, ast.unparse(node.func))
        for file in (Path(output.__file__).parent).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ways
    }
    assert found == allowed
