"""Texts with holes: what they mean, where they are read from, and what is refused."""

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopflow as hf
from hopflow.data.build_tokenizer import from_text
from hopflow.data.documents import DocumentChunk
from hopflow.data.subwords import Subwords
from hopflow.data.tokenizers import Bytes, Characters, Morse
from hopflow.sampling.generation import HOLE
from hopflow.sampling.prompts import MOST, SAMPLE, prompt, read
from hopflow.system.progress import Progress

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


@pytest.mark.parametrize(
    "mark",
    ["[MASK:0]", "[MASK:]", "[MASK:-1]", "[MASK:a]", "[MASK: 5]", "[MASK:1048577]", "[MASK:3 wrods]", "[MASK:words]"],
)
def test_an_invalid_hole_is_refused_by_name(mark):
    with pytest.raises(ValueError, match=r"is not a valid hole: write e.g. \[MASK:5\]") as error:
        prompt(f"a{mark}b", LETTERS)
    assert mark in str(error.value)


def test_what_stands_between_two_holes_is_encoded_by_itself():
    tokenizer = from_text(
        "bpe:400", "", iter([DocumentChunk("the best of times, the worst of times. " * 20, True)]), Progress(None)
    )
    left, right = tokenizer.encode("the be"), tokenizer.encode("st of times")
    assert len(left + right) > len(tokenizer.encode("the best of times"))
    found = prompt("the be[MASK:2]st of times", tokenizer)
    assert found.dtype == torch.int64
    assert found.tolist() == [*left, HOLE, HOLE, *right]


# -- tokenizers that attach a blank to the word after it ---------------------------------------------------------------

TALE = "Once upon a time, there was a hen. Once upon a time, there was a hut. " * 20


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    tokenizer = from_text("bpe:400", "", iter([DocumentChunk(TALE, True)]), Progress(None))
    assert len(tokenizer.encode(" time")) == 1
    return tokenizer


@pytest.mark.parametrize(
    ("text", "left", "holes", "right"),
    [
        ("Once upon a [MASK:1],", "Once upon a", 1, ","),
        ("upon a [MASK:2] there", "upon a", 2, " there"),  # the blank after a hole is the next word's
        ("a[MASK]time", "a", 1, "time"),
        ("a  [MASK]", "a ", 1, ""),  # of several blanks a word takes the last
        ("a   [MASK]", "a  ", 1, ""),
        ("a\n[MASK]", "a\n", 1, ""),
        ("a\n [MASK]", "a\n", 1, ""),
        ("a\t[MASK]", "a\t", 1, ""),
        ("[MASK] time", "", 1, " time"),
        (" [MASK] time", "", 1, " time"),
        ("[MASK] [MASK:2] [MASK]", "", 4, ""),
        ("[MASK:3]", "", 3, ""),
        ("a [MASK] ", "a", 1, " "),
        ("été à Köln [MASK] 世界", "été à Köln", 1, " 世界"),
        (r"a \[MASK] [MASK]", "a [MASK]", 1, ""),
    ],
)
def test_the_blank_before_a_hole_belongs_to_the_hole(subwords, text, left, holes, right):
    expected = [*subwords.encode(left), *[HOLE] * holes, *subwords.encode(right)]
    assert prompt(text, subwords).tolist() == expected


def test_a_continued_prompt_ends_without_its_last_blank(subwords):
    ids = subwords.encode("Once upon a")
    assert prompt("Once upon a ", subwords, length=8).tolist() == ids + [HOLE] * (8 - len(ids))
    assert prompt("Once upon a ", subwords).tolist() == subwords.encode("Once upon a ")
    assert prompt("ab ", LETTERS, length=4).tolist() == [*LETTERS.encode("ab "), HOLE]
    with pytest.raises(ValueError, match="has 3 tokens, more than length=2"):
        prompt("ab ", LETTERS, length=2)


def test_a_network_that_prefers_a_word_with_its_blank_completes_the_sentence(subwords):
    (time,) = subwords.encode(" time")
    flow = hf.Flow(hf.MultiMask(hf.Vocab(subwords.size, 1)))

    def network(xt, t):
        return 30.0 * torch.nn.functional.one_hot(torch.full_like(xt, time), subwords.size).float()

    tale = "Once upon a time, there was a hen. Once upon a {},"
    texts = ["Once upon a [MASK:1],", tale.format("[MASK:1 word]")]
    out = hf.infill(network, flow, [prompt(text, subwords) for text in texts], steps=4, seed=0)
    assert out.text(subwords) == ["Once upon a time,", tale.format("time")]


def test_which_tokenizers_attach_blanks(subwords):
    assert subwords.attaches_blanks
    assert not from_text(
        "bpe:257", "", iter([DocumentChunk(TALE, True)]), Progress(None)
    ).attaches_blanks  # bytes alone
    assert not any(tokenizer.attaches_blanks for tokenizer in (LETTERS, Bytes(), Morse(" -./")))
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    engine.train_from_iterator([TALE], tokenizers.trainers.BpeTrainer(vocab_size=200, show_progress=False))
    assert Subwords(engine.to_str()).attaches_blanks
    engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=100, special_tokens=["[UNK]"], show_progress=False)
    engine.train_from_iterator([TALE], trainer)
    assert not Subwords(engine.to_str()).attaches_blanks


# -- holes in words and characters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["char", "chars", "character", "characters"])
def test_chars_are_exact_where_a_token_is_a_character(unit):
    assert spelled(f"a [MASK:12 {unit}]b") == f"a {'_' * 12}b"


@pytest.mark.parametrize("mark", ["[MASK:5 tokens]", "[MASK:5tokens]", "[MASK:5 token]"])
def test_a_hole_may_name_its_unit_tokens(mark):
    assert spelled(f"a{mark}") == "a_____"


def test_words_and_chars_take_the_tokens_that_they_take_in_the_prompt(subwords):
    text = "Once upon a time there was a hen Once upon a time there was a hut"  # 16 words, each a token
    assert len(subwords.encode(text)) < 20
    assert prompt(f"{text} [MASK:8 words]", subwords).tolist().count(HOLE) == 8
    # blanks around holes are not words
    assert prompt("Once upon a [MASK] there was [MASK] " * 3 + "[MASK:8 words]", subwords).tolist().count(HOLE) == 6 + 8
    rare = " ".join(["zyx"] * 12)
    assert prompt(f"{rare} [MASK:8 words]", subwords).tolist().count(HOLE) == pytest.approx(8 * 4, abs=2)
    assert prompt("миру мир " * 8 + "[MASK:10 chars]", Bytes()).tolist().count(HOLE) == round(10 * 126 / 71)


def test_a_short_prompt_is_measured_by_a_plain_text(subwords):
    tokens, words = len(subwords.encode(SAMPLE)), len(SAMPLE.split())
    for short in ("a ", "", " " * 80):
        assert prompt(f"{short}[MASK:10 words]", subwords).tolist().count(HOLE) == round(10 * tokens / words)
    assert prompt("a [MASK:1 char]", subwords).tolist().count(HOLE) == 1
    assert prompt("a [MASK:2 words]", LETTERS).tolist().count(HOLE) == round(2 * len(SAMPLE) / words)


def test_a_hole_of_words_has_a_token_for_each(subwords):
    wide = Subwords(subwords.definition)
    object.__setattr__(wide, "count", lambda text: 1)  # all of a text in one token
    assert prompt("[MASK:7 words]", wide).tolist().count(HOLE) == 7


def test_a_hole_with_too_many_tokens_is_refused():
    with pytest.raises(ValueError, match=r"\[MASK:1048576 words\] would have about [0-9,]+ tokens; at most"):
        prompt(f"[MASK:{MOST} words]", LETTERS)


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
        ("a.txt", b"", "contains no prompt"),
        ("a.txt", b"\n \n", "contains no prompt"),
        ("a.jsonl", b"\n", "contains no prompt"),
        ("a.txt", b"abc\xff", "not UTF-8: byte 3 is 0xff"),
        ("a.jsonl", b'{"prompt": "a"}\nnonsense\n', "line 2: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n', 'a string "prompt"'),
        ("a.jsonl", b'{"prompt": 3}\n', 'a string "prompt"'),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("a.csv", b"abc", ".txt"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        read(tmp_path / name)
