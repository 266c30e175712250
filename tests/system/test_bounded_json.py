"""JSON of others: no integer that a float cannot represent, no deep nesting."""

import pytest

from hopflow.system import bounded_json


def test_numbers_in_use_are_read_as_by_json():
    assert bounded_json.loads(b'{"seed": 18446744073709551615, "n": -3, "x": [1.5, 1e300]}') == {
        "seed": 2**64 - 1,
        "n": -3,
        "x": [1.5, 1e300],
    }


@pytest.mark.parametrize("digits", ["1" + 20 * "0", "-1" + 20 * "0", 400 * "9", 10_000 * "9"])
def test_an_integer_beyond_20_digits_is_refused_at_any_depth(digits):
    with pytest.raises(ValueError, match="more than 20 digits"):
        bounded_json.loads(f'{{"a": [{{"b": {digits}}}]}}')


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_nesting_is_limited(opening, closing):
    bounded_json.loads(199 * opening + "1" + 199 * closing)
    for depth in (201, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 200 levels deep"):
            bounded_json.loads(depth * opening + "1" + depth * closing)
