"""A trained bag-of-words flow, from the command line to its table: minutes on one core."""

import sys

import pytest

from hopflow import cli
from hopflow.evaluation import record
from hopflow.recipes import Recipe, build

pytestmark = pytest.mark.slow

TALE = "the dog sleeps on the old sofa and dreams of the cat; who would not? the cat sleeps in the sun, and knows it. "
KEYS = {
    "length": 32,
    "batch": 32,
    "holdout": 0.1,
    "workers": 0,
    "warmup": 20,
    "lr": 2e-3,
    "dropout": 0.0,
    "device": "cpu",
}
KEYS |= {"eval_every": 0, "eval_rows": 0, "eval_samples": 0}


def test_bounds_judgement_entropy_and_jumps_of_both_samplers_stand_in_one_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tale.txt").write_text(TALE * 60)
    text = {"data": str(tmp_path / "tale.txt"), **KEYS}
    build(Recipe(source="bag_of_words", weight_ema=0.98, steps=300, **text)).train(out=tmp_path / "flow")
    build(Recipe(model="causal", steps=60, **text)).train(out=tmp_path / "judge")
    words = ("n=64", "seconds=60", "error=0.02", "coupling=exact", "ot_n=8", "draws=16")
    monkeypatch.setattr(sys, "argv", ["hopflow", "eval", str(tmp_path / "flow"), f"judge={tmp_path / 'judge'}", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    rows = record.read(tmp_path / "flow")

    def value(set: str, quantity: str, eta: float | None, steps: int | None = None) -> float:
        (row,) = [
            row
            for row in rows
            if (row.set, row.quantity, row.eta, row.more.get("steps")) == (set, quantity, eta, steps)
        ]
        return row.value

    b0, bk, b1 = (value("held-out", name, eta) for name, eta in (("b0", 0.0), ("bk", 0.0), ("b1", 1.0)))
    assert max(b1, bk) < b0 < 30
    assert value("held-out", "coupled", 0.0) < value("held-out", "coupled_info", 0.0)
    for eta in (0.0, 1.0):
        assert value("samples", "gen_ppl", eta, 32) > value("held-out", "gen_ppl", None)  # the judge knows the tale
        assert abs(value("samples", "entropy_bits", eta, 32) - value("held-out", "entropy_bits", None)) < 0.5
    assert value("samples", "jumps", 1.0, 32) > 2 * value("samples", "jumps", 0.0, 32)
    assert capsys.readouterr().out.startswith("held-out: at most ")
    page = (tmp_path / "flow" / "eval.md").read_text()
    for word in ("| b0 ", "| bk ", "| b1 ", "gen_ppl", "entropy, bits", "hops", "not a bound"):
        assert word in page
