"""Facts: what the paper printed for each recipe."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def facts() -> tuple[dict[str, Any], ...]:
    """Every value of the paper's tables that a recipe stands for: its table, quantity, value and unit."""
    text = files(__package__).joinpath("paper.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["rows"])
