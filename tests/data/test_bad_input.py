"""Bad input: counted and reported, or one clear error; never a crash, never a half-made store."""

import gzip
import json
import lzma
import os

import pytest
import torch

import hopflow as hf
from hopflow.data import documents

TEXT = "To be, or not to be: that is the question.\n" * 20


def line(**content):
    return json.dumps(content).encode() + b"\n"


# name of the file, its bytes, settings, words of the error
REFUSED = [
    ("empty.txt", b"", {}, "is empty"),
    ("blank.txt", b" \n\n\t\n" * 50, {}, "is empty"),
    ("bom.txt", b"\xef\xbb\xbf", {}, "is empty"),
    ("one.txt", b"a", {"length": 1}, "the held-out text has 0 tokens"),
    ("short.txt", b"abc", {"holdout": 0.0}, "has 3 tokens, fewer than one row of 8"),
    ("short_held.txt", TEXT.encode(), {"length": 64}, "use a larger holdout"),
    ("latin.txt", "Ça".encode("latin-1") * 50, {}, "not UTF-8: byte 0 is 0xc7"),
    ("cut_off.txt", TEXT.encode() + "é".encode()[:1], {}, "not UTF-8: byte 860 is 0xc3"),
    ("overlong.txt", TEXT.encode() + b"\xc0\xaf", {}, "not UTF-8"),
    ("surrogate.txt", TEXT.encode() + b"\xed\xa0\x80", {}, "not UTF-8"),
    ("nul.txt", TEXT.encode() + b"\0", {}, "NUL"),
    ("utf16.txt", TEXT.encode("utf-16"), {}, "is UTF-16"),
    ("utf16_bare.txt", TEXT.encode("utf-16-le"), {}, "NUL"),
    ("not_gz.txt.gz", TEXT.encode(), {}, "cannot be unpacked"),
    ("cut.txt.gz", gzip.compress(TEXT.encode())[:-9], {}, "cannot be unpacked"),
    ("cut.txt.xz", lzma.compress(TEXT.encode())[:-9], {}, "cannot be unpacked"),
    ("flipped.txt.xz", lzma.compress(TEXT.encode())[:-20] + b"x" * 20, {}, "cannot be unpacked"),
    ("empty.jsonl", b"\n\n", {}, "is empty"),
    ("broken.jsonl", line(text=TEXT) + b'{"text": "a\n', {}, "line 2: not JSON"),
    ("deep.jsonl", b"[" * 100_000, {}, "line 1: not JSON"),
    ("list.jsonl", b'["text"]\n', {}, 'the key "text" is missing; found no object'),
    ("key.jsonl", line(body=TEXT), {}, "'body'"),
    ("number.jsonl", line(text=7), {}, "must be a string, found int"),
    ("half.jsonl", b'{"text": "\\ud800"}\n', {}, "surrogate"),
    ("nul.jsonl", b'{"text": "a\\u0000"}\n', {}, "line 1: contains NUL"),
    ("latin.jsonl", b'{"text": "\xe9"}\n', {}, "line 1: not UTF-8"),
    ("tokens.txt", TEXT.encode(), {"tokens": "bpe:12"}, "from 257"),
    ("tokens2.txt", TEXT.encode(), {"tokens": "words"}, "unknown tokens 'words'"),
    ("length.txt", TEXT.encode(), {"length": 0}, "length must be an integer ≥ 1, got 0"),
    ("holdout.txt", TEXT.encode(), {"holdout": 1.5}, "a fraction from 0 to 1"),
]


@pytest.mark.parametrize(("name", "content", "settings", "words"), REFUSED, ids=[case[0] for case in REFUSED])
def test_invalid_text_is_refused_with_the_reason(tmp_path, cache, name, content, settings, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"\w") as error:
        hf.data.load(tmp_path / name, **{"length": 8, **settings})
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) <= 5
    assert list(cache.rglob("*.tmp")) == []


# name of the file, its bytes, what is counted
ACCEPTED = [
    ("crlf.txt", TEXT.replace("\n", "\r\n").encode(), {"crlf": 20}),
    ("bom.txt", b"\xef\xbb\xbf" + TEXT.encode(), {"bom": 1}),
    ("bom.jsonl", b"\xef\xbb\xbf" + line(text=TEXT), {"bom": 1}),
    ("empty_line.jsonl", line(text=TEXT) + line(text=" "), {"empty_documents": 1}),
    ("no_newline.txt", TEXT.strip().encode(), {}),
    ("one_line.txt", TEXT.replace("\n", " ").encode(), {}),
    ("controls.txt", b"\x01\x1b[0m\x7f\x85".replace(b"\x85", b"") + TEXT.encode(), {}),
    ("wide.txt", ("😀\u202eא\ufeff\U0010ffff" + TEXT).encode(), {}),
    ("two.txt.gz", gzip.compress(TEXT[:99].encode()) + gzip.compress(TEXT[99:].encode()), {}),
]


@pytest.mark.parametrize("tokens", ["char", "byte", "morse", "bpe:300"])
@pytest.mark.parametrize(("name", "content", "counted"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_unusual_text_is_read_and_its_oddities_are_counted(tmp_path, name, content, counted, tokens):
    (tmp_path / name).write_bytes(content)
    corpus = hf.data.load(tmp_path / name, tokens, 8, holdout=0.25)
    met = corpus.store.header["read"]
    expected = {"crlf": 0, "bom": 0, "empty_documents": 0, "forced_cuts": 0, **counted}
    assert {key: met[key] for key in expected} == expected
    assert int(corpus.batch(0, 0, corpus.rows).max()) < corpus.vocab_size
    assert "question" in "".join(map(corpus.decode, corpus.batch(0, 0, corpus.rows))) or tokens != "byte"


def test_a_missing_file_and_a_folder_without_text_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file.*missing\.txt"):
        hf.data.load("missing.txt")
    (tmp_path / "picture.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="contains no text"):
        hf.data.load(tmp_path)


def test_an_unknown_name_is_refused_with_the_most_similar_one():
    with pytest.raises(ValueError, match="did you mean 'shakespeare'"):
        hf.data.load("shakespear")
    with pytest.raises(ValueError, match="HOPFLOW_DATA"):
        hf.data.load("novels")
    with pytest.raises(ValueError, match="tokens=gpt2"):
        hf.data.load("gpt2")


def test_a_json_line_beyond_the_limit_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_LINE", 1000)
    (tmp_path / "a.jsonl").write_bytes(line(text="a" * 2000))
    with pytest.raises(ValueError, match="one JSON line is longer"):
        hf.data.load(tmp_path / "a.jsonl")


def test_a_token_out_of_range_in_a_damaged_file_is_reported(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = hf.data.load(tmp_path / "a.txt", length=8)
    with (corpus.store.folder / "train.bin").open("r+b") as file:  # while it is in use
        file.write(b"\xff" * corpus.rows * 8)
    with pytest.raises(ValueError, match="token id 255 is out of range"):
        corpus.batch(0, 0, 4)


def test_ids_and_characters_that_do_not_exist_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = hf.data.load(tmp_path / "a.txt", length=8)
    for ids in ([-1], [corpus.vocab_size], torch.tensor([10**6])):
        with pytest.raises(ValueError, match="out of range"):
            corpus.decode(ids)
    with pytest.raises(ValueError, match=r"'é' \(U\+00E9\) is not among"):
        corpus.encode("é")
    with pytest.raises(ValueError, match=r"U\+1F600"):
        corpus.encode("be 😀")


def test_a_negative_start_and_a_batch_of_no_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(ValueError, match="must not be negative"):
        hf.data.load(tmp_path / "a.txt", length=8).batch(0, -1, 4)
    with pytest.raises(ValueError, match="everything is held out"):
        hf.data.load(tmp_path / "a.txt", length=8, holdout=1.0).batch(0, 0, 4)


def test_a_sparse_terabyte_is_refused_before_it_is_hashed(tmp_path, monkeypatch):
    file = tmp_path / "zeros.txt"
    file.touch()
    os.truncate(file, 1 << 40)

    def hashed(*arguments):
        raise AssertionError("hashing a terabyte takes an hour")

    monkeypatch.setattr("hopflow.data.text_files.file_sha256", hashed)
    with pytest.raises(ValueError, match="NUL"):
        hf.data.load(file)


@pytest.mark.parametrize("kind", ["pipe", "endless", "terabyte"])
def test_a_tokenizer_that_is_special_or_huge_is_not_read(tmp_path, kind):
    (tmp_path / "text.txt").write_text(TEXT)
    file = tmp_path / "tokenizer.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read: it (is|has)"):
        hf.data.load(tmp_path / "text.txt", file)
