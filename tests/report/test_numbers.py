"""Numbers as text."""

import pytest

from hopflow.report.numbers import format_number, format_value, is_finite


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
def test_a_number_has_two_digits_of_its_error(value, error, n, said):
    assert format_value(value, error, n) == said


def test_integers_have_thousands_separators():
    assert format_number(1234567) == "1,234,567"
    assert format_number(0.123456) == "0.1235"


def test_only_finite_numbers_can_be_drawn():
    assert all(map(is_finite, (1, 0.5, -3)))
    assert not any(map(is_finite, (float("nan"), float("-inf"), 10**400, True, "1", None)))
