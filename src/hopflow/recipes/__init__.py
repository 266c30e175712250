"""Recipes: one function per row of the paper's tables, each also in a laptop size, and the defaults for a text file."""

from ..system.deprecated import old_names
from .build import Built, build
from .paper import named, names
from .recipe import Recipe
from .requirements import Requirements, requirements, seconds_per_step
from .resolve import from_toml, resolve

__all__ = [
    "Built",
    "Recipe",
    "Requirements",
    "build",
    "from_toml",
    "named",
    "names",
    "requirements",
    "resolve",
    "seconds_per_step",
]

__getattr__ = old_names(__name__, {"Plan": "Requirements", "plan": "requirements"})
