"""Times from 0 to 1."""

import math

import pytest
import torch
from cases import name

from hopflow.sampling.samplers import GRIDS, CosineGrid, EvenGrid, GivenGrid


@pytest.mark.parametrize("steps", [1, 2, 3, 1000, 100_000])
@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_times_rise_from_exactly_0_to_exactly_1(grid, steps):
    t = grid.times(steps)
    assert t.dtype == torch.float64
    assert (len(t), float(t[0]), float(t[-1])) == (steps + 1, 0.0, 1.0)
    assert (t.diff() > 0).all()


def test_an_even_grid_has_no_rounding_that_adds_up():
    assert EvenGrid().times(7).tolist() == [n / 7 for n in range(8)]


def test_a_cosine_grid_starts_slowly():
    assert CosineGrid().times(4).tolist() == pytest.approx([1 - math.cos(math.pi * n / 8) for n in range(5)])


@pytest.mark.parametrize(
    "at", [(), (0.0,), (0.0, 0.5), (0.1, 1.0), (0.0, 0.6, 0.5, 1.0), (0.0, math.nan, 1.0)], ids=str
)
def test_times_that_do_not_increase_from_0_to_1_are_refused(at):
    with pytest.raises(ValueError, match="increase from 0 to 1"):
        GivenGrid(at)
