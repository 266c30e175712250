"""Small trained runs for the tests of reports: a few steps on a short text, which is enough to have a network."""

from pathlib import Path

import commands

from hopflow.recipes.build import build
from hopflow.recipes.resolve import resolve

KEYS = {key: value for key, _, value in (word.partition("=") for word in commands.SMALL)} | {"workers": "0"}


def run(home: Path, name: str, **keys: str) -> Path:
    """The folder of a run; several in one home share their text. HOPFLOW_CACHE is the caller's to set."""
    text = home / "fox.txt"
    if not text.exists():
        text.write_text(commands.FOX)
    recipe = resolve(str(text), {**KEYS, "steps": "2", **keys})
    build(recipe).train(out=home / name)
    return home / name
