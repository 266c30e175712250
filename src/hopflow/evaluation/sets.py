"""Test sets: held-out text and named corpora, tokenized for the evaluated model."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import data
from ..data.corpus import Corpus
from ..data.documents import ReadStatistics, read
from ..data.named_corpora import cache_folder, data_folder, local_corpora, resolve
from ..data.row_files import is_row_file
from ..data.tokenizers import END, Tokenizer
from ..network.label_names import label_number
from ..system import atomic
from ..system.progress import Progress, ProgressCallback
from .detokenise import DETOKENISERS
from .evaluated_model import EvaluatedModel

KNOWN = {
    "lambada": "as is",
    "wikitext-2": "wikitext",
    "wikitext-2-raw": "wikitext",
    "wikitext-103": "wikitext",
    "ptb": "words",
    "lm1b": "words",
    "text8": "as is",
}
"""Common test sets, and how each is detokenized."""
PASS_DATA = " pass data=FILE to evaluate on another text"


@dataclass(frozen=True, eq=False)
class TextSet:
    """Rows of tokens with the number of characters of each, and facts about the text for eval.json."""

    name: str
    x1: Int[Tensor, "n L"]
    characters: Float[Tensor, " n"] | None = None
    """Characters of the decoded rows, without end-of-text marks."""
    facts: dict[str, Any] = field(default_factory=dict)
    counts: Int[Tensor, " V"] | None = None
    """Counts of each token in the training text; None where it is not available."""
    padded: bool = False
    """Whether rows end with padding that training left out: bounds, which count every token, are not measured."""
    labels: Int[Tensor, " n"] | None = None
    """The label of each row, for a network with labels; None for a network without."""
    training: Callable[[], Iterator[Int[Tensor, "m L"]]] | None = None
    """Returns all training rows in parts; None where they are not known."""

    def shuffled(self, seed: int) -> "TextSet":
        """The rows in random order: an evaluation may stop early, and neighboring rows of a text are similar."""
        order = torch.randperm(len(self.x1), generator=torch.Generator().manual_seed(seed))
        characters = None if self.characters is None else self.characters[order]
        labels = None if self.labels is None else self.labels[order]
        return replace(self, x1=self.x1[order.to(self.x1.device)], characters=characters, labels=labels)

    def sample_labels(self, n: int) -> Int[Tensor, " n"] | None:
        """Labels for n samples: those of the rows, from the first on; None without labels."""
        return None if self.labels is None else self.labels[torch.arange(n) % len(self.labels)]

    def of_label(self, label: int, name: str, rows: int) -> tuple["TextSet", list[int]]:
        """The set of the rows of one label among the first `rows`, and their indices."""
        assert self.labels is not None
        found = (self.labels[:rows] == label).nonzero()[:, 0]
        characters = None if self.characters is None else self.characters[found]
        x1 = self.x1[found.to(self.x1.device)]
        own = replace(self, name=f"{self.name}, label {name}", x1=x1, characters=characters, labels=self.labels[found])
        return own, found.tolist()


def held_out(evaluated: EvaluatedModel, *, offline: bool = False, progress: ProgressCallback | None = None) -> TextSet:
    """The held-out part of the training text; packed into full rows, also for a run that was trained with padding."""
    recipe = evaluated.recipe
    text, length, holdout = recipe.get("data"), evaluated.length, recipe.get("holdout")
    if not isinstance(text, str) or not length or holdout is None:
        raise ValueError(f"{evaluated.name} has no record of its training text:{PASS_DATA}")
    if text == "-":
        raise ValueError(f"{evaluated.name} was trained on text from a pipe, which is not stored:{PASS_DATA}")
    if not holdout:
        raise ValueError(f"{evaluated.name} has no test split: it was trained with holdout=0;{PASS_DATA}")
    packed = bool(recipe.get("pack", True))
    tokens = recipe["tokens"] if packed else _tokenizer(evaluated)  # a name is found in the cache
    try:
        corpus = data.load(text, tokens, length, holdout=holdout, offline=offline, progress=progress)
    except FileNotFoundError:
        way = f"run this in the folder where it was trained, or{PASS_DATA}"
        raise FileNotFoundError(errno.ENOENT, f"the text of {evaluated.name} was not found: {way}", text) from None
    if packed and corpus.identity["test_sha256"] != evaluated.identity.get("data.test_sha256"):
        raise ValueError(
            f"{text} has changed since {evaluated.name} was trained on it: its held-out part may overlap the\n"
            f"training text; restore the file, or{PASS_DATA}"
        )
    if evaluated.labels and corpus.identity.get("labels_sha256") != evaluated.identity.get("data.labels_sha256"):
        raise ValueError(
            f"the labels in {text} have changed since {evaluated.name} was trained on them; restore the file, "
            f"or{PASS_DATA}"
        )
    found = _set("held-out", corpus, evaluated, {"detokenised": "as is", "split": "held out", "text": text})
    return replace(found, counts=corpus.counts, training=corpus.training_rows)


def named(
    word: str,
    evaluated: EvaluatedModel,
    *,
    length: int | None = None,
    detokenise: str = "auto",
    offline: bool = False,
    progress: ProgressCallback | None = None,
) -> TextSet:
    """A complete text: a file, a set in $HOPFLOW_DATA by name (its test files, otherwise valid), or NAME:SPLIT."""
    tokenizer, length = _tokenizer(evaluated), length or evaluated.length
    if not length:
        raise ValueError(f"{evaluated.name} has no record of its sequence length: pass length=TOKENS")
    if is_row_file(word):
        corpus = data.load(word, tokenizer, length, holdout=1.0, offline=offline, progress=progress)
        trained_on = corpus.identity["source_sha256"] == evaluated.identity.get("data.source_sha256")
        return _set(word, corpus, evaluated, {"detokenised": "as is", "split": "all", "trained_on": trained_on})
    where, split = _find(word)
    how = KNOWN.get(word.partition(":")[0], "as is") if detokenise == "auto" else detokenise
    how = "as is" if how == "none" else how
    if how not in DETOKENISERS:
        names = ", ".join(name for name in DETOKENISERS if name != "as is")
        raise ValueError(f"detokenise must be one of auto, none, {names}, got {how}")
    status = Progress(progress)
    source: str | Path = where
    if how != "as is":
        source = _rewritten(where, how, f"\n{END}\n", status, offline)
    joined = False
    complete = data.load(source, tokenizer, 1, holdout=1.0, offline=offline, progress=progress)
    if complete.tokenizer.size > tokenizer.size:  # it would need an end-of-text token that the run does not have
        source, joined = _rewritten(where, how, "\n", status, offline), True
        complete = data.load(source, tokenizer, 1, holdout=1.0, offline=offline, progress=progress)
    if int(complete.identity["test_tokens"]) < length:
        tokens = complete.identity["test_tokens"]
        raise ValueError(f"{word} is too short: it has {tokens} tokens, but sequences of this run have {length}")
    corpus = data.load(source, tokenizer, length, holdout=1.0, offline=offline, progress=progress)
    facts: dict[str, Any] = {
        "detokenised": how,
        "split": split,
        "documents": "joined by line breaks" if joined else "as they are",
    }
    facts["trained_on"] = corpus.identity["source_sha256"] == evaluated.identity.get("data.source_sha256")
    return _set(word, corpus, evaluated, facts)


def _set(name: str, corpus: Corpus, evaluated: EvaluatedModel, facts: dict[str, Any]) -> TextSet:
    end = corpus.tokenizer.end
    decoded = (corpus.tokenizer.decode([i for i in row if i != end]) for row in corpus.test.tolist())
    characters = torch.tensor([float(len(text)) for text in decoded], dtype=torch.float64)
    own = {key: corpus.identity[key] for key in ("source_sha256", "tokenizer", "test_tokens")}
    facts = {**facts, **own, "data_sha256": corpus.identity["test_sha256"]}
    padded = corpus.test_keep is not None
    return TextSet(name, corpus.test, characters, facts, padded=padded, labels=_labels(name, corpus, evaluated))


def _labels(name: str, corpus: Corpus, evaluated: EvaluatedModel) -> Int[Tensor, " n"] | None:
    """The labels of a corpus as numbers of the network's labels; None for a network without labels."""
    if not evaluated.labels:
        return None
    if corpus.test_labels is None:
        raise ValueError(f"{evaluated.name} has labels, and {name} has none:{PASS_DATA} with a label for each row")
    try:
        numbers = [label_number(word, evaluated.label_names, evaluated.labels) for word in corpus.label_names]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return torch.tensor(numbers)[corpus.test_labels]


def _tokenizer(evaluated: EvaluatedModel) -> Tokenizer:
    if evaluated.tokenizer is None:
        raise ValueError(
            f"{evaluated.name} was saved without its tokenizer, so text cannot be tokenized for it: call "
            f"hf.evaluate(model, flow, x1) with rows of tokens"
        )
    return evaluated.tokenizer


def _find(word: str) -> tuple[str, str]:
    """The argument for `data.load`, and the name of the split."""
    name, _, asked = word.partition(":")
    there = local_corpora()
    if name in there and not Path(word).exists():
        split = asked or next((split for split in ("test", "valid") if split in there[name].splits), "")
        return (f"{name}:{split}" if split else name), split or "all"
    if name in KNOWN and not Path(word).exists():
        folder = data_folder()
        own = f"a folder named {name}, and set HOPFLOW_DATA to the folder that contains it"
        where = f"{folder / name}" if folder else own
        raise ValueError(f"{name} was not found, and hopflow does not download it: put its files into {where}")
    return word, "all"


def _rewritten(word: str, how: str, between: str, status: Progress, offline: bool) -> Path:
    """The detokenized text, stored in the cache under the hash of its source."""
    cache = cache_folder()
    with resolve(word, cache, status, offline) as source:
        digest = source.sha256(cache, status)
        kind = f"{how.replace(' ', '-')}{'-joined' if between == chr(10) else ''}"
        path = cache / "sets" / f"{digest[:24]}-{kind}.txt"
        status.write(f"{source.name}: detokenizing, {how}")
        documents = [DETOKENISERS[how](text) for text in _documents(source.files)]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, between.join(documents).encode())
    return path


def _documents(files: tuple[Path, ...]) -> Iterator[str]:
    parts: list[str] = []
    for piece in read(files, ReadStatistics()):
        parts.append(piece.text)
        if piece.last:
            yield "".join(parts)
            parts = []
