"""Uniform numbers that belong to a sequence; one token per number, with the tail of a large vocabulary intact."""

import math

import pytest
import torch
from cases import Allocations
from scipy.stats import chisquare, kstest
from toys import dirichlet, generator

from hopflow.sampling.random_draws import BLOCK, RandomStreams, categorical, gumbel32

WIDTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5000]


def inverse(log_p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The reference: the whole running sum in float64."""
    sums = log_p.double().softmax(1).cumsum(1)
    return torch.searchsorted(sums, (u * sums[:, -1])[:, None], right=True)[:, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_token_is_found_where_the_running_sum_passes_u(width):
    log_p = 3 * torch.randn(500, width, generator=generator(0), dtype=torch.float64)
    u = torch.rand(500, generator=generator(1), dtype=torch.float64)
    assert torch.equal(categorical(log_p, u), inverse(log_p, u))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_and_single_precision_differ_by_their_rounding_only(dtype):
    log_p = (3 * torch.randn(2000, 3000, generator=generator(0))).log_softmax(1).to(dtype)
    u = torch.rand(2000, generator=generator(1), dtype=torch.float64)
    differ = (categorical(log_p.float(), u) != inverse(log_p, u)).double().mean()
    assert float(differ) < 0.001


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_least_and_the_greatest_number_land_on_tokens_of_positive_probability(width, u):
    log_p = torch.full((3, width), -math.inf)
    log_p[0, 0] = log_p[1, -1] = log_p[2, width // 2] = -5.0
    assert categorical(log_p, torch.full((3,), u, dtype=torch.float64)).tolist() == [0, width - 1, width // 2]


def test_every_token_of_a_flat_tail_is_found_in_its_place():
    # .999 for the first token, 2e-8 for each of 50,000: float32 sums would not tell them apart
    tail, each = 50_000, 2e-8
    row = torch.full((tail + 1,), math.log(each))
    row[0] = math.log1p(-tail * each)
    place = torch.randint(tail, (400,), generator=generator(0))
    middle = (1 - tail * each) + each * (place.double() + 0.5)  # the middle of that token's part of [0, 1)
    assert torch.equal(categorical(row.expand(400, -1), middle), place + 1)


def test_a_draw_has_the_frequencies_of_its_row():
    law = dirichlet(7, seed=0)
    u = torch.rand(50_000, generator=generator(1), dtype=torch.float64)
    drawn = categorical(law.log().float().expand(50_000, 7), u)
    assert chisquare(torch.bincount(drawn, minlength=7), law * 50_000).pvalue > 0.001


def test_a_row_that_is_no_number_gives_a_token_all_the_same():
    # whoever draws looks for NaN afterwards; an id out of range would end a GPU's process before that
    drawn = categorical(torch.full((4, 300), math.nan), torch.rand(4, dtype=torch.float64))
    assert ((drawn >= 0) & (drawn < 300)).all()


def test_no_tensor_of_the_rows_size_is_held_in_float64():
    log_p, u = torch.randn(64, 10_000), torch.rand(64, dtype=torch.float64)
    wide = []

    class Wide(Allocations):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            wide.extend(x.numel() for x in [out] if isinstance(x, torch.Tensor) and x.dtype == torch.float64)
            return out

    with Wide():
        categorical(log_p, u)
    assert max(wide) <= 64 * BLOCK


def test_float32_gumbel_noise_has_the_frequencies_of_a_short_row():
    law = dirichlet(5, seed=0)
    u = torch.rand(50_000, generator=generator(1), dtype=torch.float64)
    drawn = gumbel32(law.log().float().expand(50_000, 5), u)
    assert chisquare(torch.bincount(drawn, minlength=5), law * 50_000).pvalue > 0.001


def test_float32_gumbel_noise_belongs_to_the_row():
    log_p, u = torch.zeros(10, 100), torch.rand(10, generator=generator(0), dtype=torch.float64)
    assert torch.equal(gumbel32(log_p, u)[3:4], gumbel32(log_p[3:4], u[3:4]))


def test_float32_gumbel_noise_is_the_one_of_every_release():
    u = torch.linspace(0.01, 0.99, 12, dtype=torch.float64)
    assert gumbel32(torch.zeros(12, 1000), u).tolist() == GUMBEL


GUMBEL = [648, 487, 650, 821, 8, 600, 427, 713, 19, 93, 780, 825]


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
