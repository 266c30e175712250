"""Judges by name."""

from collections.abc import Sequence
from pathlib import PurePath

from ..evaluation.rows import Row
from .story import Story


def judge_name(row: Row) -> str:
    """The judge that scored a row, as `hopflow eval judge=…` was given it."""
    judge = row.more.get("judge")
    return str(judge.get("name", "unknown")) if isinstance(judge, dict) else "unknown"


def judge_names(stories: Sequence[Story]) -> dict[str, str]:
    """The name of every judge by its hash: the last part of its path, with the hash only where two names are equal."""
    rows = [row for story in stories for row in story.rows if "judge_hash" in row.more]
    names = {str(row.more["judge_hash"]): PurePath(judge_name(row)).name or judge_name(row) for row in rows}
    shared = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {key: f"{name} ({key[:6]})" if name in shared else name for key, name in names.items()}
