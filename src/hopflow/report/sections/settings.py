"""Sections: the settings of the runs, and how to reproduce them: commands, versions, seeds and hashes."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ...evaluation.rows import SAMPLES
from ...recipes import Recipe, resolve
from ...recipes.paper import names as paper_recipes
from ..blocks import Block, Collapsible, Paragraph, Section, ShellCommands, TableBlock
from ..run_data import RunData, judge_name

NAME_KEYS = ("name", "out")
"""Settings that only name a run."""
NOT_REPRODUCED = ("name", "base", "out", "device", "precision")
"""Settings that are left out of the training command."""
MAX_OPEN = 16
"""A single run with fewer settings shows them; otherwise the reader opens them."""
MAX_WORD = 80
"""Characters of a value that are shown."""


def section(runs: Sequence[RunData]) -> Section | None:
    """The settings that differ, and a collapsible table of all settings; None if no run has a recipe."""
    if not any(run.recipe for run in runs):
        return None
    keys = _settings(runs)
    differing = {key: words for key, words in keys.items() if len(set(words)) > 1 and key not in NAME_KEYS}
    blocks: list[Block] = [Paragraph("The settings of the training, from recipe.json.")]
    names = tuple(run.name for run in runs)
    if len(runs) > 1 and differing:
        rows = tuple((key, *words) for key, words in differing.items())
        caption = "Settings that differ; - if a run does not have the setting."
        blocks.append(TableBlock(("setting", *names), rows, caption))
    elif len(runs) > 1:
        blocks.append(Paragraph("The runs have the same settings."))
    every = TableBlock(("setting", *names), tuple((key, *words) for key, words in keys.items()))
    is_open = len(runs) == 1 and len(keys) < MAX_OPEN
    blocks.append(every if is_open else Collapsible(f"All {len(keys)} settings", (every,)))
    return Section("settings", "Settings", tuple(blocks))


def _settings(runs: Sequence[RunData]) -> dict[str, list[str]]:
    """The value of every setting in every run, as text."""
    return {key: [_word(run, key) for run in runs] for run in runs for key in _recipe_and_identity(run)}


def _recipe_and_identity(run: RunData) -> dict[str, Any]:
    """The recipe, and the details of flow, network and text."""
    parts = {key: value for key, value in run.identity.items() if key.startswith(("flow.", "model.", "data."))}
    return {**run.recipe, **parts}


def _word(run: RunData, key: str) -> str:
    known = _recipe_and_identity(run)
    if key not in known:
        return "-"
    value = known[key]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_WORD else f"{text[: MAX_WORD - 3]}…"


# -- reproduce ---------------------------------------------------------------------------------------------------------


def reproduce(runs: Sequence[RunData]) -> Section:
    """Commands for training, evaluation and this report; versions, seeds and hashes of every run."""
    lines = [line for run in runs for line in (train_command(run), eval_command(run)) if line]
    lines.append(" ".join(["hopflow report", *(shlex.quote(str(run.folder)) for run in runs)]))
    blocks: list[Block] = [
        Paragraph("Commands that train, evaluate and report these runs again."),
        ShellCommands(tuple(lines)),
    ]
    if without := [run.name for run in runs if train_command(run) is None]:
        listed = ", ".join(without)
        blocks.append(
            Paragraph(f"Trained from Python: {listed}. Call hopflow.train with the same settings and networks.")
        )
    rows = tuple((run.name, *_origin(run)) for run in runs)
    head = ("run", "recipe hash", "seed", "training steps", "precision", "hopflow", "torch", "text, sha256")
    blocks.append(TableBlock(head, rows))
    return Section("repeat", "How to reproduce", tuple(blocks))


def train_command(run: RunData) -> str | None:
    """`hopflow train …` with the settings that are not defaults; None for a custom network."""
    known = {f.name for f in fields(Recipe)}
    if not {"data", "name", "tokens"} <= run.recipe.keys() or not run.recipe.keys() <= known:
        return None
    is_named = run.recipe["name"] in paper_recipes()
    target = str(run.recipe["name"] if is_named else run.recipe["data"])
    # the defaults for a text depend on the device and the folder, so that their name is part of the command
    base = {} if is_named else {"base": run.recipe.get("base") or "text"}
    try:
        defaults = resolve(target, base, fresh=True)
    except (ValueError, OSError):
        return None
    changed = {
        key: value for key, value in run.recipe.items() if key not in NOT_REPRODUCED and value != getattr(defaults, key)
    }
    keys = [shlex.quote(f"{key}={_argument(value)}") for key, value in {**base, **changed}.items()]
    return " ".join(["hopflow train", shlex.quote(target), *keys, shlex.quote(f"out={run.folder}")])


def eval_command(run: RunData) -> str | None:
    """`hopflow eval …` with the settings of its results; None if the run was not evaluated."""
    if not run.rows:
        return None
    drawn = [row for row in run.rows if row.set == SAMPLES]
    texts = [f"data={name}" for name in dict.fromkeys(r.set for r in run.rows if r.unit == "ppl") if name != "held-out"]
    found: dict[str, list[Any]] = {
        "steps": sorted({row.more["steps"] for row in drawn if row.more.get("steps")}),
        "eta": sorted({row.eta for row in drawn if row.eta is not None}),
        "temperature": sorted({row.more["temperature"] for row in drawn if row.more.get("temperature", 1.0) != 1.0}),
        "n": sorted({row.n for row in drawn if row.quantity == "jumps"})[-1:],
        "judge": sorted({judge_name(row) for row in drawn if "judge" in row.more})[-1:],
        "seed": sorted({row.more["seed"] for row in run.rows if isinstance(row.more.get("seed"), int)})[-1:],
    }
    keys = [f"{key}={','.join(_argument(value) for value in values)}" for key, values in found.items() if values]
    return " ".join(["hopflow eval", *(shlex.quote(word) for word in (str(run.folder), *texts, *keys))])


def _argument(value: Any) -> str:
    """A value in the syntax of the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _origin(run: RunData) -> tuple[str, ...]:
    text = run.identity.get("data.source_sha256")
    facts = (
        run.recipe_hash,
        run.recipe.get("seed"),
        run.steps,
        run.last.get("precision", run.recipe.get("precision")),
        run.versions.get("hopflow"),
        run.versions.get("torch"),
        text[:16] if isinstance(text, str) else None,
    )
    return tuple("-" if fact is None else str(fact) for fact in facts)
