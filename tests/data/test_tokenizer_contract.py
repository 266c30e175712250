"""What every tokenizer promises: text to ids and back, a stored form, and a name for `tokens=`.

A new class needs an example here; `test_every_class_has_an_example` fails without one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopflow as hf
from hopflow.data import Tokenizer
from hopflow.data.build_tokenizer import existing_tokenizer, from_text, token_choices
from hopflow.data.documents import DocumentChunk
from hopflow.data.morse import to_morse
from hopflow.data.tokenizers import Bytes, Characters, Morse, class_of, classes, options
from hopflow.system.progress import Progress

TEXT = "the worst of times, 1859"
TRAINING = f"{TEXT}; it was the best of times. " * 30
CHARACTERS = "".join(sorted(set(TRAINING)))
MORSE = " ,-.;"


def bpe() -> Tokenizer:
    return from_text("bpe:300", "", iter([DocumentChunk(TRAINING, True)]), Progress(None))


EXAMPLES = {
    "characters": (Characters(CHARACTERS), "char"),
    "characters with an end": (Characters(CHARACTERS, True), "char"),
    "Morse": (Morse(MORSE), "morse"),
    "Morse with an end": (Morse(MORSE, True), "morse"),
    "bytes": (Bytes(), "byte"),
    "bytes with an end": (Bytes(True), "byte"),
    "BPE": (bpe(), "bpe:300"),
}
"""A tokenizer, and the `tokens=` that makes one of its class."""
EACH = pytest.mark.parametrize("tokenizer", [tokenizer for tokenizer, _ in EXAMPLES.values()], ids=EXAMPLES)
NAMED = pytest.mark.parametrize(("tokenizer", "tokens"), EXAMPLES.values(), ids=EXAMPLES)


def plain(tokenizer: Tokenizer) -> str:
    """What `decode` returns for TEXT: Morse returns dots and dashes."""
    return to_morse(TEXT) if isinstance(tokenizer, Morse) else TEXT


def test_every_class_has_an_example():
    # Numbers and Symbols, which have no option, are not made from text: tests/data/test_rows.py
    ours = {cls for cls in classes() if cls.__module__.startswith("hopflow.") and cls.option}
    assert ours == {type(tokenizer) for tokenizer, _ in EXAMPLES.values()}


def test_every_option_has_an_example():
    assert {class_of(tokens).option for _, tokens in EXAMPLES.values()} >= {"char", "morse", "byte", "bpe:SIZE"}
    assert options() == list(dict.fromkeys(options()))
    assert len({cls.kind for cls in classes()}) == len(classes())


@EACH
def test_a_text_is_encoded_and_decoded(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == plain(tokenizer)
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("") == []
    assert tokenizer.count(TEXT) == len(ids)


@EACH
def test_several_texts_are_encoded_as_one_by_one(tokenizer):
    texts = ["the", "", TEXT]
    found = tokenizer.encode_all(texts)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text) for text in texts]
    assert {ids.dtype for ids in found} == {np.dtype(np.uint32)}


@EACH
def test_ids_are_below_the_size_and_others_are_refused(tokenizer):
    assert all(0 <= i < tokenizer.size for i in tokenizer.encode(TEXT))
    assert tokenizer.end is None or tokenizer.end < tokenizer.size
    for bad in (-1, tokenizer.size):
        with pytest.raises(ValueError, match=f"token id {bad} is out of range"):
            tokenizer.decode([bad])


@EACH
def test_an_end_of_text_token_is_added_once(tokenizer):
    ended = tokenizer.with_end()
    assert ended.end is not None
    assert ended.size == tokenizer.size + (tokenizer.end is None)
    assert ended.with_end() == ended
    assert ended.encode(TEXT) == tokenizer.encode(TEXT)
    assert ended.decode([*ended.encode(TEXT), ended.end]) == f"{plain(tokenizer)}<|endoftext|>"


@EACH
def test_a_tokenizer_is_stored_as_json_and_read_back(tokenizer):
    stored = json.loads(json.dumps(tokenizer.to_json()))
    assert {"format", "kind", "name"} <= stored.keys()
    again = Tokenizer.from_json(stored)
    assert again == tokenizer
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert (again.sha256, again.size, again.end) == (tokenizer.sha256, tokenizer.size, tokenizer.end)


@EACH
def test_a_stored_tokenizer_without_a_field_is_refused(tokenizer):
    stored = tokenizer.to_json()
    for field in stored.keys() - {"name"}:
        with pytest.raises(ValueError, match="tokenizer"):
            Tokenizer.from_json({key: value for key, value in stored.items() if key != field})


@EACH
def test_a_text_can_be_cut_where_the_tokenizer_says_so(tokenizer):
    text = TRAINING[:600]
    at = tokenizer.cut(text, 300)
    assert 0 < at <= 300
    assert tokenizer.encode(text[:at]) + tokenizer.encode(text[at:]) == tokenizer.encode(text)


@NAMED
def test_a_tokenizer_is_made_by_its_name(tokenizer, tokens, tmp_path):
    found = existing_tokenizer(tokens, tmp_path, Progress(None), True)
    made = from_text(tokens, CHARACTERS, iter([DocumentChunk(TRAINING, True)]), Progress(None))
    assert type(made) is type(tokenizer)
    assert (found is None) == made.needs_text
    assert class_of(tokens) is type(tokenizer)


@NAMED
def test_a_corpus_is_tokenized_by_the_name_of_a_tokenizer(tokenizer, tokens, tmp_path):
    (tmp_path / "text.txt").write_text(TRAINING)
    corpus = hf.data.load(tmp_path / "text.txt", tokens, length=16, holdout=0.1)
    assert type(corpus.tokenizer) is type(tokenizer)
    assert corpus.test.max() < corpus.vocab_size


@NAMED
def test_the_name_of_a_tokenizer_is_in_the_help_and_works_on_the_command_line(tokenizer, tokens, tmp_path, hopflow):
    (tmp_path / "text.txt").write_text(TRAINING)
    assert type(tokenizer).option in token_choices()
    assert type(tokenizer).option in " ".join(hopflow("config", "keys").out.split())
    result = hopflow("data", "prepare", str(tmp_path / "text.txt"), f"tokens={tokens}", "length=16", "holdout=0.1")
    assert result.code == 0, result.err


@pytest.mark.parametrize("tokens", ["chars", "bpe", "byte:3", "words"])
def test_an_unknown_name_is_refused_with_those_that_exist(tokens, tmp_path):
    with pytest.raises(ValueError, match=r"unknown tokens .*\nallowed: auto, char, morse, byte, bpe:SIZE"):
        existing_tokenizer(tokens, tmp_path, Progress(None), True)


@pytest.mark.parametrize("tokens", ["bpe:", "bpe:12", "bpe:x", "bpe:²", "bpe:10000000"])
def test_a_size_that_bpe_cannot_have_is_refused(tokens, tmp_path):
    with pytest.raises(ValueError, match="write bpe:SIZE with SIZE from 257"):
        existing_tokenizer(tokens, tmp_path, Progress(None), True)


def test_a_subclass_without_its_own_kind_does_not_replace_its_parent():
    class Letters(Characters):
        pass

    assert class_of("char") is Characters
    assert Letters not in classes()


# -- a user's tokenizer: one class ------------------------------------------------------------------------------------


@pytest.fixture
def vowels(monkeypatch):
    """A user's tokenizer, which exists for one test only."""

    @dataclass(frozen=True)
    class Vowels(Tokenizer):
        """1 for a vowel, 0 for any other character."""

        ends: bool = False
        name = kind = option = "vowels"

        @classmethod
        def from_text(cls, tokens: str, characters: str, documents: Iterator[DocumentChunk], progress: Progress):
            return cls()

        @classmethod
        def read_json(cls, content: Mapping[str, Any]):
            return cls(bool(content["ends"]))

        @property
        def end(self):
            return 2 if self.ends else None

        @property
        def size(self) -> int:
            return 2 + self.ends

        def encode_all(self, texts: Sequence[str]):
            return [np.array([c in "aeiou" for c in text], np.uint32) for text in texts]

        def decode(self, ids: Sequence[int]) -> str:
            return "".join("·a|"[i] for i in ids)

        def to_json(self) -> dict[str, Any]:
            return {"format": 1, "kind": self.kind, "name": self.name, "ends": self.ends}

        def with_end(self):
            return type(self)(True)

    monkeypatch.setattr(hf.data.tokenizers, "classes", lambda: [*CLASSES, Vowels])
    return Vowels


CLASSES = [cls for cls in classes() if cls.__module__.startswith("hopflow.")]


def test_a_users_tokenizer_is_chosen_by_its_option_and_stored(vowels, tmp_path, hopflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TRAINING)
    corpus = hf.data.load("text.txt", "vowels", length=16, holdout=0.1)
    assert type(corpus.tokenizer) is vowels
    assert Tokenizer.from_json(corpus.tokenizer.to_json()) == corpus.tokenizer
    assert "vowels" in token_choices()
    assert hopflow("data", "prepare", "text.txt", "tokens=vowels", "length=16").code == 0


def test_a_stored_tokenizer_of_a_class_that_is_not_imported_is_refused():
    with pytest.raises(ValueError, match=r"kind 'nowhere', expected .* Import the class first"):
        Tokenizer.from_json({"format": 1, "kind": "nowhere", "name": "x"})
