"""Golden losses: the first 20 steps of nine small runs, and a run with every setting away from its default.

After a change that is meant to change them: HOPFLOW_GOLDEN=write pytest tests/training/test_golden.py
and say in the commit why they moved.
"""

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from texts import Letters

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.runs.metrics import read
from hopflow.training.settings import Settings, is_learned
from hopflow.training.train import train

FILE = Path(__file__).with_name("golden.json")
SETTINGS_FILE = Path(__file__).with_name("golden_settings.json")
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
def test_golden_losses_equal_the_stored_ones_and_repeat_to_the_bit(tmp_path, source, coupling):
    found = losses(tmp_path / "one", source, coupling)
    assert losses(tmp_path / "other", source, coupling) == found
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("HOPFLOW_GOLDEN") == "write":
        stored[f"{source} {coupling}"] = found
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
    assert found == pytest.approx(stored[f"{source} {coupling}"], rel=1e-4)


def test_golden_runs_of_different_flows_differ():
    """With one mask every x0 is the same row and nothing is left to couple; all other runs are different ones."""
    stored = json.loads(FILE.read_text())
    masked = {tuple(run) for name, run in stored.items() if name.startswith("mask ")}
    others = {tuple(run) for name, run in stored.items() if not name.startswith("mask ")}
    assert (len(stored), len(masked), len(others)) == (9, 1, 6)


AWAY = {
    "steps": 16,
    "batch": 8,
    "accumulate": 2,
    "ot_batch": 16,
    "ot_ema": 0.5,
    "label_dropout": 0.5,
    "weight_ema": 0.9,
    "ahead": 1,
    "lr": 1e-2,
    "warmup": 4,
    "rate": "cosine",
    "beta1": 0.7,
    "beta2": 0.5,
    "adam_eps": 1e-3,
    "weight_decay": 0.5,
    "clip": 0.1,
    "seed": 5,
    "precision": "float32",
    "eval_every": 8,
    "eval_rows": 4,
    "eval_samples": 4,
    "eval_steps": 8,
    "log_every": 1,
    "threads": 1,
    "workers": 0,
}
NUMBERS = ("loss", "grad_norm", "lr", "ot_cost", "ot_independent_cost", "b0_ppl", "b0_se", "b0_n", "jumps")


def numbers(out: Path, **changed) -> list[dict[str, float]]:
    corpus = Letters()
    flow = hf.Flow(hf.Uniform.fit(corpus.counts), coupling=COUPLINGS["exact"])
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=0.1)
    train(model, flow, corpus, out=out, **{**AWAY, **changed})
    return [{name: row[name] for name in NUMBERS if name in row} for row in read(out / "metrics.jsonl")]


def test_a_run_with_every_setting_away_from_its_default_gives_the_numbers_of_the_file(tmp_path):
    found = numbers(tmp_path / "run")
    if os.environ.get("HOPFLOW_GOLDEN") == "write":
        SETTINGS_FILE.write_text(json.dumps(found, indent=1) + "\n")
    stored = json.loads(SETTINGS_FILE.read_text())
    assert [row.keys() for row in found] == [row.keys() for row in stored]
    for ours, theirs in zip(found, stored, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_golden_run_of_settings_leaves_no_setting_that_is_learned_at_its_default():
    learned = {field.name: field.default for field in fields(Settings) if is_learned(field)}
    assert [name for name, default in learned.items() if AWAY.get(name, default) == default] == []
