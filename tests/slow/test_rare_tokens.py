"""Rare tokens of a large vocabulary come as often as they should: minutes of draws, because they are rare."""

import math

import pytest
import torch

from hopflow.sampling.random_draws import categorical, gumbel32

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

TAIL, EACH = 50_000, 2e-8
"""Tokens of this probability each, .001 together, against one that has the rest."""
CHUNK = 200


def rare(draw, draws: int) -> float:
    """By how many standard errors the tail is drawn too often."""
    log_p = torch.full((TAIL + 1,), math.log(EACH))
    log_p[0] = math.log1p(-TAIL * EACH)
    generator = torch.Generator().manual_seed(0)
    rows, count = log_p.expand(CHUNK, -1), 0
    for _ in range(draws // CHUNK):
        count += int((draw(rows, torch.rand(CHUNK, generator=generator, dtype=torch.float64)) > 0).sum())
    expected = draws * TAIL * EACH
    return (count - expected) / math.sqrt(expected)


def test_the_tail_of_fifty_thousand_tokens_is_drawn_as_often_as_it_should():
    assert abs(rare(categorical, 100_000)) < 4


def test_float32_gumbel_noise_cuts_off_the_tail_of_fifty_thousand_tokens():
    assert rare(gumbel32, 30_000) < -4
