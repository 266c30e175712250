"""The whole demo on the built-in text, about two minutes: transport saves hops, as predicted, and the flow learns."""

import json

import pytest

from hopflow import demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_transport_saves_hops_as_predicted_and_the_flows_learn(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    demo.run(tmp_path / "demo", offline=True)
    found = json.loads((tmp_path / "demo" / "demo.json").read_text())
    one, other = found["independent"], found["ot"]
    saved, error = one["jumps"] - other["jumps"], (one["jumps_se"] ** 2 + other["jumps_se"] ** 2) ** 0.5
    assert saved >= 0.1 * one["jumps"]
    assert saved > 4 * error
    for row in (one, other):
        assert row["jumps"] == pytest.approx(row["predicted_jumps"], rel=0.08)
        assert row["b1_ppl"] <= 0.85 * found["source_ppl"]
    assert found["samples"] >= 128
    assert found["sampler_steps"] <= 128
