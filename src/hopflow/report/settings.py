"""Section: settings of the runs, those that differ first."""

import json
from collections.abc import Sequence
from typing import Any

from .section import Block, Folded, Prose, Section, Table
from .story import Story

NAMES = ("name", "out")
"""Settings that only name a run."""


def section(stories: Sequence[Story]) -> Section | None:
    """A table of the settings that differ, and all settings folded; None where no run has a recipe."""
    if not any(story.recipe for story in stories):
        return None
    keys = _table(stories)
    differing = {key: words for key, words in keys.items() if len(set(words)) > 1 and key not in NAMES}
    blocks: list[Block] = []
    names = tuple(story.name for story in stories)
    if len(stories) > 1 and differing:
        rows = tuple((key, *words) for key, words in differing.items())
        blocks.append(Table(("setting", *names), rows, "Settings that differ; - where a run does not have it."))
    elif len(stories) > 1:
        blocks.append(Prose("The runs have the same settings."))
    every = Table(("setting", *names), tuple((key, *words) for key, words in keys.items()))
    blocks.append(every if len(stories) == 1 and len(keys) < 16 else Folded(f"All {len(keys)} settings", (every,)))
    return Section("settings", "Configuration", tuple(blocks))


def _table(stories: Sequence[Story]) -> dict[str, list[str]]:
    """The value of every setting in every run."""
    return {key: [_word(story, key) for story in stories] for story in stories for key in _known(story)}


def _known(story: Story) -> dict[str, Any]:
    """The recipe, and the details of flow, network and text."""
    parts = {key: value for key, value in story.identity.items() if key.startswith(("flow.", "model.", "data."))}
    return {**story.recipe, **parts}


def _word(story: Story, key: str) -> str:
    known = _known(story)
    if key not in known:
        return "-"
    value = known[key]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
