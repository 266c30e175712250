"""Settings: the configuration of the runs, what differs between them first."""

import json
from collections.abc import Sequence
from typing import Any

from .section import Block, Folded, Prose, Section, Table
from .story import Story


def section(stories: Sequence[Story]) -> Section | None:
    """A table of what differs, and all keys folded; None where no run has a recipe."""
    if not any(story.recipe for story in stories):
        return None
    keys = {key: [_word(story, key) for story in stories] for story in stories for key in _known(story)}
    differing = {key: words for key, words in keys.items() if len(set(words)) > 1 and key not in ("name", "out")}
    blocks: list[Block] = []
    names = tuple(story.name for story in stories)
    if len(stories) > 1 and differing:
        rows = tuple((key, *words) for key, words in differing.items())
        blocks.append(Table(("key", *names), rows, "Keys that differ between the runs; - where a run has no such key."))
    elif len(stories) > 1:
        blocks.append(Prose("The runs were trained by the same keys."))
    every = Table(("key", *names), tuple((key, *words) for key, words in keys.items()))
    blocks.append(every if len(stories) == 1 and len(keys) < 16 else Folded(f"All {len(keys)} keys", (every,)))
    return Section("settings", "Configuration", tuple(blocks))


def _known(story: Story) -> dict[str, Any]:
    """The recipe, and of what was learned those parts that only the flow and the text know."""
    parts = {key: value for key, value in story.identity.items() if key.startswith(("flow.", "model.", "data."))}
    return {**story.recipe, **parts}


def _word(story: Story, key: str) -> str:
    known = _known(story)
    if key not in known:
        return "-"
    value = known[key]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
