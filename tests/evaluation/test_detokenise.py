"""Detokenisers: what a reader would have written."""

import pytest

from hopflow.evaluation.detokenise import as_is, wikitext, words


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ('It is called " house arrest , " they say .', 'It is called "house arrest," they say.'),
        ("He did n't , and I 'm sure she 'll", "He didn't, and I'm sure she'll"),
        ("a mass of 6 kg ( 13 lb ) , or $ 5 ; 50 % !", "a mass of 6 kg (13 lb), or $5; 50%!"),
        ('" Teddy \'s Story " ; he left', '"Teddy\'s Story"; he left'),
        (" the <unk> fell N points \n and rose ", "the <unk> fell N points\nand rose"),
    ],
)
def test_words_join_what_belongs_together(tokens, text):
    assert words(tokens) == text


def test_wikitext_also_joins_the_marks_inside_words():
    tokens = " = Robert <unk> = \n \n A guest @-@ starring role , 2 @,@ 000 times in 3 @.@ 5 years . \n"
    assert wikitext(tokens) == "= Robert <unk> =\n\nA guest-starring role, 2,000 times in 3.5 years.\n"


@pytest.mark.parametrize("text", ['"Who is it?" (he asked) didn\'t end.', "plain words", ""])
def test_running_text_stays_as_it_is(text):
    assert words(text) == wikitext(text) == as_is(text) == text
