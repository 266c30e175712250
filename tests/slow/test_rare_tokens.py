"""Rare tokens of a large vocabulary come as often as they should: minutes of draws, because they are rare."""

import math

import pytest
import torch

from hopflow.categorical import categorical

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

TAIL, EACH = 50_000, 5e-8
"""Tokens of this probability each, .0025 together, against one that has the rest."""
DRAWS, CHUNK = 40_000, 200


def rare(draw) -> float:
    """By how many standard errors the tail is drawn too often."""
    log_p = torch.full((TAIL + 1,), math.log(EACH))
    log_p[0] = math.log1p(-TAIL * EACH)
    generator = torch.Generator().manual_seed(0)
    rows = log_p.expand(CHUNK, -1)
    count = sum(int((draw(rows, generator) > 0).sum()) for _ in range(DRAWS // CHUNK))
    expected = DRAWS * TAIL * EACH
    return (count - expected) / math.sqrt(expected)


def test_the_tail_of_fifty_thousand_tokens_is_drawn_as_often_as_it_should():
    assert abs(rare(lambda log_p, generator: categorical(log_p, 1.0, generator))) < 4


def test_float32_gumbel_noise_would_cut_it_off():
    def gumbel(log_p, generator):
        return (log_p - torch.log(-torch.log(torch.rand(log_p.shape, generator=generator)))).argmax(1)

    assert rare(gumbel) < -4
