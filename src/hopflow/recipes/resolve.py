"""Resolve: the recipe that a word on the command line means."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.corpora import is_corpus
from ..training.folder import is_run, read_recipe
from .paper import named, names
from .recipe import Recipe, from_toml


def resolve(word: str, keys: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe's name, a .toml with one, a run folder, or a text to train on, by file or name; then changed by keys."""
    return Recipe.read(keys or {}, _base(word))


def own_text(data: str) -> Recipe:
    """For a text of one's own: every letter starts as one of many masks, coupled exactly."""
    name = "stdin" if data == "-" else Path(data).name.partition(".")[0] or "own"
    return Recipe(
        name=name,
        data=data,
        source="multimask",
        coupling="exact",
        cost="squared_embedding",
        dropout=0.0,
        steps=2000,
        lr=1e-3,
        ot_batch=256,
        ot_ema=0.99999,
        weight_ema=0.999,
    )


def _base(word: str) -> Recipe:
    path = Path(word)
    if path.suffix == ".toml":
        return from_toml(path)
    if path.is_dir() and is_run(path):
        return replace(Recipe.read(read_recipe(path)["recipe"]), out=word)  # it goes on where it is, also if moved
    # a name with a suffix is meant as a file even where it does not exist: the reader says so
    if word == "-" or path.suffix or path.exists():
        return own_text(word)
    return own_text(word) if word not in names() and is_corpus(word) else named(word)
