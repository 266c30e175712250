"""How a report writes numbers."""

import pytest

from hopflow.report.numbers import finite, lasting, measured, plain


@pytest.mark.parametrize(
    ("value", "error", "n", "said"),
    [
        (24.30571, 0.53265, 64, "24.31 ± 0.53 (n = 64)"),
        (1234.5, 120.0, 1000, "1,234 ± 120 (n = 1,000)"),
        (0.0012345, 0.00002, None, "0.001234 ± 0.000020"),
        (64.0, 0.0, 16, "64 ± 0 (n = 16)"),
        (0.5, 0.0, 1, "0.5000 ± ? (n = 1)"),
        (24.30571, None, 64, "24.31 ± ? (n = 64)"),
        (24.30571, float("nan"), 1, "24.31 ± ? (n = 1)"),
        (64.0, None, None, "64 ± ?"),
        (1e12, None, 2, "1e+12 ± ? (n = 2)"),
        (1e12, 1e9, 2, "1e+12 ± 1e+09 (n = 2)"),
        (0.0, 0.0, None, "0 ± 0"),
    ],
)
def test_a_number_has_as_many_digits_as_its_error_bears(value, error, n, said):
    assert measured(value, error, n) == said


def test_durations_are_said_in_two_units():
    assert [lasting(s) for s in (0.0123, 8.31, 306, 25_680)] == ["12.3 ms", "8.3 s", "5 min 6 s", "7 h 8 min"]


def test_whole_numbers_have_their_thousands_apart():
    assert plain(1234567) == "1,234,567"
    assert plain(0.123456) == "0.1235"


def test_only_finite_numbers_are_numbers():
    assert all(map(finite, (1, 0.5, -3)))
    assert not any(map(finite, (float("nan"), float("-inf"), 10**400, True, "1", None)))
