"""The queue of the text study: run the cells that have no file yet, in order, until the time is spent."""

import time
from pathlib import Path

from .cell import file_name
from .judges import NamedJudge, prepare_judges
from .measure import run_cell
from .protocol import BUDGETS, Budget, Say, StudyVariant


def missing(budget: Budget, folder: Path) -> list[tuple[StudyVariant, int]]:
    """The cells without a file, in the order in which they are run."""
    return [
        (variant, seed)
        for variant, seed in budget.cells()
        if not (folder / file_name(budget.name, variant.name, seed)).exists()
    ]


def run(
    folder: Path,
    *,
    budget: str = "full",
    minutes: float | None = None,
    limit: int | None = None,
    work: Path = Path("runs/text"),
    device: str = "auto",
    commit: str | None = None,
    offline: bool = False,
    say: Say = lambda text: None,
) -> list[Path]:
    """Run at most `limit` missing cells and return the files written.

    No cell is started that would probably not end within `minutes`.
    """
    start, longest, written = time.monotonic(), 0.0, []
    judges: list[NamedJudge] = []
    for variant, seed in missing(BUDGETS[budget], folder)[:limit]:
        begun = time.monotonic()
        if minutes is not None and begun - start + longest > 60 * minutes:
            say(f"{minutes:g} minutes are spent; the next cell is {variant.name}, seed {seed}")
            break
        if not judges:  # those of the first protocol: cells of other sizes have the same judges
            protocol = BUDGETS[budget].variants[0].protocol
            judges = prepare_judges(protocol, work, device, offline, say)
            begun = time.monotonic()
        say(f"cell {variant.name}, seed {seed}")
        cell = run_cell(
            budget, variant, seed, judges, work=work, device=device, commit=commit, offline=offline, say=say
        )
        written.append(cell.write(folder))
        longest = max(longest, time.monotonic() - begun)
        say(f"{written[-1].name}: {time.monotonic() - begun:.0f} s")
    return written
