"""Pairs of several processes: a global coupling does not depend on how many there are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from paired_runs import BATCH, COUPLINGS, LENGTH, OT_BATCH, labels, pairing, plain, rows, table
from safetensors.torch import load_file

from hopflow.runs.ot_batch import Share

STEPS = range(14)


def gloo(folder: Path, world: int, coupling: str, kind: str = "global", start: int = 0, end: int = 14) -> None:
    """Run `world` processes over the loopback and wait for them."""
    (folder / "store").unlink(missing_ok=True)
    program = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "gloo_run.py"), str(folder)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen([*program, str(rank), str(world), coupling, kind, str(start), str(end)], env=env)
        for rank in range(world)
    ]
    try:
        assert [process.wait(120) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()


def pairs(folder: Path, world: int) -> torch.Tensor:
    """(steps, 2, B, L), the parts of all processes side by side."""
    return torch.cat([load_file(folder / f"{rank}.safetensors")["pairs"] for rank in range(world)], 2)


@pytest.mark.parametrize("coupling", ["embedded", pytest.param("hamming", marks=pytest.mark.slow)])
def test_a_global_coupling_is_the_same_for_two_processes_as_for_one(tmp_path, coupling):
    gloo(tmp_path, 2, coupling)
    assert torch.equal(pairs(tmp_path, 2), plain(COUPLINGS[coupling], STEPS))


@pytest.mark.parametrize("coupling", ["learned", pytest.param("embedded", marks=pytest.mark.slow)])
def test_a_global_grouped_coupling_is_the_same_for_two_processes_even_if_the_cost_reads_the_network(tmp_path, coupling):
    gloo(tmp_path, 2, coupling, "grouped", end=6)
    assert torch.equal(pairs(tmp_path, 2), plain(COUPLINGS[coupling], range(6), groups=labels))


@pytest.mark.slow
@pytest.mark.parametrize("coupling", ["embedded", "learned"])
def test_a_global_run_resumes_on_another_number_of_processes(tmp_path, coupling):
    got = []
    for world, start, end in ((1, 0, 5), (2, 5, 8), (1, 8, 14)):
        gloo(tmp_path, world, coupling, start=start, end=end)
        got.append(pairs(tmp_path, world))
    assert torch.equal(torch.cat(got), plain(COUPLINGS[coupling], STEPS))


@pytest.mark.slow
def test_an_error_of_process_0_ends_every_process(tmp_path):
    gloo(tmp_path, 2, "embedded", end=101)
    kinds = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert kinds[0][0] == "ValueError"
    assert "NaN" in kinds[0][1]
    assert kinds[1] == ["RuntimeError", "process 0 could not pair OT batch 4; see its error message."]


def per_rank(coupling: str, world: int) -> torch.Tensor:
    """A coupling per process needs no communication, so one process can play them all."""
    parts = []
    for rank in range(world):
        share = Share(rank, world)
        with pairing(COUPLINGS[coupling], lambda b, share=share: share.take(rows(b), BATCH), share=share) as paired:
            parts.append(torch.stack([torch.stack(paired.step(step, table(step))) for step in STEPS]))
    return torch.cat(parts, 2)


def sorted_rows(x: torch.Tensor) -> list[list[int]]:
    return sorted(x.reshape(-1, LENGTH).tolist())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_coupling_per_process_pairs_the_same_source_rows_with_the_same_data_rows_in_order(world):
    got, expected = per_rank("hamming", world)[:12], plain(COUPLINGS["hamming"], range(12))
    assert torch.equal(got[:, 1], expected[:, 1])
    for b in range(3):
        assert sorted_rows(got[4 * b : 4 * b + 4, 0]) == sorted_rows(expected[4 * b : 4 * b + 4, 0])
    assert torch.equal(got, expected) == (world == 1)


@pytest.mark.parametrize("world", [2, 4])
def test_independent_pairs_do_not_depend_on_the_number_of_processes(world):
    assert torch.equal(per_rank("independent", world), plain(COUPLINGS["independent"], STEPS))


@pytest.mark.slow
def test_a_coupling_per_process_is_the_same_in_real_processes(tmp_path):
    gloo(tmp_path, 2, "embedded", "rank")
    assert torch.equal(pairs(tmp_path, 2), per_rank("embedded", 2))


def test_splitting_rows_into_shares_and_joining_them_restores_the_rows():
    share, x = Share(1, 4), rows(0)
    assert torch.equal(share.join(share.split(x, BATCH), BATCH), x)
    assert torch.equal(share.take(x, BATCH), share.split(x, BATCH)[1])
    assert torch.equal(share.take(x, BATCH)[:2], x[2:4])
    assert sum(len(part) for part in share.split(x, BATCH)) == OT_BATCH
    assert Share.here() == Share()
    with pytest.raises(ValueError, match="rank must be between 0 and"):
        Share(2, 2)
    with pytest.raises(ValueError, match="multiple of the 3 processes"):
        pairing(COUPLINGS["hamming"], share=Share(0, 3))
