"""StoppingRule: blocks combine to one estimate, and each rule stops the estimation."""

import math
from dataclasses import replace

import pytest
import torch
from toys import generator

from hopflow.bounds.estimate import Estimate, mean_and_error
from hopflow.evaluation import stopping
from hopflow.evaluation.stopping import StoppingRule, average_repeats, combine_blocks, estimate_in_blocks

WHAT = {"quantity": "b0", "length": 4, "eta": 0.0, "is_bound": True, "calls": 2}


def table(n: int, replicates: int = 2, seed: int = 0, between: float = 1.0, within: float = 1.0) -> torch.Tensor:
    """One level per sequence, and noisy draws around it."""
    draw = generator(seed)
    levels = 10 + between * torch.randn(n, 1, generator=draw, dtype=torch.float64)
    return levels + within * torch.randn(n, replicates, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(30,), (16, 14), (5, 20, 5), (1, 29)])
def test_combined_blocks_equal_one_estimate_of_all_sequences(sizes):
    values = table(30)
    whole = Estimate.of(values, **WHAT)
    parts = combine_blocks([Estimate.of(part, **WHAT) for part in values.split(sizes)])
    for name in ("nats", "stderr", "draw_stderr", "n", "freedom", "calls"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name


def test_a_block_of_one_sequence_adds_to_the_spread():
    exact = {"quantity": "nll", "draw_stderr": 0.0, "length": 4, "eta": 0.0, "is_bound": False, "calls": 1}
    nats = torch.tensor([3.0, 5.0, 4.0, 9.0], dtype=torch.float64)
    one, rest = nats[:1], nats[1:]
    parts = [
        Estimate(nats=mean, stderr=error, n=len(some), each=tuple(some.tolist()), **exact)
        for some in (one, rest)
        for mean, error in [mean_and_error(some)]
    ]
    assert math.isnan(parts[0].stderr)
    assert combine_blocks(parts).stderr == pytest.approx(mean_and_error(nats)[1])
    assert math.isnan(average_repeats([parts[0], parts[0]]).stderr)


def test_repeats_lower_the_draw_error_but_not_the_sequence_error():
    values = table(400, replicates=8, seed=1, between=2.0, within=3.0)
    passes = [Estimate.of(part, **WHAT) for part in values.split(2, dim=1)]
    found, whole = average_repeats(passes), Estimate.of(values, **WHAT)
    assert found.nats == pytest.approx(whole.nats)
    assert found.draw_stderr == pytest.approx(whole.draw_stderr, rel=0.1)
    assert found.stderr == pytest.approx(whole.stderr, rel=0.1)
    assert found.sequence_stderr == pytest.approx(2 / math.sqrt(400), rel=0.2)
    assert found.calls == 8


class Estimator:
    """Estimates with known levels per sequence; records the size of each block and its turn."""

    def __init__(self, within: float = 1.0, between: float = 1.0) -> None:
        self.calls: list[tuple[int, int]] = []
        self.within, self.between = within, between

    def __call__(self, x1, turn):
        self.calls.append((len(x1), turn))
        levels = 10 + self.between * (x1[:, :1].double() % 7 - 3)
        noise = torch.randn(len(x1), 2, generator=generator(turn), dtype=torch.float64)
        return [Estimate.of(levels + self.within * noise, **WHAT)]


def sequences(n: int) -> torch.Tensor:
    return torch.arange(n)[:, None].expand(n, 4)


def test_an_estimation_stops_at_the_requested_error():
    found = estimate_in_blocks(Estimator(), sequences(4096), StoppingRule(error=0.05, seconds=1e9))
    (estimate,) = found.estimates
    assert found.reason == "error"
    assert estimate.stderr / 4 <= 0.05 < estimate.stderr / 4 * math.sqrt(4)  # with a quarter of them it was not there
    assert found.rows == estimate.n < 4096


def test_an_estimation_stops_at_the_number_of_sequences():
    estimator = Estimator()
    found = estimate_in_blocks(estimator, sequences(200), StoppingRule(error=0.0, seconds=1e9, rows=100))
    assert (found.reason, found.rows, found.estimates[0].n) == ("rows", 100, 100)
    assert sum(n for n, _ in estimator.calls) == 100


def test_an_estimation_stops_when_the_time_is_over_but_after_the_first_block():
    found = estimate_in_blocks(Estimator(), sequences(200), StoppingRule(error=0.0, seconds=0.0))
    assert (found.reason, found.rows) == ("seconds", stopping.FIRST)


def test_a_small_set_is_measured_again_until_the_draw_error_is_small():
    estimator = Estimator(within=2.0, between=3.0)
    found = estimate_in_blocks(estimator, sequences(20), StoppingRule(error=0.02, seconds=1e9))
    (estimate,) = found.estimates
    assert found.reason == "error"
    assert found.rows == estimate.n == 20
    assert estimate.draw_stderr / 4 <= 0.02 < estimate.stderr / 4  # more sequences there are none
    assert [turn for _, turn in estimator.calls] == list(range(len(estimator.calls)))  # and never the same draws


def test_blocks_are_multiples_of_the_unit_and_a_remainder_is_not_used():
    estimator = Estimator()
    found = estimate_in_blocks(estimator, sequences(70), StoppingRule(error=0.0, seconds=1e9, rows=67), unit=8)
    assert all(n % 8 == 0 for n, _ in estimator.calls)
    assert found.rows == 64


def test_all_estimates_of_one_estimator_must_reach_the_error():
    def estimator(x1, turn):
        noise = torch.randn(len(x1), 2, generator=generator(turn), dtype=torch.float64)
        return [Estimate.of(10 + noise, **WHAT), Estimate.of(12 + 5 * noise, **WHAT)]

    found = estimate_in_blocks(estimator, sequences(4096), StoppingRule(error=0.05, seconds=1e9))
    small, large = found.estimates
    assert large.stderr / 4 <= 0.05
    assert large.nats == pytest.approx(12 + 5 * (small.nats - 10))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"error": -1.0}, "error and seconds must be ≥ 0"),
        ({"seconds": float("nan")}, "error and seconds must be ≥ 0"),
        ({"rows": 1}, "rows must be ≥ 2.*got 1"),
    ],
)
def test_an_invalid_stopping_rule_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        StoppingRule(**keys)


def test_diagnostics_are_averaged_over_sequences_and_over_passes():
    few, many = (
        replace(Estimate.of(torch.zeros(n, 2), **WHAT), diagnostics={"effective_paths": value})
        for n, value in ((2, 1.0), (6, 5.0))
    )
    assert combine_blocks([few, many]).diagnostics == {"effective_paths": 4.0}
    assert average_repeats([few, replace(few, diagnostics={"effective_paths": 2.0})]).diagnostics == {
        "effective_paths": 1.5
    }
