"""Morse: the international code, and the token frequencies it gives Shakespeare."""

import numpy as np
import pytest

import hopflow as hf
from hopflow.data.morse import CODE, FIGURES, LETTERS, MARKS, from_morse, to_morse


def test_characters_become_their_code_and_a_separator_and_others_stay():
    assert to_morse("SOS") == "... --- ... "
    assert to_morse("Ab 7!\n") == ".- -...  --... !\n"
    assert to_morse("Nay; 'tis") == "-. .- -.-- ; .----. - .. ... "
    assert to_morse("ß é ½\t") == "ß é ½\t"


def test_morse_codes_are_distinct_and_have_the_right_lengths():
    codes = [code for letter, code in CODE.items() if not letter.islower()]
    assert len(set(codes)) == len(codes) == 26 + 10 + 13
    assert {len(code) for code in FIGURES.values()} == {5}
    assert {len(code) for code in LETTERS.values()} == {1, 2, 3, 4}
    assert {len(code) for code in MARKS.values()} == {5, 6}
    assert set("".join(codes)) == set(".-")


def test_morse_can_be_read_back_up_to_case():
    table = {code: letter for letter, code in CODE.items() if not letter.islower()}
    text = "Speak, speak!\nFirst: you are all resolved; rather to die."
    read, code = "", ""
    for character in to_morse(text):
        if character in ".-":
            code += character
        elif character == " " and code:
            read, code = read + table[code], ""
        else:
            read += character
    assert read == text.upper()


def test_morse_tokens_are_the_characters_of_the_converted_text(tmp_path):
    (tmp_path / "text.txt").write_text("Speak, speak.\n" * 20)
    corpus = hf.data.load(tmp_path / "text.txt", "morse", 16, holdout=0.1)
    assert corpus.tokenizer.symbols == "\n -."
    assert corpus.decode(corpus.encode("Speak")) == to_morse("Speak")
    converted = to_morse("Speak, speak.\n" * 20)
    rows = sorted(corpus.decode(row) for row in corpus.batch(0, 0, corpus.rows))
    assert rows == sorted(converted[16 * i : 16 * i + 16] for i in range(corpus.rows))


def test_shakespeare_in_morse_has_three_main_tokens_and_its_known_number_of_jumps(shared):
    """Independent bag-of-words pairs differ in L(1 - Σ p²) places. The code was chosen with Table 1 [toy-OT] in view
    (85.47 ± 0.1), so this guards the conversion; it does not confirm that the paper used it."""
    corpus = hf.data.load("shakespeare", "morse", 128)
    share = corpus.counts.numpy() / corpus.counts.sum().item()
    assert 128 * (1 - (share**2).sum()) == pytest.approx(85.43, abs=0.01)
    assert np.sort(share)[-3:] == pytest.approx([0.29, 0.30, 0.40], abs=0.01)


@pytest.mark.parametrize("text", ["SOS", "ab 7!\n", "Nay; 'tis.  - (no)", "ß é ½\t", "", " leading", "".join(CODE)])
def test_morse_code_is_decoded_to_the_original_text_in_upper_case(text):
    letters = "".join(letter.upper() if letter in CODE else letter for letter in text)
    assert from_morse(to_morse(text)) == letters


def test_symbols_without_a_meaning_are_marked_and_a_last_code_may_lack_its_separator():
    assert from_morse("... ------- ---") == "S▯O"
    assert from_morse(".-  *-.") == "A *N"
