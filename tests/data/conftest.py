"""No test of data uses a folder of further corpora or the network."""

import os
import socket
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from hopflow.data.build_tokenizer import from_text
from hopflow.data.documents import DocumentChunk
from hopflow.data.subwords import Subwords, _byte_level
from hopflow.system.progress import Progress

SHARED = os.environ.get("HOPFLOW_DATA")


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv("HOPFLOW_DATA", raising=False)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def shared(monkeypatch) -> Path:
    """The folder with further corpora, where the machine has one."""
    if not SHARED or not Path(SHARED).is_dir():
        pytest.skip("HOPFLOW_DATA names no folder with corpora")
    monkeypatch.setenv("HOPFLOW_DATA", SHARED)
    return Path(SHARED)


@pytest.fixture(scope="session")
def pairs():
    """A byte-level BPE that merges any two bytes: a cut at any place but the end of a word changes its ids."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = [[a, b] for a in alphabet for b in alphabet]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    return Subwords(_byte_level(vocabulary, merges), "pairs")


@pytest.fixture(scope="session")
def bpe():
    """A small byte-level BPE, made as `tokens=bpe:400` makes it."""
    text = "It was the best of times, it's the worst of times; we'll see 1859 again.\n\nÀ demain! " * 40
    return from_text("bpe:400", "", iter([DocumentChunk(text, True)]), Progress(None))
