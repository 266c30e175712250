"""Golden losses: the first 20 steps of nine small runs, as they were when they were checked in.

After a change that is meant to change them: HOPFLOW_GOLDEN=write pytest tests/training/test_golden.py
and say in the commit why they moved.
"""

import json
import os
from pathlib import Path

import pytest
import torch

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.training.loop import train
from hopflow.training.metrics import read
from texts import Letters

FILE = Path(__file__).with_name("golden.json")
SOURCES = {"mask": hf.Mask, "multimask": hf.MultiMask, "bag_of_words": hf.BagOfWords}
COUPLINGS = {
    "independent": hf.Independent(),
    "exact": hf.ExactOT(hf.SquaredEmbedding()),
    "sinkhorn": hf.SinkhornOT(hf.Hamming(), eps=0.05),
}
KEYS = {"workers": 0, "log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "warmup": 5, "lr": 3e-3}


def losses(out: Path, source: str, coupling: str) -> list[float]:
    corpus = Letters()
    flow = hf.Flow(SOURCES[source].fit(corpus.counts), coupling=COUPLINGS[coupling])
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=0.1)
    train(model, flow, corpus, out=out, steps=20, batch=8, ot_batch=16, weight_ema=0.99, **KEYS)
    return [row["loss"] for row in read(out / "metrics.jsonl")]


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_losses_are_those_of_the_file_and_the_same_bits_twice(tmp_path, source, coupling):
    found = losses(tmp_path / "one", source, coupling)
    assert losses(tmp_path / "other", source, coupling) == found
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("HOPFLOW_GOLDEN") == "write":
        stored[f"{source} {coupling}"] = found
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
    assert found == pytest.approx(stored[f"{source} {coupling}"], rel=1e-4)


def test_runs_differ_where_their_flows_do():
    """With one mask every x0 is the same row and nothing is left to couple; all other runs are different ones."""
    stored = json.loads(FILE.read_text())
    masked = {tuple(run) for name, run in stored.items() if name.startswith("mask ")}
    others = {tuple(run) for name, run in stored.items() if not name.startswith("mask ")}
    assert (len(stored), len(masked), len(others)) == (9, 1, 6)
