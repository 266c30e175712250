"""Judges that read the stored samples of cells afterwards, on another machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...system.progress import ProgressCallback
from .budgets import BUDGETS
from .cell import REPEATED, Cell, SamplePoint, file_name, kept_texts, read
from .judges import NamedJudge, load_named


def waiting(cell: Cell) -> list[str]:
    """The judges of the protocol that have not scored every point whose texts are stored."""
    return [judge for judge in cell.protocol["judges"] if any(_waits(point, judge) for point in cell.samples)]


def _waits(point: SamplePoint, judge: str) -> bool:
    return judge not in point.judges and len(point.texts) == point.n


def score_stored_texts(
    folder: Path,
    *,
    budget: str = "full",
    variants: Sequence[str] = (),
    seeds: Sequence[int] = (),
    repeat: bool = False,
    device: str = "auto",
    offline: bool = False,
    say: ProgressCallback = lambda text: None,
) -> list[Path]:
    """Score the stored texts of every cell that waits for a judge, and return the files written.

    The file is written after every point, since a judge may need hours for a cell on a CPU. A cell keeps the first
    texts only, once all judges have scored them.
    """
    written, loaded = [], dict[str, NamedJudge]()
    chosen = [(v, seed) for v, seed in BUDGETS[budget].cells() if seed in (seeds or (seed,))]
    for variant, seed in chosen:
        path = (folder / REPEATED if repeat else folder) / file_name(budget, variant.name, seed)
        if variant.name not in (variants or (variant.name,)) or not path.exists():
            continue
        cell = read(path)
        for name in waiting(cell):
            if name not in loaded:
                loaded[name] = load_named(name, device, offline, say)
            cell = replace(cell, judges={**cell.judges, name: loaded[name].facts})
            left = [place for place, point in enumerate(cell.samples) if _waits(point, name)]
            say(f"{path.name}: {name} scores {sum(cell.samples[place].n for place in left):,} samples")
            for place in left:
                points = list(cell.samples)
                points[place] = _scored(points[place], loaded[name], cell.protocol["judges"])
                cell = replace(cell, samples=points)
                cell.write(path.parent)
            written.append(path)
    return written


def _scored(point: SamplePoint, judge: NamedJudge, judges: list[str]) -> SamplePoint:
    scores = {**point.judges, judge.name: judge.scores(torch.empty(0), point.texts)}
    return replace(point, judges=scores, texts=kept_texts(point.texts, scores, judges))
