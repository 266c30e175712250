"""Resolve: the recipe that a word on the command line means."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data.corpora import is_corpus
from ..training.folder import is_run, read_recipe
from ..training.settings import nearest
from .paper import named, names
from .recipe import Recipe, from_toml
from .text import TEXT


def resolve(word: str, keys: Mapping[str, Any] | None = None, *, fresh: bool = False) -> Recipe:
    """A recipe's name, a .toml with one, a run folder, or a text to train on, by file or name; then changed by keys.

    `fresh`: for a new folder, so that a run that is already in the usual one decides nothing.
    """
    keys = keys or {}
    if _is_text(word):
        return Recipe.read(keys, own_text(word, keys, fresh=fresh))
    if "base" in keys:
        raise ValueError(f"base chooses the defaults for a text file, and {word} is not one; leave base out")
    return Recipe.read(keys, _base(word))


def own_text(data: str, keys: Mapping[str, Any], *, fresh: bool = False) -> Recipe:
    """The defaults for a text: those that its run has started with, or else those for the device."""
    name = "stdin" if data == "-" else Path(data).name.partition(".")[0] or "own"
    folder = Path(keys.get("out") or Path("runs") / keys.get("name", name))
    stored = read_recipe(folder)["recipe"].get("base") if is_run(folder) and not fresh else None
    base = keys.get("base") or stored or _for_device(keys.get("device", "auto"))
    known = [recipe.__name__ for recipe in TEXT]
    if base not in known:
        raise ValueError(f"base={base} is not known; {nearest(str(base), known)}")
    return replace(named(base), name=name, data=data)


def _for_device(device: str) -> str:
    on_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    return "text_gpu" if on_gpu else "text"


def _is_text(word: str) -> bool:
    path = Path(word)
    if path.suffix == ".toml" or (path.is_dir() and is_run(path)):
        return False
    # a name with a suffix is meant as a file even where it does not exist: the reader says so
    if word == "-" or path.suffix or path.exists():
        return True
    return word not in names() and is_corpus(word)


def _base(word: str) -> Recipe:
    path = Path(word)
    if path.suffix == ".toml":
        return from_toml(path)
    if path.is_dir() and is_run(path):
        return replace(Recipe.read(read_recipe(path)["recipe"]), out=word)  # it goes on where it is, also if moved
    return named(word)
