"""Texts with holes: what they mean, where they are read from, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopflow.data.making import from_text
from hopflow.data.pulse import Pulse
from hopflow.data.reading import Piece
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.generation import HOLE
from hopflow.prompts import prompt, read

LETTERS = Characters("".join(sorted("abcde [:]\\MASK5")))


def spelled(text: str) -> str:
    """The prompt's tokens as text again, a hole as an underscore."""
    return "".join("_" if token == HOLE else LETTERS.decode([token]) for token in prompt(text, LETTERS).tolist())


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("abc", "abc"),
        ("", ""),
        ("a[MASK]b", "a_b"),
        ("[MASK:3]", "___"),
        ("[MASK][MASK:2]a", "___a"),
        ("a [MASK:005] b", "a _____ b"),
        (r"a\[MASK]b", "a[MASK]b"),
        (r"\[MASK:5][MASK:5]", "[MASK:5]_____"),
        (r"\\[MASK]", r"\_"),
        (r"\\\[MASK]", r"\[MASK]"),
        (r"a\b", r"a\b"),
        ("[MASK", "[MASK"),
        ("[MASKS]", "[MASKS]"),
        ("MASK]", "MASK]"),
    ],
)
def test_marks_are_holes_and_a_backslash_makes_them_text(text, means):
    assert spelled(text) == means


@pytest.mark.parametrize("mark", ["[MASK:0]", "[MASK:]", "[MASK:-1]", "[MASK:a]", "[MASK: 5]", "[MASK:1048577]"])
def test_a_mark_that_is_no_hole_is_refused_by_name(mark):
    with pytest.raises(ValueError, match=r"is no hole: write e.g. \[MASK:5\]") as error:
        prompt(f"a{mark}b", LETTERS)
    assert mark in str(error.value)


def test_what_stands_between_two_holes_is_encoded_by_itself():
    tokenizer = from_text(
        "bpe:400", "", iter([Piece("the best of times, the worst of times. " * 20, True)]), Pulse(None)
    )
    left, right = tokenizer.encode("the be"), tokenizer.encode("st of times")
    assert len(left + right) > len(tokenizer.encode("the best of times"))
    found = prompt("the be[MASK:2]st of times", tokenizer)
    assert found.dtype == torch.int64
    assert found.tolist() == [*left, HOLE, HOLE, *right]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_can_be_spelled(text):
    escaped = (
        text.replace("[MASK", r"\[MASK") if "\\" not in text else text.replace("\\", "").replace("[MASK", r"\[MASK")
    )
    assert prompt(escaped, Bytes()).tolist() == list(text.replace("\\", "").encode())


def test_characters_that_the_tokenizer_does_not_know_are_named():
    with pytest.raises(ValueError, match=r"the character 'é' \(U\+00E9\)"):
        prompt("[MASK]é", LETTERS)
    with pytest.raises(ValueError, match="UTF-8"):  # how Python passes on a byte that is no UTF-8
        prompt("a\udcff[MASK]", Bytes())


def test_a_text_file_holds_one_prompt_on_each_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffTo be \r\n\n   \n or [MASK:3]\u2028not\n".encode())
    assert read(file) == ["To be ", " or [MASK:3]\u2028not"]


def test_a_json_file_may_hold_line_breaks(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "To be\\n[MASK]"}\n\n{"prompt": "", "note": 1}\n')
    assert read(file) == ["To be\n[MASK]", ""]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "holds no prompt"),
        ("a.txt", b"\n \n", "holds no prompt"),
        ("a.jsonl", b"\n", "holds no prompt"),
        ("a.txt", b"abc\xff", "not UTF-8: byte 3 is 0xff"),
        ("a.jsonl", b'{"prompt": "a"}\nnonsense\n', "line 2: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n', 'a text under "prompt"'),
        ("a.jsonl", b'{"prompt": 3}\n', 'a text under "prompt"'),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("a.csv", b"abc", ".txt"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        read(tmp_path / name)
