"""Test sets: texts that a run has not seen, as rows of its own tokens."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import atomic, data
from ..data.corpora import cache_folder, data_folder, neighbours, resolve
from ..data.corpus import Corpus
from ..data.pulse import Progress, Pulse
from ..data.reading import Tally, read
from ..data.tokenizers import END, Tokenizer
from .detokenise import DETOKENISERS
from .subject import Subject

KNOWN = {
    "lambada": "as is",
    "wikitext-2": "wikitext",
    "wikitext-2-raw": "wikitext",
    "wikitext-103": "wikitext",
    "ptb": "words",
    "lm1b": "words",
    "text8": "as is",
}
"""Sets that the field measures by, and how each becomes running text."""
NOT_WITH = " pass data=FILE to evaluate on a text of yours"


@dataclass(frozen=True, eq=False)
class TextSet:
    """Rows of tokens with the length of each in characters, and what is recorded of where they come from."""

    name: str
    x1: Int[Tensor, "n L"]
    characters: Float[Tensor, " n"] | None = None
    """Of the decoded rows, end-of-text marks left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    counts: Int[Tensor, " V"] | None = None
    """How often each token occurs in the run's training text, where that is at hand."""

    def shuffled(self, seed: int) -> "TextSet":
        """In another order: neighbours in a text are alike, and an evaluation may not come to its end."""
        order = torch.randperm(len(self.x1), generator=torch.Generator().manual_seed(seed))
        characters = None if self.characters is None else self.characters[order]
        return replace(self, x1=self.x1[order.to(self.x1.device)], characters=characters)


def held_out(subject: Subject, *, offline: bool = False, progress: Progress | None = None) -> TextSet:
    """What the run's own recipe held out of its text; the same documents, packed, also where it was trained padded."""
    recipe = subject.recipe
    text, length, holdout = recipe.get("data"), subject.length, recipe.get("holdout")
    if not isinstance(text, str) or not length or holdout is None:
        raise ValueError(f"{subject.name} does not say which text it was trained on:{NOT_WITH}")
    if text == "-":
        raise ValueError(f"{subject.name} has read its text from a pipe, which is gone:{NOT_WITH}")
    if not holdout:
        raise ValueError(f"{subject.name} has no test split: it was trained with holdout=0;{NOT_WITH}")
    packed = bool(recipe.get("pack", True))
    tokens = recipe["tokens"] if packed else _tokenizer(subject)  # by its name it is found in the cache
    try:
        corpus = data.load(text, tokens, length, holdout=holdout, offline=offline, progress=progress)
    except FileNotFoundError:
        way = f"go to where it was trained, or{NOT_WITH}"
        raise FileNotFoundError(errno.ENOENT, f"the text of {subject.name} is not here: {way}", text) from None
    if packed and corpus.identity["test_sha256"] != subject.identity.get("data.test_sha256"):
        raise ValueError(
            f"{text} has changed since {subject.name} was trained on it: what is held out now may have been learned;\n"
            f"restore it, or{NOT_WITH}"
        )
    found = _set("held-out", corpus, {"detokenised": "as is", "split": "held out", "text": text})
    return replace(found, counts=corpus.counts)


def named(
    word: str,
    subject: Subject,
    *,
    length: int | None = None,
    detokenise: str = "auto",
    offline: bool = False,
    progress: Progress | None = None,
) -> TextSet:
    """All of a text: a file, a set of $HOPFLOW_DATA by its name (its test files, or else valid), or NAME:SPLIT."""
    tokenizer, length = _tokenizer(subject), length or subject.length
    if not length:
        raise ValueError(f"{subject.name} does not say how long its training texts were: pass length=TOKENS")
    where, split = _find(word)
    how = KNOWN.get(word.partition(":")[0], "as is") if detokenise == "auto" else detokenise
    if how not in DETOKENISERS:
        raise ValueError(f"detokenise={how} is not known; one of auto, {', '.join(DETOKENISERS)} is expected")
    pulse = Pulse(progress)
    source: str | Path = where
    if how != "as is":
        source = _rewritten(where, how, f"\n{END}\n", pulse, offline)
    joined = False
    whole = data.load(source, tokenizer, 1, holdout=1.0, offline=offline, progress=progress)
    if whole.tokenizer.size > tokenizer.size:  # it would need an end of text that the run does not know
        source, joined = _rewritten(where, how, "\n", pulse, offline), True
        whole = data.load(source, tokenizer, 1, holdout=1.0, offline=offline, progress=progress)
    if int(whole.identity["test_tokens"]) < length:
        raise ValueError(
            f"{word} is too short: it has {whole.identity['test_tokens']} tokens, and a sequence of this run {length}"
        )
    corpus = data.load(source, tokenizer, length, holdout=1.0, offline=offline, progress=progress)
    facts: dict[str, Any] = {
        "detokenised": how,
        "split": split,
        "documents": "joined by line breaks" if joined else "as they are",
    }
    facts["trained_on"] = corpus.identity["source_sha256"] == subject.identity.get("data.source_sha256")
    return _set(word, corpus, facts)


def _set(name: str, corpus: Corpus, facts: dict[str, Any]) -> TextSet:
    end = corpus.tokenizer.end
    spoken = (corpus.tokenizer.decode([i for i in row if i != end]) for row in corpus.test.tolist())
    characters = torch.tensor([float(len(text)) for text in spoken], dtype=torch.float64)
    own = {key: corpus.identity[key] for key in ("source_sha256", "tokenizer", "test_tokens")}
    return TextSet(name, corpus.test, characters, {**facts, **own, "data_sha256": corpus.identity["test_sha256"]})


def _tokenizer(subject: Subject) -> Tokenizer:
    if subject.tokenizer is None:
        raise ValueError(
            f"{subject.name} was saved without its tokenizer, and no text can be read for it: make rows of tokens and "
            f"call hf.evaluate(model, flow, x1)"
        )
    return subject.tokenizer


def _find(word: str) -> tuple[str, str]:
    """What `data.load` is to be asked for, and which split that is."""
    name, _, asked = word.partition(":")
    there = neighbours()
    if name in there and not Path(word).exists():
        split = asked or next((split for split in ("test", "valid") if split in there[name].splits), "")
        return (f"{name}:{split}" if split else name), split or "all"
    if name in KNOWN and not Path(word).exists():
        folder = data_folder()
        where = f"a folder {name} of {folder}" if folder else f"a folder {name}, and its parent into HOPFLOW_DATA"
        raise ValueError(f"{name} is not here, and hopflow does not fetch it: put its files into {where}")
    return word, "all"


def _rewritten(word: str, how: str, between: str, pulse: Pulse, offline: bool) -> Path:
    """The text as running text, kept in the cache under the hash of what it was made from."""
    cache = cache_folder()
    with resolve(word, cache, pulse, offline) as source:
        digest = source.sha256(cache, pulse)
        kind = f"{how.replace(' ', '-')}{'-joined' if between == chr(10) else ''}"
        path = cache / "sets" / f"{digest[:24]}-{kind}.txt"
        pulse.say(f"{source.name}: running text, {how}")
        documents = [DETOKENISERS[how](text) for text in _documents(source.files)]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, between.join(documents).encode())
    return path


def _documents(files: tuple[Path, ...]) -> Iterator[str]:
    parts: list[str] = []
    for piece in read(files, Tally()):
        parts.append(piece.text)
        if piece.last:
            yield "".join(parts)
            parts = []
