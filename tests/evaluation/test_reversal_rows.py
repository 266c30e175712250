"""br in an evaluation: its rows, what is said of them, and where it is left out."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
import toys

import hopflow as hf
from hopflow.evaluation.likelihood import missing_bounds
from hopflow.evaluation.rows import Row, merged
from hopflow.evaluation.table import page
from hopflow.evaluation.verdict import verdict
from hopflow.exact import Perfect, Space

ONCE = {"gen": False, "coupling": "none", "error": 0.0, "seconds": 1e9}


def perfect(name: str) -> tuple[Perfect, hf.Flow, torch.Tensor]:
    oracle = toys.oracle(name, network=None, seed=5)
    which = torch.multinomial(oracle.q, 96, replacement=True, generator=toys.generator(1))
    return Perfect(oracle.flow, oracle.q, 2), oracle.flow, Space(oracle.flow.vocab, 2).data[which]


def reversed_rows(rows: list[Row]) -> dict[tuple[float | None, int], Row]:
    return {(row.eta, row.more["paths"]): row for row in rows if row.quantity == "br"}


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_br_is_measured_with_one_path_and_with_all_and_bounds_the_steps(name):
    model, flow, x1 = perfect(name)
    found = reversed_rows(hf.evaluate(model, flow, x1, steps=16, paths=4, rows=len(x1), **ONCE))
    assert set(found) == {(eta, paths) for eta in (0.0, 1.0) for paths in (1, 4)}
    oracle = toys.oracle(name, network=None, seed=5)
    data = Space(flow.vocab, 2).data.tolist()
    for (eta, paths), row in found.items():
        exact = -oracle.law(eta, 16).log()[[data.index(one) for one in x1.tolist()]]
        assert row.more["nats"] > float(exact.mean()) - 4 * row.more["nats_draw_stderr"]
        assert row.more["nats"] < float(exact.mean()) + 0.1
        assert (row.more["steps"], row.more["calls"], row.is_bound) == (16, 16 * paths, True)
        assert row.more["sampler"] == f"η = {eta:g}, 16 steps"
    for eta in (0.0, 1.0):
        assert 1 == found[eta, 1].more["effective_paths"] < found[eta, 4].more["effective_paths"] <= 4
        assert found[eta, 4].more["nats"] < found[eta, 1].more["nats"]


def test_rows_of_different_paths_never_replace_each_other():
    model, flow, x1 = perfect("uniform")
    small, large = (hf.evaluate(model, flow, x1, steps=4, paths=paths, rows=96, **ONCE) for paths in (2, 4))
    together = reversed_rows(merged(small, large))
    assert {paths for _, paths in together} == {1, 2, 4}
    for row in together.values():
        assert Row.from_json(json.loads(json.dumps(row.as_json(), allow_nan=False))).key == row.key


def test_blocks_of_sequences_are_averaged_with_their_diagnostics():
    model, flow, x1 = perfect("uniform")
    (row,) = (row for (eta, paths), row in reversed_rows(
        hf.evaluate(model, flow, x1, eta=0, steps=4, paths=4, rows=96, **ONCE)
    ).items() if paths == 4)  # fmt: skip
    assert row.n == 96  # in blocks of 16, 32 and 48
    assert math.isfinite(row.more["log_weight_sd"])
    assert 1 < row.more["effective_paths"] < 4


def test_from_masks_br_is_left_out_and_a_remark_says_why():
    model, flow, x1 = perfect("mask")
    assert reversed_rows(hf.evaluate(model, flow, x1, steps=4, rows=96, **ONCE)) == {}
    assert "no br: data tokens stay" in missing_bounds(flow)[0]
    assert not any("br" in line for line in missing_bounds(hf.Flow(hf.Uniform(hf.Vocab(3)))))


def test_no_paths_leave_br_out_and_one_path_is_refused():
    model, flow, x1 = perfect("uniform")
    assert reversed_rows(hf.evaluate(model, flow, x1, steps=4, paths=0, rows=96, **ONCE)) == {}
    with pytest.raises(ValueError, match="paths must be an integer ≥ 2, or 0"):
        hf.evaluate(model, flow, x1, paths=1)


def test_the_verdict_takes_br_with_most_paths():
    model, flow, x1 = perfect("uniform")
    rows = hf.evaluate(model, flow, x1, steps=(4, 8), paths=4, rows=96, **ONCE)
    (line, *_) = verdict(rows)
    assert line.count("(br, n = 96)") == 2
    assert line.endswith("in 8 steps.")


def test_the_verdict_takes_bn_where_it_is_lower():
    """Reversed paths of a rough network have weights so uneven that the simpler bound may be tighter."""
    model, flow, x1 = rough()
    each = {row.quantity: row for row in hf.evaluate(model, flow, x1, eta=0, steps=4, rows=32, **ONCE)}
    lower = min(("bn", "br"), key=lambda name: each[name].value)
    assert f"({lower}, n = 32), in 4 steps." in verdict(list(each.values()))[0]
    swapped = {"bn": each["br"].value, "br": each["bn"].value}
    rows = [replace(row, value=swapped.get(name, row.value), stderr=1e-3, each=()) for name, row in each.items()]
    assert f"({({'bn', 'br'} - {lower}).pop()}, n = 32), in 4 steps." in verdict(rows)[0]


def rough() -> tuple[hf.Transformer, hf.Flow, torch.Tensor]:
    torch.manual_seed(0)
    flow = hf.Flow(hf.Uniform(hf.Vocab(5)))
    model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2), dropout=0.0)
    torch.nn.init.normal_(model.head.weight, std=3.0)
    return model, flow, torch.randint(5, (32, 12), generator=toys.generator(3))


def test_tables_name_the_paths_and_say_where_too_few_of_them_count():
    model, flow, x1 = rough()
    text = page(hf.evaluate(model, flow, x1, eta=0, steps=4, rows=32, **ONCE), width=80)
    assert "br (1 path)" in text
    assert "br (8 paths)" in text
    assert re.search(
        r"br: the 8 paths count as \d\.\d effective paths; paths=64 would lower br", text.replace("\n", " ")
    )
