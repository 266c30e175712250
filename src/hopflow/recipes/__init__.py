"""Recipes: one function per row of the paper's tables, and each in a laptop's size."""

from .build import Built, build
from .paper import named, names
from .recipe import Recipe, from_toml

__all__ = ["Built", "Recipe", "build", "from_toml", "named", "names"]
