"""Random numbers that belong to a sequence."""

import pytest
import torch
from scipy.stats import kstest

from hopflow.sampling.random_streams import RandomStreams


def test_the_numbers_of_a_sequence_do_not_depend_on_those_beside_it():
    many, one = RandomStreams(7, range(10)), RandomStreams(7, [4])
    assert torch.equal(many.uniform(5)[4], one.uniform(5)[0])
    assert torch.equal(many.uniform(2, 3, rows=[4, 8])[0], one.uniform(2, 3)[0])


def test_only_those_who_draw_move_on():
    noise = RandomStreams(0, range(3))
    noise.uniform(4, rows=[1])
    after = noise.uniform(4)
    fresh = RandomStreams(0, range(3))
    assert torch.equal(after[0], fresh.uniform(4, rows=[0])[0])
    assert torch.equal(after[1], fresh.uniform(8, rows=[1])[0, 4:])


def test_sequences_and_seeds_have_numbers_of_their_own():
    u = torch.cat([RandomStreams(seed, range(100)).uniform(20) for seed in (0, 1)])
    assert len(u.flatten().unique()) == u.numel()


def test_numbers_are_uniform_in_53_bits():
    u = RandomStreams(1, range(200)).uniform(500)
    assert u.dtype == torch.float64
    assert ((u >= 0) & (u < 1)).all()
    assert kstest(u.flatten(), "uniform").pvalue > 0.001
    assert ((u * 2.0**53) % 2).mean() == pytest.approx(0.5, abs=0.01)
    assert abs(float(torch.corrcoef(u[:2])[0, 1])) < 0.2


def test_numbers_are_the_same_everywhere():
    # written down once: whoever changes them breaks everybody's seeds
    assert RandomStreams(1, [2]).uniform(3)[0].tolist() == pytest.approx(
        [0.751610134832803, 0.9542084747804751, 0.7765064223344135], abs=1e-15
    )


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match="must be an integer from 0"):
        RandomStreams(seed, [0])
