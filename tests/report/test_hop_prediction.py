"""Predicted hops by position and time, compared with enumeration and with samples."""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.exact import Oracle, Space
from hopflow.report.hop_counts import PairDifferences, hops_by_step
from hopflow.sampling.generate import generate
from hopflow.schedules import Cosine, Linear, Polynomial, Positional

TIMES = torch.linspace(0, 1, 9, dtype=torch.float64)
TAUS = torch.linspace(-4, 4, 9, dtype=torch.float64)


def forecast(oracle: Oracle) -> PairDifferences:
    """From all pairs of the oracle's coupling, by their probabilities."""
    if oracle.joint is not None:
        differ = (oracle.joint.weight[:, None] * (oracle.joint.x0 != oracle.joint.x1)).sum(0)
    else:
        differ = (oracle.q[:, None] * (1 - oracle.p0[oracle.space.data])).sum(0)
    return PairDifferences(differ[None])


def perfect(name: str, coupled: bool, schedule) -> Oracle:
    space = Space(toys.source(name).vocab, 2)
    joint = toys.random_joint(space, 4, toys.oracle(name).source_law) if coupled else None
    return toys.oracle(name, network=None, joint=joint, schedule=schedule)


def rates(oracle: Oracle, taus: torch.Tensor) -> torch.Tensor:
    """Hops of each position per unit of time, by the true velocity in every state."""
    moment = oracle.moment(taus)
    moving = oracle.velocities(moment, 0.0).sum(-1)  # (K, S, L)
    return (oracle.marginal(moment)[:, :, None] * moving).sum(1)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2.0)], ids=repr)
def test_the_hop_rate_of_a_position_is_the_share_of_pairs_that_differ_there(name, coupled, schedule):
    oracle = perfect(name, coupled, schedule)
    torch.testing.assert_close(rates(oracle, TAUS), forecast(oracle).differ.expand(len(TAUS), -1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["uniform", "bag_of_words"])
def test_with_positional_schedules_each_position_hops_at_its_own_rate(name):
    oracle = perfect(name, True, Positional((Linear(), Cosine())))
    found = forecast(oracle)
    torch.testing.assert_close(rates(oracle, TAUS), found.differ * oracle.moment(TAUS).speed, rtol=0, atol=1e-9)
    by_step = found.by_step(oracle.flow.schedule, TIMES)[0]
    k = oracle.flow.schedule.k(TIMES[:, None])
    torch.testing.assert_close(by_step, ((k[1:] - k[:-1]) * found.differ[0]).sum(1))


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("coupled", [False, True])
def test_predicted_hops_add_up_to_the_hamming_distance_of_pairs_and_the_exact_jumps(name, coupled):
    oracle = perfect(name, coupled, Cosine())
    found = forecast(oracle)
    assert float(found.total()) == pytest.approx(exact.kantorovich_cost(oracle, toys.hamming(oracle.flow.vocab.size)))
    assert float(found.by_step(oracle.flow.schedule, TIMES).sum()) == pytest.approx(float(found.total()))
    assert float(found.total()) == pytest.approx(oracle.jumps(), abs=1e-8)


@pytest.mark.parametrize("name", toys.SOURCES)
def test_samples_of_a_perfect_network_hop_as_predicted_by_step_and_position(name):
    """On product data, where Euler steps are exact."""
    base = toys.oracle(name, network=None, schedule=Polynomial(2.0))
    law = (toys.dirichlet(3, seed=7)[:, None] * toys.dirichlet(3, seed=8)).flatten()
    oracle = Oracle(base.flow, law, 2)
    found, network = forecast(oracle), exact.Perfect(oracle.flow, oracle.q, 2)
    out = generate(network, oracle.flow, n=4_000, length=2, steps=8, trajectory=True, seed=1)
    by_step, by_position = hops_by_step(out, TIMES), out.changes.double()
    for counted, expected in ((by_step, found.by_step(oracle.flow.schedule, TIMES)), (by_position, found.differ)):
        error = counted.std(0) / len(counted) ** 0.5
        assert bool(((counted.mean(0) - expected[0]).abs() <= 4 * error + 1e-9).all())
    assert torch.equal(by_step.sum(1), by_position.sum(1))


def test_without_product_data_the_first_step_is_exact_and_the_total_is_that_of_the_oracle():
    oracle = toys.oracle("uniform", network=None)
    found, network = forecast(oracle), exact.Perfect(oracle.flow, oracle.q, 2)
    out = generate(network, oracle.flow, n=8_000, length=2, steps=8, trajectory=True, seed=2)
    counted, expected = hops_by_step(out, TIMES), found.by_step(oracle.flow.schedule, TIMES)[0]
    error = counted.std(0) / len(counted) ** 0.5
    assert abs(float(counted.mean(0)[0] - expected[0])) <= 4 * float(error[0])
    # Euler is above by its O(1/N), no more
    assert float(counted.sum(1).mean()) == pytest.approx(
        oracle.jumps(steps=8), abs=4 * float(counted.sum(1).std()) / 89
    )


def test_pair_differences_are_counted_per_batch_and_position():
    x1 = torch.tensor([[0, 1, 2], [0, 0, 0]])
    batches = [(torch.tensor([[0, 0, 0], [0, 1, 1]]), x1), (x1, x1)]
    found = PairDifferences.of(batches)
    assert found.differ.tolist() == [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert found.total().tolist() == [2.0, 0.0]


def test_from_masks_every_position_hops_once():
    found = PairDifferences.everywhere(5)
    assert found.total().tolist() == [5.0]
    assert found.by_step(Linear(), TIMES).tolist() == [[pytest.approx(5 / 8)] * 8]
