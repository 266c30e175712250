"""Reading: each format, documents, and whatever a file may hold."""

import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopflow.data import documents as documents_module
from hopflow.data.documents import ReadStatistics, read

MARK = "<|endoftext|>"


def documents(*paths, statistics=None):
    found, text = [], ""
    for chunk in read(paths, statistics or ReadStatistics()):
        text += chunk.text
        if chunk.last:
            found.append(text)
            text = ""
    assert text == ""
    return found


def lines(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.txt", bytes), ("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress), ("a", bytes), ("A.TXT", bytes)],
)
def test_a_text_file_is_one_document_for_every_compression(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack("one\n\ntwo é\n".encode()))
    assert documents(tmp_path / name) == ["one\n\ntwo é\n"]


@pytest.mark.parametrize(
    ("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.xz", lzma.compress)]
)
def test_a_json_line_is_a_document(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(("\n" + lines("one\r\n", "", "zwei ö 😀") + "  \n").encode()))
    statistics = ReadStatistics()
    assert documents(tmp_path / name, statistics=statistics) == ["one\r\n", "zwei ö 😀"]
    assert statistics.empty_documents == 1


@given(
    st.lists(st.text("ab\n <|>é", max_size=12).map(lambda t: t.replace(MARK, "")), min_size=1, max_size=5),
    st.integers(1, 40),
)
def test_end_of_text_marks_separate_documents_for_every_chunk_size(tmp_path_factory, texts, chunk):
    texts = [text.strip("\n") for text in texts]
    path = tmp_path_factory.mktemp("marks") / "a.txt"
    path.write_text(f"\n{MARK}\n".join(texts), encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "CHUNK", chunk)
        assert documents(path) == [text for text in texts if text.strip()]


def test_an_end_of_text_mark_within_a_line_separates_documents_and_one_at_the_end_adds_none(tmp_path):
    (tmp_path / "a.txt").write_text(f"one{MARK}two\n{MARK}\n")
    statistics = ReadStatistics()
    assert documents(tmp_path / "a.txt", statistics=statistics) == ["one", "two"]
    assert (statistics.documents, statistics.empty_documents) == (2, 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_carriage_returns_and_the_byte_order_mark_are_dropped_and_counted(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(documents_module, "CHUNK", chunk)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n\r")
    statistics = ReadStatistics()
    assert documents(tmp_path / "a.txt", statistics=statistics) == ["one\ntwo\rthree\n\r"]
    assert (statistics.crlf, statistics.bom) == (2, 1)


def test_the_position_of_an_invalid_byte_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "CHUNK", 7)
    (tmp_path / "a.txt").write_bytes("ééééé".encode() + b"ab\xffcd")
    with pytest.raises(ValueError, match="byte 12 is 0xff"):
        documents(tmp_path / "a.txt")
