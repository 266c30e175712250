"""Cutting: a document in segments has the ids of the whole document, wherever it is cut."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopflow.data import segments as segments_module
from hopflow.data.build_tokenizer import from_files
from hopflow.data.documents import DocumentChunk, ReadStatistics
from hopflow.data.morse import to_morse
from hopflow.data.segments import segments
from hopflow.data.subwords import Subwords
from hopflow.data.tokenizers import Bytes, Characters, Morse

SPOKEN = st.lists(
    st.sampled_from(
        ["the", " times", " ", "  ", "\n", "\n\n", "\t", "it's", "we'll", "'", "1859", "½", "²3", "é", "e\u0301"]
    )
    | st.sampled_from(
        [",", "…", "--", "_", " \u00a0", "\u2003", "\x1c", "\u200b", "日本", "😀", "a1b2", "<|endoftext|>"]
    )
    | st.text(max_size=6).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
    max_size=40,
).map("".join)


def in_segments(tokenizer, text, size, step):
    """The ids of a text that comes in chunks of `step` characters and is tokenized in segments of about `size`."""
    starts = range(0, max(len(text), 1), step)
    chunks = [DocumentChunk(text[i : i + step], i + step >= len(text)) for i in starts]
    statistics = ReadStatistics()
    parts = list(segments(chunks, tokenizer, statistics, size))
    assert "".join(part.text for part in parts) == text
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    ids = tokenizer.encode_all([part.text for part in parts])
    return np.concatenate(ids).tolist(), len(parts), statistics


@contextmanager
def window(size):
    """Short windows, so that short texts are cut as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "WINDOW", size)
        yield


@given(SPOKEN, st.integers(1, 20), st.integers(1, 9))
@example("it's  the\n\n times", 3, 2)
def test_bpe_in_segments_equals_bpe_of_the_complete_text(pairs, text, size, step):
    whole = pairs._encode_batch([text])[0]
    with window(8):
        assert in_segments(pairs, text, size, step)[0] == whole


@given(SPOKEN)
@example("½5 a½5 don't  x\x1cy a\u0301b _a a_ 日a a日 it's'll")
def test_bpe_word_by_word_equals_bpe_of_the_complete_text(pairs, text):
    assert pairs._word_cache is not None
    assert pairs.encode(text) == pairs._encode_batch([text])[0]


def test_every_unicode_character_is_tokenized_in_segments_as_in_one_piece(pairs):
    """Every character of the basic plane, after and before letters, marks, figures and blanks."""
    points = [point for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    texts = ["".join(f"!{c}!a{c}b{c}1{c} {c}" for c in map(chr, points[i : i + 64])) for i in range(0, len(points), 64)]
    assert [ids.tolist() for ids in pairs.encode_all(texts)] == pairs._encode_batch(texts)


def test_gpt2_ids_of_real_text_word_by_word_equal_those_of_the_complete_text(shared):
    gpt2 = from_files(shared / "gpt2-bpe", "gpt2")
    with (shared / "openwebtext" / "openwebtext-1000.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line, _ in zip(file, range(60), strict=False)]
    assert [ids.tolist() for ids in gpt2.encode_all(texts)] == gpt2._encode_batch(texts)
    assert gpt2.encode("Hello world") == [15496, 995]


@given(SPOKEN.filter(bool), st.integers(1, 20), st.integers(1, 9))
def test_characters_bytes_and_morse_may_be_cut_anywhere(text, size, step):
    with window(0):
        for tokenizer in (
            Characters("".join(sorted(set(text)))),
            Morse("".join(sorted(set(to_morse(text))))),
            Bytes(),
        ):
            ids, parts, _ = in_segments(tokenizer, text, size, step)
            assert ids == tokenizer.encode(text)
            assert parts == max(1, -(-len(text) // size))


def test_a_cut_within_a_word_changes_ids(pairs):
    """So that the tests here can fail."""
    assert pairs.encode("times!") == [*pairs.encode("times"), *pairs.encode("!")]
    for left, right in (("ti", "mes"), ("!", "\x1c"), ("½", "5"), ("a ", "b"), (" ", " ")):
        assert pairs.encode(left + right) != pairs.encode(left) + pairs.encode(right)


def test_long_lines_are_split_into_segments_without_changing_ids(bpe):
    text = "the times " * 50_000
    ids, parts, statistics = in_segments(bpe, text, 1 << 12, 1 << 14)
    assert parts > 100
    assert ids == bpe._encode_batch([text])[0]
    assert statistics.forced_cuts == 0


def test_a_line_without_blanks_is_cut_where_letters_end(bpe):
    text = "times,1859;worst/" * 5_000
    ids, parts, statistics = in_segments(bpe, text, 1 << 12, 1 << 14)
    assert parts > 10
    assert ids == bpe._encode_batch([text])[0]
    assert statistics.forced_cuts == 0


def test_an_extremely_long_word_is_split_and_counted(bpe, monkeypatch):
    monkeypatch.setattr(segments_module, "LONGEST", 10_000)
    _, parts, statistics = in_segments(bpe, "a" * 35_000, 1_000, 4_000)
    assert statistics.forced_cuts == parts - 1 == 3


@pytest.fixture
def prefixing(bpe):
    """A tokenizer that puts a blank before every text: a cut before a word would add one."""
    parts = json.loads(bpe.definition)
    parts["pre_tokenizer"]["add_prefix_space"] = True
    return Subwords(json.dumps(parts), "prefixing")


def test_a_tokenizer_that_adds_a_blank_is_cut_only_where_that_changes_nothing(prefixing):
    assert prefixing._word_cache is None
    text = "times\nthe times\n\n1859,the" * 400
    ids, parts, _ = in_segments(prefixing, text, 300, 100)
    assert parts > 10
    assert ids == prefixing.encode(text)
