"""Recipes: one function per row of the paper's tables, and each in a laptop's size."""

from .build import Built, build
from .paper import named, names
from .plan import Plan, plan, seconds_per_step
from .recipe import Recipe, from_toml
from .resolve import resolve

__all__ = ["Built", "Plan", "Recipe", "build", "from_toml", "named", "names", "plan", "resolve", "seconds_per_step"]
