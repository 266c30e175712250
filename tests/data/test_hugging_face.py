"""Hugging Face datasets: a local one with the extra; one line that says what to install without it."""

import importlib.util
import json
import sys

import pytest

import hopflow as hf

HERE = importlib.util.find_spec("datasets") is not None


@pytest.mark.skipif(not HERE, reason="the extra `data` (datasets) is not installed")
def test_a_local_dataset_is_a_corpus_with_its_splits(tmp_path, cache, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    folder = tmp_path / "tales"
    folder.mkdir()
    for split, letter in (("train", "a"), ("validation", "b")):
        lines = [json.dumps({"text": letter * 7, "id": i}) + "\n" for i in range(5)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    for _ in range(2):  # the second from what was written out
        corpus = hf.data.load(f"hf:{folder}", length=8, offline=True)
        assert {corpus.decode(row) for row in corpus.batch(0, 0, corpus.rows)} == {"a" * 7 + "<|endoftext|>"}
        assert {corpus.decode(row) for row in corpus.test} == {"b" * 7 + "<|endoftext|>"}
        assert corpus.rows == 5


@pytest.mark.skipif(not HERE, reason="the extra `data` (datasets) is not installed")
def test_a_dataset_without_a_text_column_is_refused_with_its_columns(tmp_path, cache, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    (tmp_path / "train.jsonl").write_text('{"body": "a"}\n')
    with pytest.raises(ValueError, match="no column 'text'; it has: body"):
        hf.data.load(f"hf:{tmp_path}", length=8, offline=True)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hopflow\[data\]'") as error:
        hf.data.load("hf:some/tales")
    assert error.value.name == "datasets"
