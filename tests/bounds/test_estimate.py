import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from toys import generator

from hopflow.bounds.estimate import Estimate, for_json, known, mean_and_error, plus_minus

WHAT = {"quantity": "b1", "length": 128, "eta": 1.0, "is_bound": True, "calls": 16}


def synthetic(n: int, replicates: int, mean: float, sequence: float, draw: float, seed: int = 0) -> torch.Tensor:
    """Draws whose sequences differ by `sequence` and whose replicates by `draw` (standard deviations)."""
    g = generator(seed)
    between = sequence * torch.randn(n, 1, generator=g, dtype=torch.float64)
    return mean + between + draw * torch.randn(n, replicates, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(("sequence", "draw"), [(2.0, 3.0), (5.0, 0.1), (0.0, 3.0)])
def test_the_two_sources_of_error_are_told_apart(sequence, draw):
    n, replicates = 20_000, 8
    found = Estimate.of(synthetic(n, replicates, 100.0, sequence, draw), **WHAT)
    assert found.draw_stderr == pytest.approx(draw / math.sqrt(n * replicates), rel=0.02)
    total = math.sqrt(sequence**2 + draw**2 / replicates) / math.sqrt(n)
    assert found.stderr == pytest.approx(total, rel=0.03)
    assert found.sequence_stderr == pytest.approx(sequence / math.sqrt(n), rel=0.03, abs=0.4 * found.stderr)
    assert abs(found.nats - 100) < 4 * total


def test_replicates_of_one_sequence_are_not_taken_for_independent():
    draws = synthetic(50, 1000, 0.0, 1.0, 0.001)
    pooled = float(draws.std()) / math.sqrt(draws.numel())
    assert Estimate.of(draws, **WHAT).stderr > 20 * pooled


@given(st.integers(2, 20), st.integers(2, 6), st.integers(0, 1000))
def test_an_estimate_is_the_mean_with_the_error_of_the_sequence_means(n, replicates, seed):
    draws = synthetic(n, replicates, 10.0, 1.0, 1.0, seed)
    found = Estimate.of(draws, **WHAT)
    assert found.nats == pytest.approx(float(draws.mean()))
    assert found.stderr == pytest.approx(float(draws.mean(1).std()) / math.sqrt(n))
    assert found.sequence_stderr >= 0  # never the root of a negative number
    assert (found.n, found.freedom) == (n, n - 1)


def test_half_precision_draws_are_averaged_in_float64():
    draws = torch.full((1000, 2), 1000.1, dtype=torch.float32)
    assert Estimate.of(draws, **WHAT).nats == pytest.approx(float(draws[0, 0]), abs=1e-9)


def test_one_sequence_has_the_error_of_its_draws_and_says_nothing_of_others():
    draws = synthetic(1, 16, 10.0, 5.0, 1.0)
    found = Estimate.of(draws, **WHAT)
    assert found.stderr == found.draw_stderr == pytest.approx(float(draws.std()) / 4)
    assert found.sequence_stderr == 0
    assert found.freedom == 15


def test_an_error_needs_replicates():
    with pytest.raises(ValueError, match="at least 2 independent replicates"):
        Estimate.of(torch.zeros(5, 1), **WHAT)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("n", [3, 6, 200])
def test_the_interval_of_an_estimate_is_students(n, level):
    found = Estimate.of(synthetic(n, 4, 10.0, 1.0, 1.0), **WHAT)
    low, high = found.interval(level)
    assert (low + high) / 2 == pytest.approx(found.nats)
    assert (high - low) / 2 == pytest.approx(student.ppf((1 + level) / 2, n - 1) * found.stderr)


def test_intervals_from_few_sequences_hold_the_truth_as_often_as_they_say():
    hits, repeats = 0, 1000
    for seed in range(repeats):
        low, high = Estimate.of(synthetic(4, 3, 10.0, 1.0, 1.0, seed), **WHAT).interval(0.9)
        hits += low <= 10 <= high
    assert abs(hits / repeats - 0.9) < 4 * math.sqrt(0.09 / repeats)


def test_perplexity_is_per_token_with_an_error_by_the_delta_method():
    found = Estimate.of(synthetic(100, 4, 256.0, 3.0, 1.0), **WHAT)
    assert found.ppl == pytest.approx(math.exp(found.nats / 128))
    h = 1e-4
    slope = (math.exp((found.nats + h) / 128) - math.exp((found.nats - h) / 128)) / (2 * h)
    assert found.ppl_stderr == pytest.approx(slope * found.stderr, rel=1e-6)


def test_bits_per_character_need_the_characters():
    draws = synthetic(10, 2, 128 * math.log(2), 0.0, 0.0)
    assert Estimate.of(draws, **WHAT, characters=512.0).bits_per_char == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"pass characters="):
        _ = Estimate.of(draws, **WHAT).bits_per_char


def test_an_estimate_reads_as_a_sentence():
    draws = 128 * math.log(3) + torch.tensor([[-0.5, -0.5], [0.5, 0.5]], dtype=torch.float64)
    text = str(Estimate.of(draws, **WHAT))
    assert text == "b1: ppl 3 ± 0.012 (140.62 ± 0.5 nats per sequence of 128), n=2, eta=1, a bound"


def test_a_printed_estimate_says_when_it_is_no_bound_and_when_eta_is_a_function():
    what = WHAT | {"is_bound": False, "eta": lambda t: t}
    text = str(Estimate.of(torch.zeros(2, 2), **what))
    assert "eta=η(t)" in text
    assert text.endswith("not a bound")


def test_a_mean_has_the_error_of_its_sample_and_a_single_value_an_unknown_one():
    assert mean_and_error(torch.tensor([1, 2, 3, 6])) == pytest.approx((3.0, math.sqrt(14 / 3 / 4)))
    mean, error = mean_and_error(torch.tensor([5.0]))
    assert mean == 5.0
    assert math.isnan(error)  # unknown, and not 0
    assert known(error) is None
    assert (known(0.0), known(0.5)) == (0.0, 0.5)
    assert plus_minus(mean, error) == "5 ± ?"
    assert for_json({"a": (1.5, error), "b": [{"c": error}, "d", 3]}) == {"a": [1.5, None], "b": [{"c": None}, "d", 3]}


def test_the_interval_of_one_exact_value_is_open():
    one = Estimate(nats=3.0, stderr=math.nan, draw_stderr=0.0, n=1, **WHAT)
    assert one.interval() == (-math.inf, math.inf)
    assert math.isnan(one.sequence_stderr)
    assert math.isnan(one.ppl_stderr)
    assert "± ? nats per sequence" in str(one)
