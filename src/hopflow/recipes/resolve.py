"""The recipe that an argument of the command line names."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data import load
from ..data.named_corpora import is_corpus
from ..data.row_files import is_row_file
from ..runs.custom_network import is_class, load_class
from ..runs.run_folder import is_run, read_recipe
from ..system import regular_file
from ..training.settings import nearest
from .paper import named, names
from .recipe import Recipe
from .text_file import TEXT

LARGEST_TOML = 1 << 20
"""Bytes of a recipe.toml, which usually has a few hundred."""


def resolve(word: str, keys: Mapping[str, Any] | None = None, *, fresh: bool = False) -> Recipe:
    """The recipe for a recipe's name, a .toml file, a run folder, or a text (a file or a corpus), changed by `keys`.

    With `fresh`, for a new folder, a run that exists in the default folder does not determine the defaults.
    """
    keys = keys or {}
    if is_class(str(keys.get("model", ""))):
        load_class(str(keys["model"]))  # only here, where the user has typed it: a file must not cause an import
    if _is_text(word):
        return _with_stored_head(Recipe.read(keys, own_text(word, keys, fresh=fresh)), keys, fresh)
    if "base" in keys:
        raise ValueError(f"base is only for text files, and {word} is not one: leave base out")
    return _with_stored_head(Recipe.read(keys, _base(word)), keys, fresh)


def _with_stored_head(recipe: Recipe, keys: Mapping[str, Any], fresh: bool) -> Recipe:
    """The recipe with the x0 head that the run in its folder has, unless the user sets it: the run is then resumed.

    Runs that are older than the setting have none.
    """
    folder = Path(recipe.out or Path("runs") / recipe.name)
    if fresh or "predict_x0" in keys or not is_run(folder):
        return recipe
    return replace(recipe, predict_x0=read_recipe(folder)["recipe"].get("predict_x0", False))


def own_text(data: str, keys: Mapping[str, Any], *, fresh: bool = False) -> Recipe:
    """The defaults for a text: those with which its run was started, or those for the device."""
    name = "stdin" if data == "-" else Path(data).name.partition(".")[0] or "own"
    folder = Path(keys.get("out") or Path("runs") / keys.get("name", name))
    stored = read_recipe(folder)["recipe"].get("base") if is_run(folder) and not fresh else None
    base = keys.get("base") or stored or _for_device(keys.get("device", "auto"))
    known = [recipe.__name__ for recipe in TEXT]
    if base not in known:
        raise ValueError(f"base={base} is unknown; {nearest(str(base), known)}")
    recipe = replace(named(base), name=name, data=data)
    return _with_row_length(recipe, keys) if is_row_file(data) and "length" not in keys else recipe


def _with_row_length(recipe: Recipe, keys: Mapping[str, Any]) -> Recipe:
    """The recipe with the length of the longest row of a file of rows, which is prepared for this."""
    asked = Recipe.read({key: keys[key] for key in ("tokens", "holdout") if key in keys}, recipe)
    return replace(recipe, length=load(asked.data, asked.tokens, holdout=asked.holdout).length)


def _for_device(device: str) -> str:
    on_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    return "text_gpu" if on_gpu else "text"


def _is_text(word: str) -> bool:
    path = Path(word)
    if path.suffix == ".toml" or (path.is_dir() and is_run(path)):
        return False
    # a name with a suffix is a file, even if it does not exist: reading it raises the error
    if word == "-" or path.suffix or path.exists():
        return True
    return word not in names() and is_corpus(word)


def _base(word: str) -> Recipe:
    path = Path(word)
    if path.suffix == ".toml":
        return from_toml(path)
    if path.is_dir() and is_run(path):
        return replace(Recipe.read(read_recipe(path)["recipe"]), out=word)  # resumed where it is, also if it was moved
    return named(word)


def from_toml(file: Path) -> Recipe:
    """The recipe of a TOML file: keys and values, and `base`, the recipe whose other values it takes."""
    try:
        keys = tomllib.loads(regular_file.read(file, LARGEST_TOML).decode())
    except (ValueError, RecursionError) as error:  # also of a special file, of other encodings and of wrong syntax
        raise ValueError(f"{file} is not a TOML file: {error}") from None
    base = keys.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"{file}: base must be the name of a recipe, got {base!r}")
    return Recipe.read({"name": file.stem, **keys}, None if base is None else named(base))
