"""Lines of the table that compares runs, and the words for samples."""

import pytest

from hopflow.evaluation.compare_table import HEAD, Entry, _rows, point_of


def entry(*names: str) -> Entry:
    numbers = {name: (f"{place}.5 ± 0.1", "64") for place, name in enumerate(names)}
    return Entry("b0", "η = 0", numbers, dict.fromkeys(names[1:], "-0.5 ± 0.1"), set())


def test_the_numbers_of_two_runs_are_on_one_line_of_the_table():
    (line,) = _rows(entry("first", "second"), {"first": "A", "second": "B"})
    expected = {HEAD: "b0, η = 0", "A": "0.5 ± 0.1", "B": "1.5 ± 0.1", "B minus A": "-0.5 ± 0.1", "n": "64"}
    assert line == expected


def test_of_three_runs_the_first_line_has_the_label_and_the_others_the_differences():
    lines = _rows(entry("first", "second", "third"), {"first": "A", "second": "B", "third": "C"})
    assert [line[HEAD] for line in lines] == ["b0, η = 0", "", ""]
    assert [line["run"] for line in lines] == ["A", "B", "C"]
    assert [line["minus A"] for line in lines] == ["", "-0.5 ± 0.1", "-0.5 ± 0.1"]


@pytest.mark.parametrize(
    ("eta", "temperature", "words"),
    [
        (None, None, "judge abcdef"),
        (0.0, 1.0, "η = 0, judge abcdef"),
        (0.5, 0.7, "η = 0.5, temperature 0.7, judge abcdef"),
    ],
)
def test_samples_are_named_by_eta_temperature_and_judge(eta, temperature, words):
    assert point_of({"eta": eta, "temperature": temperature, "judge_hash": "abcdef12"}) == words
