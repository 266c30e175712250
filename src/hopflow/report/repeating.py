"""Section: commands that reproduce the runs, and versions, seeds and hashes."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..evaluation.frontier import SAMPLES
from ..recipes import Recipe, resolve
from ..recipes.paper import names
from .judges import judge_name
from .section import Block, Commands, Prose, Section, Table
from .story import Story

LEFT_OUT = ("name", "base", "out", "device", "precision")
"""Settings that do not change the result."""


def section(stories: Sequence[Story]) -> Section:
    """Commands for training, evaluation and this report; versions, seeds and hashes of every run."""
    lines = [line for story in stories for line in (train_command(story), eval_command(story)) if line]
    lines.append(" ".join(["hopflow report", *(shlex.quote(str(story.folder)) for story in stories)]))
    blocks: list[Block] = [Commands(tuple(lines))]
    if untold := [story.name for story in stories if train_command(story) is None]:
        listed = ", ".join(untold)
        blocks.append(Prose(f"Trained from Python: {listed}. Call hopflow.train with these settings and networks."))
    rows = tuple((story.name, *_origin(story)) for story in stories)
    head = ("run", "recipe hash", "seed", "steps", "precision", "hopflow", "torch", "text, sha256")
    blocks.append(Table(head, rows))
    return Section("repeat", "How to repeat it", tuple(blocks))


def train_command(story: Story) -> str | None:
    """`hopflow train …` with the settings that are not defaults; None for a custom network."""
    known = {f.name for f in fields(Recipe)}
    if not {"data", "name", "tokens"} <= story.recipe.keys() or not story.recipe.keys() <= known:
        return None
    is_named = story.recipe["name"] in names()
    word = str(story.recipe["name"] if is_named else story.recipe["data"])
    # of a text, the defaults depend on the device and on what its folder holds: they are named
    told = {} if is_named else {"base": story.recipe.get("base") or "text"}
    try:
        base = resolve(word, told, fresh=True)
    except (ValueError, OSError):
        return None
    changed = {key: value for key, value in story.recipe.items() if key not in LEFT_OUT and value != getattr(base, key)}
    keys = [shlex.quote(f"{key}={_word(value)}") for key, value in {**told, **changed}.items()]
    return " ".join(["hopflow train", shlex.quote(word), *keys, shlex.quote(f"out={story.folder}")])


def eval_command(story: Story) -> str | None:
    """`hopflow eval …` with the settings of its rows; None where nothing was evaluated."""
    if not story.rows:
        return None
    drawn = [row for row in story.rows if row.set == SAMPLES]
    texts = [
        f"data={name}" for name in dict.fromkeys(r.set for r in story.rows if r.unit == "ppl") if name != "held-out"
    ]
    found: dict[str, list[Any]] = {
        "steps": sorted({row.more["steps"] for row in drawn if row.more.get("steps")}),
        "eta": sorted({row.eta for row in drawn if row.eta is not None}),
        "temperature": sorted({row.more["temperature"] for row in drawn if row.more.get("temperature", 1.0) != 1.0}),
        "n": sorted({row.n for row in drawn if row.quantity == "jumps"})[-1:],
        "judge": sorted({judge_name(row) for row in drawn if "judge" in row.more})[-1:],
        "seed": sorted({row.more["seed"] for row in story.rows if isinstance(row.more.get("seed"), int)})[-1:],
    }
    keys = [f"{key}={','.join(_word(value) for value in values)}" for key, values in found.items() if values]
    return " ".join(["hopflow eval", *(shlex.quote(word) for word in (str(story.folder), *texts, *keys))])


def _word(value: Any) -> str:
    """As the command line takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _origin(story: Story) -> tuple[str, ...]:
    text = story.identity.get("data.source_sha256")
    facts = (
        story.recipe_hash,
        story.recipe.get("seed"),
        story.steps,
        story.last.get("precision", story.recipe.get("precision")),
        story.versions.get("hopflow"),
        story.versions.get("torch"),
        text[:16] if isinstance(text, str) else None,
    )
    return tuple("-" if fact is None else str(fact) for fact in facts)
