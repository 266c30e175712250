"""The numbers that the paper prints for each recipe."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def paper_values() -> tuple[dict[str, Any], ...]:
    """Every value of the paper's tables that has a recipe: its table, quantity, value and unit."""
    text = files(__package__).joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["rows"])
