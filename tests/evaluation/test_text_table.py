"""Tables as text: no line is wider than asked for, and no cell is lost."""

import pytest

from hopflow.evaluation.text_table import fits, text_table, wrapped_lines

HEAD = ("quantity", "bounds the sampler with", "perplexity", "bits per character", "n")
LINES = [
    ("b0 = b1", "η = 0 or 1, continuous time", "65.35 ± 0.34", "6.032 ± 0.0079", "48"),
    ("a_name_without_a_blank_that_is_longer_than_half", "η = 0, 8 steps", "67.29 ± 2.1", "6.074 ± 0.035", "1,024"),
]


@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_asked_for_and_every_number_is_there(width, names):
    text = text_table(HEAD, LINES, width, names)
    assert max(map(len, text.splitlines())) <= width
    for line in LINES:
        for cell in line[2:]:
            assert cell in text  # values are not broken
    letters = text.replace("\n", "").replace(" ", "")
    assert "".join(letters.split("-")).count("±") == 4


def test_a_table_that_fits_is_one_line_for_each():
    text = text_table(("a", "b"), [("x", "1 ± 2"), ("yy", "3")], 80)
    assert text.splitlines() == ["a   b", "--  -----", "x   1 ± 2", "yy  3"]


def test_values_that_do_not_fit_come_below_with_the_same_labels():
    head, lines = ("name", *(f"column{i}" for i in range(6))), [("one", *["1.234 ± 0.056"] * 6)]
    blocks = text_table(head, lines, 50).split("\n\n")
    assert len(blocks) == 2
    assert [block.splitlines()[-1].split()[0] for block in blocks] == ["one", "one"]
    assert "column5" in blocks[1]


def test_what_belongs_together_is_not_parted():
    lines = wrapped_lines("the difference is 12.5 ± 0.3 with n = 16 sequences", 20)
    assert lines == ["the difference is", "12.5 ± 0.3 with", "n = 16 sequences"]


def test_what_fits_counts_the_gaps_between_columns():
    assert fits([["aa", "b"], ["a", "bbb"]], 7)
    assert not fits([["aa", "b"], ["a", "bbb"]], 6)


def test_a_long_label_is_broken_only_where_the_table_would_not_fit():
    label = "a_name_without_spaces_of_36_letters_"
    lines = [(label, "1", "2")]
    assert label in text_table(("run", "b0", "b1"), lines, 44)
    assert label not in text_table(("run", "b0", "b1"), lines, 43)
