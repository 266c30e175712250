"""The corpus: rows, splits, masks, order and identity, from every kind of source."""

import io
import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch

import hopflow as hf
from hopflow.data import open_corpus
from hopflow.data.documents import CHUNK

LONG = "".join(f"line {i} of a text that is one document\n" for i in range(300))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(LONG)
    return path


@pytest.fixture
def stories(tmp_path):
    """Fifty documents of 1 to 50 characters, each of its own character."""
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": chr(200 + i) * (i + 1)}) + "\n" for i in range(50)))
    return path


def rows_of(corpus):
    return [corpus.decode(row) for row in corpus.batch(0, 0, corpus.rows)]


def test_a_text_that_is_one_document_holds_out_its_last_part(text):
    corpus = hf.data.load(text, length=32, holdout=0.1)
    border = round(0.9 * len(LONG))
    assert sorted(rows_of(corpus)) == sorted(LONG[32 * i : 32 * i + 32] for i in range(border // 32))
    assert [corpus.decode(row) for row in corpus.test] == [
        LONG[border + 32 * i : border + 32 * i + 32] for i in range((len(LONG) - border) // 32)
    ]
    assert corpus.tokenizer.end is None
    assert corpus.vocab_size == len(set(LONG))
    assert corpus.batch(0, 0, 3).dtype == corpus.test.dtype == torch.int64


def test_counts_are_those_of_the_training_split(text):
    corpus = hf.data.load(text, length=32, holdout=0.1)
    trained = LONG[: round(0.9 * len(LONG))]
    assert corpus.counts.tolist() == [trained.count(symbol) for symbol in corpus.tokenizer.symbols]
    assert corpus.counts.dtype == torch.int64


@pytest.mark.parametrize("border", [CHUNK - 1, CHUNK, CHUNK + 1])
def test_a_document_that_is_divided_where_a_chunk_ends_loses_no_training_text(tmp_path, border):
    text = "ab" * CHUNK
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": text}) + "\n")
    corpus = hf.data.load(tmp_path / "one.jsonl", length=64, holdout=1 - border / len(text))
    counts = {name: (part["tokens"], part["documents"]) for name, part in corpus.store.header["splits"].items()}
    assert counts == {"train": (border, 1), "test": (len(text) - border, 1)}


def test_complete_documents_are_held_out(stories):
    corpus = hf.data.load(stories, length=1, holdout=0.1)
    held, end = set(corpus.test.flatten().tolist()), corpus.tokenizer.end
    trained = set(corpus.batch(0, 0, corpus.rows).flatten().tolist())
    assert held & trained == {end}
    assert len(held) == 5 + 1
    assert len(trained) == 45 + 1
    assert corpus.counts[end] == 45
    other = hf.data.load(stories, length=1, holdout=0.1, seed=1)
    assert set(other.test.flatten().tolist()) != held


def test_packed_documents_follow_each_other_each_with_its_end(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "de"}\n{"text": "f"}\n')
    corpus = hf.data.load(tmp_path / "a.jsonl", length=3, holdout=0.0)
    end = "<|endoftext|>"
    assert sorted(rows_of(corpus)) == sorted(["abc", f"{end}de", f"{end}f{end}"])
    assert corpus.keep(0, 0, 3) is None
    assert corpus.test_keep is None
    assert corpus.test.shape == (0, 3)


def test_padded_rows_belong_to_one_document_and_the_mask_ends_with_it(stories):
    corpus = hf.data.load(stories, length=8, pack=False, holdout=0.1)
    tokens, keep, end = corpus.batch(3, 0, corpus.rows), corpus.keep(3, 0, corpus.rows), corpus.tokenizer.end
    for row, mask in zip(tokens.tolist(), keep.tolist(), strict=True):
        kept = [token for token, counts in zip(row, mask, strict=True) if counts]
        assert mask == sorted(mask, reverse=True)
        assert len(set(kept) - {end}) <= 1
        assert set(row[len(kept) :]) <= {end}
        assert kept.count(end) <= 1
    lengths = corpus.store.header["splits"]
    assert int(keep.sum()) == lengths["train"]["tokens"]
    assert int(corpus.test_keep.sum()) == lengths["test"]["tokens"]
    assert torch.equal(torch.bincount(tokens[keep], minlength=corpus.vocab_size), corpus.counts)
    assert hf.data.load(stories, length=8, pack=False, holdout=0.0).test_keep.shape == (0, 8)


def test_a_single_document_has_an_end_of_text_token_only_with_padding(text):
    assert hf.data.load(text, length=32, pack=False).tokenizer.end is not None
    assert hf.data.load(text, "byte", length=32).vocab_size == 256
    assert hf.data.load(text, "byte", length=32, pack=False).vocab_size == 257


def test_every_epoch_visits_every_row_and_batches_may_straddle_its_edge(text):
    corpus = hf.data.load(text, length=32)
    n = corpus.rows
    first, second = corpus.batch(7, 0, n), corpus.batch(7, n, n)
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert not torch.equal(first, second)
    assert torch.equal(corpus.batch(7, n - 5, 10), torch.cat([first[-5:], second[:5]]))
    assert torch.equal(corpus.batch(7, 0, 3 * n)[2 * n :], corpus.batch(7, 2 * n, n))
    assert not torch.equal(first, corpus.batch(8, 0, n))
    assert corpus.batch(7, 4, 0).shape == (0, 32)


def test_the_held_out_rows_are_capped_and_evenly_spread(text, monkeypatch):
    whole = hf.data.load(text, length=8, holdout=0.5).test
    monkeypatch.setattr(open_corpus, "TEST_ROWS", 10)
    few = hf.data.load(text, length=8, holdout=0.5).test
    places = [i * len(whole) // 10 for i in range(10)]
    assert len(whole) > 100
    assert torch.equal(few, whole[places])


def test_the_second_load_reads_nothing_and_gives_the_same(text, monkeypatch):
    first = hf.data.load(text, length=32)
    monkeypatch.setattr("hopflow.data.prepare._build", None)
    second = hf.data.load(text, length=32)
    assert second.identity == first.identity
    assert torch.equal(second.batch(1, 2, 50), first.batch(1, 2, 50))
    assert hf.data.load(text, length=16).identity["train_sha256"] == first.identity["train_sha256"]


def test_the_identity_is_plain_and_tells_what_differs(text, stories):
    base = hf.data.load(text, length=32)
    assert json.loads(json.dumps(base.identity)) == base.identity
    differences = {
        "length": hf.data.load(text, length=16),
        "pack": hf.data.load(text, length=32, pack=False),
        "holdout": hf.data.load(text, length=32, holdout=0.1),
        "tokenizer": hf.data.load(text, "byte", length=32),
        "source_sha256": hf.data.load(stories, length=32, holdout=0.5),
        "split_seed": hf.data.load(text, length=32, seed=1),
    }
    for key, other in differences.items():
        assert other.identity[key] != base.identity[key]


def test_a_source_that_changed_is_prepared_again(text):
    before = hf.data.load(text, length=32)
    text.write_text(LONG.replace("line", "LINE"))
    os.utime(text, ns=(1, 1))
    after = hf.data.load(text, length=32)
    assert after.identity["source_sha256"] != before.identity["source_sha256"]
    assert "LINE" in "".join(rows_of(after))


def test_texts_with_equal_content_share_one_store(text, tmp_path):
    (tmp_path / "my.own.copy").write_text(LONG)
    first, second = hf.data.load(text, length=32), hf.data.load(tmp_path / "my.own.copy", length=32)
    assert first.store.folder == second.store.folder


def test_a_folder_is_read_in_order_and_each_file_is_a_document(tmp_path):
    (tmp_path / "b.txt").write_text("bb")
    (tmp_path / "a.jsonl").write_text('{"text": "aa"}\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.txt").write_text("cc")
    for ignored in (".hidden.txt", "README.md", "picture.png"):
        (tmp_path / ignored).write_bytes(b"\xff")
    corpus = hf.data.load(tmp_path, length=9, holdout=0.0)
    assert rows_of(corpus) == ["aa<|endoftext|>bb<|endoftext|>cc<|endoftext|>"]


def test_a_folder_with_splits_holds_out_its_valid_file(tmp_path):
    for name, text in (("wiki.train.txt", "aaaa"), ("wiki.valid.txt", "bbbb"), ("wiki.test.txt", "cccc")):
        (tmp_path / name).write_text(text)
    corpus = hf.data.load(tmp_path, length=4)
    assert rows_of(corpus) == ["aaaa"]
    assert [corpus.decode(row) for row in corpus.test] == ["bbbb"]
    assert corpus.vocab_size == 2


def test_further_corpora_are_found_by_name_with_their_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_DATA", str(tmp_path))
    (tmp_path / "tales").mkdir()
    for split in ("train", "test"):
        (tmp_path / "tales" / f"{split}.txt").write_text(split * 10)
    assert rows_of(hf.data.load("tales", length=40)) == ["train" * 8]
    assert rows_of(hf.data.load("tales:test", length=40, holdout=0.0)) == ["test" * 10]
    with pytest.raises(ValueError, match="no split 'dev'; it has: train, test"):
        hf.data.load("tales:dev")


def test_text_comes_through_a_pipe(monkeypatch, cache):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LONG.encode())))
    corpus = hf.data.load("-", length=32)
    assert corpus.store.header["source"] == "stdin"
    assert corpus.rows > 300
    assert not list(cache.glob("pipes/[!.]*"))


def test_a_named_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if os.fork() == 0:
        with pipe.open("w") as file:
            file.write(LONG)
        os._exit(0)
    assert hf.data.load(pipe, length=32).rows > 300
    os.wait()


def test_the_built_in_text_needs_nothing():
    corpus = hf.data.load("docs", length=64, offline=True)
    assert corpus.rows > 1000
    assert "Python" in "".join(map(corpus.decode, corpus.batch(0, 0, 300)))
    assert corpus.identity["train_documents"] > 50


def test_bpe_on_the_spot_and_a_stored_tokenizer_give_the_same_corpus(text):
    first = hf.data.load(text, "bpe:300", length=16)
    tokenizer = hf.data.Tokenizer.from_json(json.loads(json.dumps(first.tokenizer.to_json())))
    second = hf.data.load(text, tokenizer, length=16)
    assert second.identity["train_sha256"] == first.identity["train_sha256"]
    assert second.identity["tokenizer_sha256"] == first.identity["tokenizer_sha256"]


def test_long_preparation_reports_its_progress(text, monkeypatch):
    clock = iter(range(0, 10**6, 3))
    monkeypatch.setattr("hopflow.system.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = []
    hf.data.load(text, "bpe:300", length=16, progress=said.append)
    assert any("hashing" in words for words in said)
    assert any("reading" in words for words in said)
    assert any("tokenizing" in words and "MB/s" in words for words in said)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("openwebtext", 1_054_999, None),
        pytest.param("wikitext-2", 2_448_382, 258_659, marks=pytest.mark.slow),
        pytest.param("ptb", 1_174_722, 92_830, marks=pytest.mark.slow),
    ],
)
def test_gpt2_tokens_of_known_corpora_are_as_many_as_known(shared, name, train, test):
    corpus = hf.data.load(name, "gpt2")
    splits = corpus.store.header["splits"]
    if test is None:  # every document with its end
        assert splits["train"]["tokens"] + splits["test"]["tokens"] == train
    else:
        assert (splits["train"]["tokens"], splits["test"]["tokens"]) == (train + 1, test + 1)
    assert corpus.tokenizer.end == 50256


def test_tiny_shakespeare_has_its_known_hash_vocabulary_and_length(shared):
    corpus = hf.data.load("shakespeare")
    assert corpus.identity["source_sha256"].startswith("86c4e6aa")
    assert corpus.vocab_size == 65
    assert corpus.identity["train_tokens"] + corpus.identity["test_tokens"] == 1_115_394


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("to be, or not to be. " * 50, "char"),
        ("".join(map(chr, range(0x4E00, 0x4E00 + 400))), "bpe:512"),  # a short text with many distinct characters
        ("to be, or not to be. " * 1_000, "bpe:512"),
        ("to be, or not to be. " * 24_000, "bpe:512"),
        ("to be, or not to be. " * 25_000, "bpe:1024"),
    ],
    ids=["short", "short with many characters", "longer", "just too short for more", "long"],
)
def test_auto_takes_a_vocabulary_that_the_text_can_teach(tmp_path, text, name):
    file = tmp_path / "text.txt"
    file.write_text(text)
    corpus = hf.data.load(file, "auto", length=8, cache=tmp_path / "cache", holdout=0.1)
    assert corpus.tokenizer.name == name
    assert corpus.identity["tokenizer"] == name
    assert corpus.decode(corpus.encode(text[:20])) == text[:20]


def test_a_printed_corpus_says_what_it_contains(text):
    corpus = hf.data.load(text, tokens="char", length=32, holdout=0.1)
    assert str(corpus).splitlines() == [
        f"Corpus of {corpus.rows:,} training and {len(corpus.test):,} held-out rows of 32 tokens",
        f"  data       text.txt, {int(corpus.counts.sum()):,} training tokens",
        f"  tokenizer  char, {corpus.vocab_size} tokens",
    ]
