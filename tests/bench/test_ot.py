"""`hopflow bench ot` reports correct values; no test checks a speed."""

import json
import sys
from functools import partial

import pytest
import torch

from hopflow import ExactOT, SquaredEmbedding, cli
from hopflow.bench import ot as bench
from hopflow.bench import pairs
from hopflow.transport.assignment import best_engine

SOLVERS = {"hopflow_exact", "hopflow_sinkhorn", "pot_emd", "pot_sinkhorn", "scipy", best_engine()}


@pytest.fixture(scope="module")
def rows():
    return bench.run(n=24, seed=3)


def test_every_solver_runs_on_every_case(rows):
    for case in bench.grid(n=24):
        assert {row.solver for row in rows if row.case == case} == SOLVERS


def test_exact_solvers_agree_to_nine_digits_and_both_sinkhorns_to_their_tolerance(rows):
    for case in bench.grid(n=24):
        value = {row.solver: row.value for row in rows if row.case == case and row.device == "cpu"}
        for solver in ("scipy", best_engine(), "pot_emd"):
            assert value[solver] == pytest.approx(value["hopflow_exact"], rel=1e-9)
        assert value["hopflow_sinkhorn"] == pytest.approx(value["pot_sinkhorn"], rel=1e-4)
        assert value["hopflow_exact"] < value["hopflow_sinkhorn"]


def test_gains_are_relative_to_independent_pairs_and_marginal_errors_are_small(rows):
    for row in rows:
        split = bench.cost_matrix(row.case, 3)
        assert row.gain == pytest.approx(1 - row.value / split.mean(), abs=1e-6)
        assert row.gain > 0
        assert row.ms > 0
        assert 0 <= row.marginal_error < (1e-4 if "sinkhorn" in row.solver else 1e-9)


def test_the_grids_contain_the_documented_sizes():
    short, whole = list(bench.grid()), list(bench.grid(full=True))
    assert {case.n for case in short} == {64, 512, 2048}
    assert {case.length for case in short} == {128}
    assert {case.cost for case in short} == {"hamming", "hamming_words", "squared_embedding"}
    assert {case.n for case in whole} == {64, 128, 256, 512, 1024, 2048, 4096}
    assert {case.length for case in whole} == {128, 1024}
    assert {case.width for case in whole} == {None, 256, 768, 1536}
    assert set(short) <= set(whole)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the command itself runs it there")
def test_the_gpu_measurement_gives_correct_values_on_a_cpu():
    case = bench.SolverCase("squared_embedding", 24, 16, 500, 12)
    rows = bench.measure_on(torch.device("cpu"), case, 3, bench._pot())
    value = {row.solver: row.value for row in rows}
    assert value["hopflow_cost"] == pytest.approx(value["cdist_float32"], rel=1e-5)
    assert value["hopflow_sinkhorn"] == pytest.approx(value["pot_sinkhorn"], rel=1e-4)
    assert value["hopflow_exact"] < value["hopflow_sinkhorn"] < value["hopflow_cost"]
    assert all(row.marginal_error < 1e-4 for row in rows)
    assert {case.n for case in bench.gpu_grid()} == {512, 1024, 2048, 4096}


def test_a_run_restores_the_number_of_torch_threads(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda case, split, pot: [])
    before = torch.get_num_threads()
    bench.run(n=2)
    assert torch.get_num_threads() == before


def test_the_command_prints_a_table_and_writes_json(hopflow, monkeypatch, tmp_path, rows):
    asked = {}

    def run(*, progress, **settings):
        asked.update(settings)
        return rows

    sizes = {"n": 16, "length": 4, "width": 4, "tokens": 20, "step_seconds": 0.001, "workers": 0, "blocks": 2}
    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(pairs, "pairing_cost", partial(pairs.pairing_cost, **sizes))
    file = tmp_path / "bench.json"
    ended = hopflow("bench", "ot", "n=24", "seed=3", "full=true", "--json", str(file))
    assert ended.code == 0
    assert asked == {"full": True, "n": 24, "seed": 3}
    content = json.loads(file.read_text())
    assert content.keys() == {"rows", "hiding"}
    written = content["rows"]
    assert len(written) == len(rows)
    for row in written:
        assert {"solver", "cost", "device", "n", "ms", "value", "marginal_error", "gain"} <= row.keys()
    assert "squared_embedding n=24 L=128" in ended.out
    assert "hopflow_exact" in ended.out
    assert [(row["coupling"], row["updates"]) for row in content["hiding"]] == [
        (str(coupling), updates) for coupling in (ExactOT(), ExactOT(SquaredEmbedding())) for updates in (1, 8)
    ]
    assert all(row["slowdown"] == row["seconds_paired"] / row["seconds_plain"] - 1 for row in content["hiding"])
    assert all(row["slowdown_stderr"] >= 0 and row["blocks"] == 2 for row in content["hiding"])
    assert "couplings computed during a 100 ms training step" in ended.out
    assert ended.out.count("ExactOT(cost=") == 4


def test_without_pot_the_error_names_the_package_to_install(hopflow, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    ended = hopflow("bench", "ot", "n=4")
    assert ended.code == cli.ENVIRONMENT
    assert "pip install 'hopflow[ot]'" in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("bad", ["n=0", "n=40000", "full=yes", "size=3"])
def test_invalid_settings_are_user_errors(hopflow, bad):
    assert hopflow("bench", "ot", bad).code == cli.USER
