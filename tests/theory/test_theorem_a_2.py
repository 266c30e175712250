"""Theorem A.2 [precise-perplexity-theorem]: the precise cross-entropy, conditioned on x1 alone."""

import pytest
import toys

from hopflow import exact
from hopflow.predictions import Carry
from hopflow.schedules import Cosine


@pytest.mark.parametrize("name", ["multimask", "bag_of_words"])
def test_the_precise_formula_gives_the_cross_entropy_that_the_bound_only_bounds(name):
    flow = toys.oracle(name, data=2, seed=5, schedule=Cosine())
    precise = flow.mean(exact.precise_nll(flow))
    assert precise == pytest.approx(flow.cross_entropy(), abs=1e-8)
    assert flow.mean(exact.bound(flow)) > precise + 1e-4


def test_the_precise_formula_equals_the_bound_for_a_perfect_masked_network():
    flow = toys.oracle("mask", data=2, network=None, prediction=Carry())
    assert flow.mean(exact.precise_nll(flow)) == pytest.approx(flow.mean(exact.bound(flow)), abs=1e-8)
