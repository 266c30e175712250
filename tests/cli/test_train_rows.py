"""`hopflow train` on files of rows: a run is trained and evaluated; bad input is one message and leaves nothing."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SMALL = ("steps=2", "size=micro", "batch=4", "eval_samples=2", "eval_steps=2", "threads=1")


@pytest.fixture
def hopflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOPFLOW_REPORT", "off")

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "hopflow", *words], capture_output=True, text=True, timeout=300)

    return run


def test_a_fasta_file_is_trained_with_a_cost_from_a_table_and_evaluated(hopflow):
    Path("dna.fasta").write_text("".join(f">{i}\n{'ACGT'[i % 4] * 3}{'ACGT'[i // 4 % 4] * 3}\n" for i in range(64)))
    Path("costs.txt").write_text("A C G T\nA 5 -4 -2 -4\nC -4 5 -4 -2\nG -2 -4 5 -4\nT -4 -2 -4 5\n")
    words = ("source=uniform", "coupling=exact", "cost=token_matrix:costs.txt")
    out = hopflow("train", "dna.fasta", *words, *SMALL)
    assert out.returncode == 0, out.stderr
    recipe = json.loads(Path("runs/dna/recipe.json").read_text())["recipe"]
    assert recipe["length"] == 6
    out = hopflow("eval", "runs/dna", "n=4", "steps=2", "rows=4", "seconds=1", "paths=0")
    assert out.returncode == 0, out.stderr
    assert "perplexity bound" in out.stdout


def test_rows_of_different_lengths_are_evaluated_by_their_samples_only(hopflow):
    Path("x.smi").write_text("CCO\nc1ccccc1\nCC(=O)O\nCCN\n" * 8)
    assert hopflow("train", "x.smi", *SMALL).returncode == 0
    out = hopflow("eval", "runs/x", "n=4", "steps=2")
    assert out.returncode == 0, out.stderr
    assert "samples" in out.stdout
    assert "perplexity bound" not in out.stdout


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.npz", lambda: np.savez("x.npz", tokens=np.full((4, 2), 3), vocab=2), "token id 3 is out of range 0 … 1"),
        ("x.npy", lambda: np.save("x.npy", np.zeros(4, int)), "must have shape (rows, positions)"),
        ("x.npz", lambda: np.savez("x.npz", tokens=np.ones((2, 2), int), labels=[0, np.nan]), "row 1 is NaN"),
        ("x.fasta", lambda: Path("x.fasta").write_text(">a\n"), "has no sequence"),
        ("x.npy", lambda: np.save("x.npy", np.array(3)), "got a single value"),
        ("x.csv", lambda: Path("x.csv").write_text("p0\nnan\n"), "row 2, column p0: 'nan' is not an integer"),
    ],
    ids=["ids out of range", "wrong shape", "NaN labels", "a FASTA without a sequence", "one number", "NaN"],
)
def test_bad_rows_end_with_one_message_and_code_2_and_nothing_is_written(hopflow, name, make, message):
    make()
    out = hopflow("train", name, *SMALL)
    assert out.returncode == 2
    assert message in out.stderr
    assert "Traceback" not in out.stderr
    assert not Path("runs").exists()
    assert not list(Path("cache").glob("tokens/*/*"))
