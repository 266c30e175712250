"""`hopflow bench eval` reports correct values; no test checks a speed."""

import json

import pytest

from hopflow.bench import bounds

CASE = bounds.BoundsCase(n=8, length=6, tokens=20, draws=2)


@pytest.fixture(scope="module")
def rows():
    return bounds.run(CASE)


def test_every_bound_of_every_source_is_measured_in_both_variants(rows):
    found = [(row.source, row.quantity) for row in rows if row.variant == "default"]
    assert found == [("mask", "b0"), ("mask", "bn"), *(("uniform", name) for name in ("b0", "b1", "bn", "bk"))]
    assert [(row.source, row.quantity) for row in rows if row.variant == "float32"] == found


def test_on_a_cpu_both_variants_have_the_same_value(rows):
    for plain, default in zip(rows[::2], rows[1::2], strict=True):
        assert (plain.variant, default.variant) == ("float32", "default")
        assert plain.dtype == default.dtype == "float32"
        assert default.nats == pytest.approx(plain.nats, rel=1e-5)
        assert plain.ratio == 1
        assert default.ratio == pytest.approx(default.sequences_per_s / plain.sequences_per_s)


def test_the_command_prints_a_table_and_writes_json(hopflow, tmp_path):
    file = tmp_path / "bench.json"
    keys = ("n=4", "length=4", "tokens=9", "draws=2", "source=mask", "device=cpu")
    ended = hopflow("bench", "eval", *keys, "--json", str(file))
    assert ended.code == 0, ended.err
    content = json.loads(file.read_text())
    assert [(row["quantity"], row["variant"]) for row in content["rows"]] == [
        (name, variant) for name in ("b0", "bn") for variant in ("float32", "default")
    ]
    assert "difference, s.e." in ended.out
