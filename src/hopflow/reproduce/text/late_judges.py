"""Judges that read the stored samples of cells afterwards, on another machine."""

from dataclasses import replace
from pathlib import Path

import torch

from .budgets import BUDGETS
from .cell import Cell, SamplePoint, file_name, kept_texts, read
from .judges import NamedJudge, load_named
from .protocol import Say


def waiting(cell: Cell) -> list[str]:
    """The judges of the protocol that have not scored every point of a cell, and whose texts are stored."""
    points = [point for point in cell.samples if len(point.texts) == point.n]
    return [judge for judge in cell.protocol["judges"] if any(judge not in point.judges for point in points)]


def score_stored_texts(
    folder: Path, *, budget: str = "full", device: str = "auto", offline: bool = False, say: Say = lambda text: None
) -> list[Path]:
    """Score the stored texts of every cell that waits for a judge, and return the files written.

    A cell keeps the first texts only, once all judges have scored them.
    """
    written, loaded = [], dict[str, NamedJudge]()
    for variant, seed in BUDGETS[budget].cells():
        path = folder / file_name(budget, variant.name, seed)
        if not path.exists():
            continue
        cell = read(path)
        for name in waiting(cell):
            if name not in loaded:
                loaded[name] = load_named(name, device, offline, say)
            say(f"{path.name}: {name} scores {sum(point.n for point in cell.samples):,} samples")
            points = [_scored(point, loaded[name], cell.protocol["judges"]) for point in cell.samples]
            cell = replace(cell, samples=points, judges={**cell.judges, name: loaded[name].facts})
            written.append(cell.write(folder))
    return written


def _scored(point: SamplePoint, judge: NamedJudge, judges: list[str]) -> SamplePoint:
    scores = {**point.judges, judge.name: judge.scores(torch.empty(0), point.texts)}
    return replace(point, judges=scores, texts=kept_texts(point.texts, scores, judges))
