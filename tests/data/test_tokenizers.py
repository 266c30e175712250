"""Tokenizers: there and back, stored as plain JSON, made from files; hostile files are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopflow.data import Tokenizer
from hopflow.data.build_tokenizer import existing_tokenizer, from_files, from_text
from hopflow.data.documents import DocumentChunk
from hopflow.data.subwords import Subwords
from hopflow.data.tokenizers import Bytes, Characters, Morse
from hopflow.system.progress import Progress

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(ANY)
def test_every_text_survives_bytes_and_bpe(bpe, text):
    for tokenizer in (Bytes(), bpe):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.size for i in ids)


@given(ANY.filter(bool))
def test_every_text_survives_its_own_characters(text):
    tokenizer = Characters("".join(sorted(set(text))))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.size == len(set(text))


def every_kind(bpe):
    return [Characters("abc"), Characters("abc", True), Morse(" -.", True), Bytes(), Bytes(True), bpe]


def test_a_stored_tokenizer_is_the_same_again(bpe):
    hashes = set()
    for tokenizer in every_kind(bpe):
        again = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
        assert again == tokenizer
        assert (again.sha256, again.size, again.end) == (tokenizer.sha256, tokenizer.size, tokenizer.end)
        hashes.add(tokenizer.sha256)
    assert len(hashes) == 6


def test_the_end_of_text_is_one_token_beyond_the_others(bpe):
    assert (Bytes().end, Bytes().with_end().end, Bytes().with_end().size) == (None, 256, 257)
    assert Bytes(True).decode([104, 105, 256, 33]) == "hi<|endoftext|>!"
    assert Characters("abc").with_end().decode([0, 3, 1]) == "a<|endoftext|>b"
    assert bpe.with_end() is bpe
    assert bpe.decode([bpe.end]) == "<|endoftext|>"


def test_a_text_that_spells_the_end_of_text_does_not_end_it(bpe):
    ids = bpe.encode("a<|endoftext|>b")
    assert bpe.end not in ids
    assert bpe.decode(ids) == "a<|endoftext|>b"


def test_a_tokenizer_file_without_an_end_gets_one(bpe):
    parts = json.loads(bpe.definition)
    renamed = {("<start>" if token == "<|endoftext|>" else token): i for token, i in parts["model"]["vocab"].items()}
    parts["model"]["vocab"] = renamed
    plain = Subwords(json.dumps(parts))
    assert plain.end is None
    assert plain.with_end().end == plain.size == plain.with_end().size - 1
    ids = [*plain.encode("the times"), plain.size, *plain.encode("1859")]
    assert plain.with_end().decode(ids) == "the times<|endoftext|>1859"
    assert Tokenizer.from_json(plain.with_end().to_json()) == Tokenizer.from_json(plain.with_end().to_json())
    assert plain.with_end().sha256 != plain.sha256


def test_a_tokenizer_file_is_read_without_what_it_adds_cuts_or_fills_up(bpe, tmp_path):
    parts = json.loads(bpe.definition)
    parts["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    parts["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = existing_tokenizer(path, tmp_path, Progress(None), True)
        assert found.encode("the worst of times") == bpe.encode("the worst of times")
        assert found.sha256 == bpe.sha256


def test_encoder_json_and_vocab_bpe_are_read(tmp_path, bpe):
    model = json.loads(bpe.definition)["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    found = from_files(tmp_path, "pair")
    assert found.sha256 == bpe.sha256
    assert found.encode("the worst of times, 1859") == bpe.encode("the worst of times, 1859")


def test_bpe_is_learnt_from_the_training_split_alone():
    trained = [DocumentChunk("aaaa bbbb " * 50, True), DocumentChunk("zzzz yyyy " * 500, True, held=True)]
    tokenizer = from_text("bpe:300", "", iter(trained), Progress(None))
    assert len(tokenizer.encode("aaaa")) == 1
    assert len(tokenizer.encode("zzzz")) == 4
    assert tokenizer.size < 300  # there is not more to merge


CANARY = "hopflow_canary"
HOSTILE = [
    {},
    {"format": 1},
    {"format": 2, "kind": "char"},
    {"format": 1, "kind": "pickle", "data": "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU"},
    {"format": 1, "kind": "char", "symbols": "ba", "ends": False},
    {"format": 1, "kind": "char", "symbols": "aa", "ends": False},
    {"format": 1, "kind": "char", "symbols": "", "ends": False},
    {"format": 1, "kind": "char", "symbols": ["a"], "ends": False},
    {"format": 1, "kind": "char", "symbols": "ab", "ends": 1},
    {"format": 1, "kind": "byte"},
    {"format": 1, "kind": "byte", "ends": "yes"},
    {"format": 1, "kind": "subwords", "name": "x", "end": None, "tokenizer": {}},
    {"format": 1, "kind": "subwords", "name": "x", "end": None, "tokenizer": f"__import__('os').mkdir('{CANARY}')"},
    {"format": 1, "kind": "subwords", "name": "x", "end": None, "tokenizer": {"model": {"type": "BPE", "vocab": [1]}}},
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": 9,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 4e9}, "merges": []}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 1 << 30}, "merges": []}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {"model": {"type": "Shell", "vocab": {"a": 0}, "cmd": f"mkdir {CANARY}"}},
    },
    {
        "format": 1,
        "kind": "subwords",
        "name": "x",
        "end": None,
        "tokenizer": {
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
        },
    },
]


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_tokenizer_is_refused_and_nothing_runs(tmp_path, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer|symbols|ids are not|end-of-text"):
        Tokenizer.from_json(payload)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04\x95", b"[]", b"{}", b"[" * 100_000, b'{"model": {"vocab": {}}}', b'{"model": 3}']
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="not a tokenizer"):
        from_files(tmp_path / "tokenizer.json", "tokenizer.json")


def test_a_damaged_pair_of_files_is_refused(tmp_path):
    (tmp_path / "encoder.json").write_text('{"a": 0}')
    for merges in (b"a b c\n", b"\xff\xfe"):
        (tmp_path / "vocab.bpe").write_bytes(merges)
        with pytest.raises(ValueError, match="not a list of merges"):
            from_files(tmp_path, "pair")
    (tmp_path / "vocab.bpe").unlink()
    with pytest.raises(FileNotFoundError, match="nor encoder"):
        from_files(tmp_path, "pair")
    with pytest.raises(FileNotFoundError, match="no such tokenizer"):
        existing_tokenizer("missing/tokenizer.json", tmp_path, Progress(None), True)
