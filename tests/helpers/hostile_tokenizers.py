"""Tokenizer files that a hostile or careless hand has changed: small valid ones of four kinds, each with a mutation.

`hostile` names about 160 of them. What a loader owes each: a tokenizer that encodes and decodes, or one message.
Run as a program, so that an abort of the Rust library ends this process and not that of the tests.
"""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hopflow.data.build_tokenizer import from_files

Parts = dict[str, Any]
Change = Callable[[Parts], None]

LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?"
TEXT = "to be or not to be, that is the question; é 1859!\n" + "a" * 60 + "!\n"
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", ",", ".")


def plain(model: Parts, pre_tokenizer: Parts | None, decoder: Parts | None) -> Parts:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe() -> Parts:
    merges = [["t", "o"], ["b", "e"], ["t", "h"], ["th", "e"]]
    tokens = [*LETTERS, *("".join(pair) for pair in merges)]
    model = {"type": "BPE", "unk_token": None, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    return plain(model, {"type": "Whitespace"}, None)


def word_piece() -> Parts:
    tokens = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: i for i, token in enumerate(tokens)},
    }
    return plain(model, {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True})


def unigram() -> Parts:
    vocab = [["<unk>", 0.0], *([f"▁{word}", -2.0] for word in WORDS), *([letter, -4.0] for letter in LETTERS + "▁")]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return plain({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}, metaspace, metaspace)


def word_level() -> Parts:
    vocab = {word: i for i, word in enumerate(("[UNK]", *WORDS))}
    return plain({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}, {"type": "Whitespace"}, None)


KINDS = {"BPE": bpe, "WordPiece": word_piece, "Unigram": unigram, "WordLevel": word_level}


def put(**values: Any) -> Change:
    return lambda parts: parts.update(values)


def model(**values: Any) -> Change:
    return lambda parts: parts["model"].update(values)


def added(**values: Any) -> Change:
    token = {"id": 200, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False}
    return put(added_tokens=[{**token, "normalized": False, "special": True, **values}])


def token(name: str, value: Any) -> Change:
    """One more entry of the vocabulary."""

    def change(parts: Parts) -> None:
        vocab = parts["model"]["vocab"]
        if isinstance(vocab, dict):
            vocab[name] = value
        else:
            vocab.append([name, value])

    return change


def nested(kind: str, inner: str, depth: int) -> Parts:
    found: Parts = {"type": "Lowercase"} if inner == "normalizers" else {"type": "Whitespace"}
    found = {"type": "Fuse"} if inner == "decoders" else found
    for _ in range(depth):
        found = {"type": kind, inner: [found]}
    return found


def split(pattern: str) -> Change:
    return put(pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})


def replace(pattern: Parts, content: str) -> Parts:
    return {"type": "Replace", "pattern": pattern, "content": content}


CHARSMAP = base64.b64encode(b"\xff\xff\xff\x7f" + bytes(64)).decode()

EVERY: dict[str, Change] = {
    "an id beyond all": token("zz", 2**32 - 1),
    "an id of 40 bits": token("zz", 2**40),
    "a negative id": token("zz", -1),
    "an id that is a fraction": token("zz", 1.5),
    "an id far away": token("zz", 10_000_000),
    "an empty token": token("", 150),
    "a token of a million letters": token("a" * 1_000_000, 150),
    "no vocabulary": model(vocab={}),
    "a vocabulary of one letter": lambda parts: parts["model"].update(
        vocab={"a": 0} if isinstance(parts["model"]["vocab"], dict) else [["a", 0.0]]
    ),
    "another model's type": model(type="Perceptron"),
    "an added token of two million letters": added(content="x" * 2_000_000, id=160),
    "an empty added token": added(content=""),
    "a negative added id": added(id=-5),
    "an added id beyond all": added(id=2**32 - 1),
    "an added token with blanks to both sides": added(content=" ", lstrip=True, rstrip=True, special=False),
    "an added token that is a word": added(content="to", special=False, normalized=True, single_word=True),
    "5,000 added tokens with one id": put(
        added_tokens=[
            {"id": 7, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for i in range(5000)
        ]
    ),
    "normalizers nested 100 deep": put(normalizer=nested("Sequence", "normalizers", 100)),
    "normalizers nested 200 deep": put(normalizer=nested("Sequence", "normalizers", 200)),
    "a template that names a missing token": put(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "padding to a length beyond all": put(
        padding={"strategy": {"Fixed": 2**60}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
        | {"pad_type_id": 0, "pad_token": "x"}
    ),
    "a text that doubles sixty times": put(
        normalizer={"type": "Sequence", "normalizers": [replace({"String": "e"}, "ee")] * 60}
    ),
}

SOME: dict[str, tuple[str, Change]] = {
    "BPE: a merge of no token": ("BPE", model(merges=[["x", "yy"]])),
    "BPE: a merge of three": ("BPE", model(merges=["a b c"])),
    "BPE: a merge of nothing": ("BPE", model(merges=[["", ""]])),
    "BPE: an unknown token that is not there": ("BPE", model(unk_token="[NONE]")),
    "BPE: dropout of 2": ("BPE", model(dropout=2.0)),
    "BPE: dropout": ("BPE", model(dropout=0.5)),
    "BPE: dropout of NaN": ("BPE", model(dropout="NaN")),
    "BPE: a prefix of words": ("BPE", model(continuing_subword_prefix="é")),
    "BPE: a prefix longer than any merge": ("BPE", model(continuing_subword_prefix="long prefix")),
    "BPE: a suffix of words": ("BPE", model(end_of_word_suffix="</w>")),
    "BPE: bytes instead of unknown tokens, without bytes": ("BPE", model(byte_fallback=True)),
    "BPE: merges ignored": ("BPE", model(ignore_merges=True)),
    "WordPiece: an unknown token that is not there": ("WordPiece", model(unk_token="[NONE]")),
    "WordPiece: words of no letter": ("WordPiece", model(max_input_chars_per_word=0)),
    "WordPiece: words without end": ("WordPiece", model(max_input_chars_per_word=2**63)),
    "WordPiece: an empty prefix": ("WordPiece", model(continuing_subword_prefix="")),
    "WordPiece: a huge prefix": ("WordPiece", model(continuing_subword_prefix="#" * 1_000_000)),
    "WordPiece: a decoder with a huge prefix": (
        "WordPiece",
        put(decoder={"type": "WordPiece", "prefix": "é" * 100_000, "cleanup": True}),
    ),
    "Unigram: no unknown token": ("Unigram", model(unk_id=None)),
    "Unigram: an unknown token out of range": ("Unigram", model(unk_id=10**6)),
    "Unigram: a negative unknown token": ("Unigram", model(unk_id=-1)),
    "Unigram: scores beyond all": ("Unigram", token("b", 1e308)),
    "Unigram: the same token twice": ("Unigram", token("a", -1.0)),
    "Unigram: a row of one": ("Unigram", lambda parts: parts["model"]["vocab"].append(["a"])),
    "Unigram: bytes instead of unknown tokens, without bytes": ("Unigram", model(byte_fallback=True)),
    "Unigram: an object as vocabulary": ("Unigram", model(vocab={"a": 1})),
    "WordLevel: an unknown token that is not there": ("WordLevel", model(unk_token="[NONE]")),
    "WordLevel: no unknown token": ("WordLevel", model(unk_token=None)),
    "WordLevel: an empty unknown token": ("WordLevel", model(unk_token="")),
}

PARTS: dict[str, Change] = {
    "nested quantifiers": split(r"(a+)+$"),
    "nested quantifiers of anything": split(r"(.*)*\d"),
    "alternatives of the same": split(r"(a|a|aa)*b"),
    "five stars": split(r".*.*.*.*.*z"),
    "a reference to a group": split(r"(a*)*\1b"),
    "a lookbehind": split(r"(?<=a{1,20})b"),
    "a pattern that matches nothing": split(r""),
    "a pattern with a huge count": split(r"a{1,100000}"),
    "a pattern with nested counts": split(r"((a{1,1000}){1,1000}){1,1000}"),
    "parentheses 5,000 deep": split("(" * 5000 + ")" * 5000),
    "an open parenthesis": split("(" * 5000),
    "a recursive pattern": split(r"(?<n>a\g<n>?b)"),
    "a pattern that calls itself for ever": split(r"(?<n>\g<n>a|)"),
    "a huge pattern": split("|".join(f"word{i}" for i in range(100_000))),
    "an unknown property": split(r"\p{Nonsense}"),
    "split removed and inverted": put(
        pre_tokenizer={"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True}
    ),
    "pre-tokenizers nested 100 deep": put(pre_tokenizer=nested("Sequence", "pretokenizers", 100)),
    "an empty sequence of pre-tokenizers": put(pre_tokenizer={"type": "Sequence", "pretokenizers": []}),
    "an unknown pre-tokenizer": put(pre_tokenizer={"type": "Os", "command": "true"}),
    "Metaspace with a replacement of two letters": put(
        pre_tokenizer={"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True}
    ),
    "Metaspace with no replacement": put(
        pre_tokenizer={"type": "Metaspace", "replacement": "", "prepend_scheme": "always", "split": True}
    ),
    "FixedLength of 0": put(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "FixedLength beyond all": put(pre_tokenizer={"type": "FixedLength", "length": 2**63}),
    "a punctuation with an unknown behaviour": put(pre_tokenizer={"type": "Punctuation", "behavior": "Explode"}),
    "Precompiled of random bytes": put(normalizer={"type": "Precompiled", "precompiled_charsmap": CHARSMAP}),
    "Precompiled of nothing": put(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
    "Precompiled of one byte": put(normalizer={"type": "Precompiled", "precompiled_charsmap": "AA=="}),
    "Precompiled that is not base64": put(normalizer={"type": "Precompiled", "precompiled_charsmap": "%%%"}),
    "a replacement of a million letters": put(normalizer=replace({"String": "e"}, "x" * 1_000_000)),
    "a replacement between all letters": put(normalizer=replace({"Regex": ""}, "xyz")),
    "a replacement with a slow pattern": put(normalizer=replace({"Regex": r"(e|e)*$|(.*)*\d"}, "x")),
    "a replacement of everything by nothing": put(normalizer=replace({"Regex": "."}, "")),
    "a huge text before every text": put(normalizer={"type": "Prepend", "prepend": "x" * 1_000_000}),
    "an unknown normalizer": put(normalizer={"type": "Eval", "code": "1"}),
    "a normalizer that is a list": put(normalizer=[]),
    "a decoder that strips beyond all": put(decoder={"type": "Strip", "content": " ", "start": 2**63, "stop": 2**63}),
    "a decoder that strips 1,000": put(decoder={"type": "Strip", "content": " ", "start": 1000, "stop": 1000}),
    "a decoder that strips from the end": put(decoder={"type": "Strip", "content": "e", "start": 0, "stop": 5}),
    "a decoder of CTC": put(decoder={"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}),
    "a decoder of BPE with an empty suffix": put(decoder={"type": "BPEDecoder", "suffix": ""}),
    "a decoder that doubles sixty times": put(
        decoder={"type": "Sequence", "decoders": [replace({"String": "e"}, "ee")] * 60}
    ),
    "a decoder with a slow pattern": put(decoder=replace({"Regex": r"(e|e)*$|(.*)*\d"}, "x")),
    "decoders nested 100 deep": put(decoder=nested("Sequence", "decoders", 100)),
    "a decoder that is a word": put(decoder="ByteLevel"),
    "bytes for letters": put(decoder={"type": "ByteFallback"}),
    "byte level without bytes": put(
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    ),
}


def hostile(every: bool) -> Iterator[tuple[str, Parts]]:
    """Names and files; all changes on each of the four kinds, or each change on one of them."""
    kinds = list(KINDS)
    for number, (name, change) in enumerate(EVERY.items()):
        for kind in kinds if every else [kinds[number % len(kinds)]]:
            yield f"{kind}: {name}", changed(KINDS[kind](), change)
    for name, (kind, change) in SOME.items():
        yield name, changed(KINDS[kind](), change)
    for number, (name, change) in enumerate(PARTS.items()):
        kind = kinds[number % len(kinds)]
        yield f"{kind}: {name}", changed(KINDS[kind](), change)


def changed(parts: Parts, change: Change) -> Parts:
    change(parts)
    return parts


def outcome(file: Path) -> str:
    """What hopflow's loader makes of a file: "works", or its message."""
    try:
        tokenizer = from_files(file, file.name)
        for text in (TEXT, "", " ", TEXT * 30):
            ids = tokenizer.encode(text)
        tokenizer.decode(ids[:1000])
        tokenizer.decode(range(min(tokenizer.size, 50)))
    except ValueError as error:
        return str(error)
    return "works"


def main(folder: Path, every: bool) -> None:
    """Print a line of JSON for each file: its name before it is tried, and what came of it."""
    for name, parts in hostile(every):
        say(tried=name)
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(parts))
        start = time.monotonic()
        say(outcome=outcome(file), seconds=time.monotonic() - start)


def say(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "every")
