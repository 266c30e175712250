"""label= of sample and infill, and bounds of each label in eval."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("steps=2", "size=micro", "batch=4", "eval_samples=2", "eval_steps=2", "threads=1")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a run on labelled sequences."""
    folder = tmp_path_factory.mktemp("labels")
    lines = (
        f">{i} label={'even' if i % 2 == 0 else 'odd'}\n{'ACGT'[i % 4] * 3}{'ACGT'[i // 4 % 4] * 3}\n"
        for i in range(400)
    )
    (folder / "dna.fasta").write_text("".join(lines))
    run = command(folder)
    done = run("train", "dna.fasta", "source=uniform", "coupling=exact", *SMALL)
    assert done.returncode == 0, done.stderr
    return folder


def command(folder: Path):
    def run(*words: str) -> subprocess.CompletedProcess:
        env = {"HOPFLOW_CACHE": str(folder / "cache"), "HOPFLOW_REPORT": "off", "PATH": "", "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        full = [sys.executable, "-m", "hopflow", *words]
        return subprocess.run(full, capture_output=True, text=True, timeout=300, cwd=folder, env=env)

    return run


def test_samples_of_several_labels_are_drawn_in_turn_and_stored_with_their_label(home):
    run = command(home)
    done = run("sample", "runs/dna", "label=odd,0,-1", "n=4", "steps=2", "guidance=2", "--out", "s.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (home / "s.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == ["odd", "even", None, "odd"]
    assert rows[0]["guidance"] == 2.0
    assert "odd, even, none" in done.stderr
    done = run("infill", "runs/dna", "A[MASK:5]", "label=even", "steps=2", "--out", "i.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "i.jsonl").read_text())["label"] == "even"


def test_an_evaluation_has_the_bounds_of_each_label(home):
    done = command(home)("eval", "runs/dna", "n=4", "steps=2", "rows=8", "seconds=1", "paths=2")
    assert done.returncode == 0, done.stderr
    rows = json.loads((home / "runs/dna/eval.json").read_text())["rows"]
    sets = {row["set"] for row in rows if row["quantity"] == "b1"}
    assert sets == {"held-out", "held-out, label even", "held-out, label odd"}
    every, even, odd = (
        next(row for row in rows if (row["set"], row["quantity"]) == (name, "b1"))
        for name in ("held-out", "held-out, label even", "held-out, label odd")
    )
    assert even["n"] + odd["n"] == every["n"] == 8
    assert even["n"] * even["nats"] + odd["n"] * odd["nats"] == pytest.approx(every["n"] * every["nats"])
    assert not {row["set"] for row in rows if row["quantity"] == "coupled"} & {"held-out, label even"}


def test_labels_that_changed_since_the_training_are_not_evaluated(home):
    file = home / "dna.fasta"
    text = file.read_text()
    file.write_text(text.replace("=even", "=x").replace("=odd", "=even").replace("=x", "=odd"))
    done = command(home)("eval", "runs/dna", "n=4", "steps=2", "rows=4", "seconds=1", "paths=0")
    file.write_text(text)
    assert done.returncode == 2
    assert "the labels in dna.fasta have changed since runs/dna was trained on them" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "has labels (even, odd): set label=LABEL, or label=-1 for no label"),
        (("label=evn",), "label=evn is unknown; did you mean 'even'? labels are even, odd"),
    ],
)
def test_a_missing_or_unknown_label_is_one_message(home, words, message):
    done = command(home)("sample", "runs/dna", *words, "n=1")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_labels_that_the_data_does_not_have_are_refused(home):
    (home / "plain.txt").write_text("abab\nbaba\n" * 40)
    done = command(home)("train", "plain.txt", "labels=true", "length=4", *SMALL)
    assert (done.returncode, (home / "runs/plain").exists()) == (2, False)
    assert "labels=true needs data with a label for each row" in done.stderr


def test_a_network_that_ignores_labels_is_trained_with_a_warning(home):
    run = command(home)
    done = run("train", "dna.fasta", "source=uniform", "model=convolutional", "out=runs/conv", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "model=convolutional ignores the labels of the rows" in done.stderr
    done = run("train", "dna.fasta", "source=uniform", "model=convolutional", "labels=false", "out=runs/none", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "ignores the labels" not in done.stderr
