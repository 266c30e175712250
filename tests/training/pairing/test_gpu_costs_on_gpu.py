"""Cost matrices from a real GPU, whose later kernels overwrite the table without a wait."""

import pytest
import torch
from paired_runs import BATCH, EMBEDDED, LENGTH, OT_BATCH, VOCAB, pairing, rows, table, until_ready
from toys import generator

from hopflow import SinkhornOT, SquaredEmbedding, Uniform
from hopflow.runs.ot_batch import one_thread
from hopflow.runs.rng import stream
from hopflow.training.averages import Ema
from hopflow.training.pairing.shared_memory import BufferLayout, SharedBuffer
from hopflow.transport.cost_matrix import CostMatrix
from hopflow.transport.sinkhorn import sinkhorn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
STEPS, UPDATES = range(16), OT_BATCH // BATCH


def run(paired, averaged: bool = False) -> torch.Tensor:
    """As in training: a table that the step's own stream changes as soon as it has been handed over.

    Or an average that gets another tensor: the memory of the one before is somebody else's as soon as it may be.
    """
    live, busy = table(0).cuda(), torch.randn(2048, 2048, device="cuda")
    average = Ema(live, decay=0.0)
    pairs = []
    for step in STEPS:
        live.copy_(table(step))
        average.update(live, step)
        torch.full_like(live, torch.nan)
        busy = (busy @ busy).clamp(-1, 1)
        pairs.append(torch.stack(paired.step(step, average if averaged else live)))
        live.fill_(torch.nan)
    return torch.stack(pairs)


@pytest.mark.parametrize("coupling", [EMBEDDED, SinkhornOT(SquaredEmbedding(), 0.05)], ids=["exact", "sinkhorn"])
def test_pairs_are_those_of_the_matrix_that_the_gpu_finds_for_the_table_of_the_step_that_the_rule_names(coupling):
    with pairing(coupling) as paired:
        found = run(paired)
    for index in range(len(STEPS) // UPDATES):
        x0 = Uniform(VOCAB).sample(OT_BATCH, LENGTH, generator=stream(3, "source", index))
        costs = SquaredEmbedding().cost_matrix(x0.cuda(), rows(index).cuda(), table(UPDATES * max(index - 2, 0)).cuda())
        with one_thread():
            here = CostMatrix(*(part.cpu() for part in (costs.pairwise, costs.rows, costs.columns)))
            order = coupling.solve_by_group(here, stream(3, "coupling", index, 0)).order
        of_batch = found[UPDATES * index : UPDATES * (index + 1)]
        assert torch.equal(of_batch[:, 0].reshape(OT_BATCH, LENGTH), x0[order])
        assert torch.equal(of_batch[:, 1].reshape(OT_BATCH, LENGTH), rows(index))


def test_pairs_are_bitwise_the_same_with_workers_and_without_pinned_buffers(monkeypatch):
    with pairing(EMBEDDED) as paired:
        expected = run(paired)
    with pairing(EMBEDDED) as paired:
        assert torch.equal(run(paired, averaged=True), expected)
    with until_ready(pairing(EMBEDDED, workers=2)) as paired:
        assert torch.equal(run(paired), expected)
        assert not paired.report(STEPS[-1]).in_place
    monkeypatch.setattr(SharedBuffer, "pin", lambda self: False)
    with pairing(EMBEDDED) as paired:
        assert torch.equal(run(paired), expected)


def test_a_buffer_is_pinned_and_a_gpu_writes_to_it():
    part = torch.randn(512, 512, device="cuda")
    buffer = SharedBuffer(BufferLayout.of(pairwise=part))
    assert buffer.pin()
    assert buffer.pin()
    assert buffer["pairwise"].is_pinned()
    buffer["pairwise"].copy_(part, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(buffer["pairwise"], part.cpu())
    buffer.close()


def test_rounded_products_cost_less_than_a_thousandth_of_accuracy():
    gen = generator(4)
    e, (x0, x1) = torch.randn(500, 96, generator=gen), torch.randint(500, (2, 128, 32), generator=gen)
    exact = SquaredEmbedding().matrix(x0, x1, e.double())
    found = SquaredEmbedding().matrix(x0.cuda(), x1.cuda(), e.cuda()).cpu().double()
    assert 0 < float((found - exact).abs().max() / exact.max()) < 1e-3


@pytest.mark.parametrize("eps", [0.1, 0.01])
def test_a_sinkhorn_plan_on_the_gpu_equals_that_of_the_cpu(eps):
    cost = torch.rand(200, 200, generator=generator(0), dtype=torch.float64)
    here, there = sinkhorn(cost, eps, tol=1e-9), sinkhorn(cost.cuda(), eps, tol=1e-9)
    torch.testing.assert_close(there.plan().cpu(), here.plan(), atol=1e-9, rtol=0)
