"""The queue of the text study: run the cells that have no file yet, in order, until the time is spent."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ...bench.machine import machine
from ...runs.devices import choose_device
from ...system.progress import ProgressCallback
from .budgets import BUDGETS
from .cell import REPEATED, Cell, file_name, read_all
from .evaluation_sets import EvaluationSets
from .failures import Failure, failure_path
from .judges import NamedJudge, judge_folder, prepare_judges
from .measure import run_cell
from .protocol import Budget, StudyVariant
from .training_run import claimed, is_trained_elsewhere

StudyCell = tuple[StudyVariant, int]
SHARED = 1.6
"""An estimate of how much longer a cell takes if two processes use the device."""


def missing(budget: Budget, folder: Path) -> list[StudyCell]:
    """The cells without a file, in the order in which they are run; those that failed before come last."""
    cells = [
        (variant, seed)
        for variant, seed in budget.cells()
        if not (folder / file_name(budget.name, variant.name, seed)).exists()
    ]
    return sorted(cells, key=lambda cell: failure_path(folder, budget.name, cell[0].name, cell[1]).exists())


def chosen_cells(
    budget: Budget, folder: Path, variants: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[StudyCell]:
    """The missing cells of these variants and seeds; of all of them by default."""
    names = [variant.name for variant in budget.variants]
    if unknown := [name for name in variants if name not in names]:
        raise ValueError(f"budget={budget.name} has no variant {unknown[0]!r}; variants are {', '.join(names)}")
    return [
        (variant, seed)
        for variant, seed in missing(budget, folder)
        if (not variants or variant.name in variants) and (not seeds or seed in seeds)
    ]


@dataclass
class CellTimes:
    """Seconds that cells took on this device, from their files; a forecast for cells that have not run."""

    device: str
    unknown: float = 0.0
    """Forecast for a variant of a protocol of which no cell has run on this device."""
    minutes: float | None = None
    """The time limit of this run of the queue, and when it started."""
    started: float = field(default_factory=time.monotonic)
    shared: bool = False
    """Whether another process uses the device."""
    measured: list[tuple[str, str, float]] = field(default_factory=list)
    """(variant, protocol, seconds)"""

    def add(self, cell: Cell) -> None:
        if cell.machine.get("device") == self.device:
            slower = SHARED if self.shared and not cell.machine.get("shared") else 1.0
            self.measured.append((cell.variant, cell.protocol_sha256, slower * sum(cell.seconds.values())))

    def forecast(self, variant: StudyVariant) -> float:
        """The longest cell of the variant; else the longest one of its protocol, but at least `unknown`."""
        own = [seconds for name, _, seconds in self.measured if name == variant.name]
        alike = [seconds for _, protocol, seconds in self.measured if protocol == variant.protocol.sha256]
        return max(own) if own else max([*alike, self.unknown])

    def left(self) -> float:
        """Seconds that are left of the time limit."""
        return math.inf if self.minutes is None else 60 * self.minutes - (time.monotonic() - self.started)

    def fits(self, variant: StudyVariant, seed: int, say: ProgressCallback) -> bool:
        """Whether a cell of this variant would end in time."""
        expected, left = self.forecast(variant), self.left()
        if expected > left:
            say(f"{variant.name}, seed {seed}, takes about {expected:.0f} s, {left:.0f} s are left")
        return expected <= left


def run(
    folder: Path,
    *,
    budget: str = "full",
    variants: Sequence[str] = (),
    seeds: Sequence[int] = (),
    minutes: float | None = None,
    expect: float = 0.0,
    limit: int | None = None,
    later: Sequence[str] = (),
    shared: bool = False,
    repeat: bool = False,
    work: Path = Path("runs/text"),
    device: str = "auto",
    commit: str | None = None,
    offline: bool = False,
    say: ProgressCallback = lambda text: None,
) -> list[Path]:
    """Run at most `limit` missing cells and return the files written; with limit=0, train the judge only.

    A cell whose forecast does not fit into the rest of `minutes` is left for the next call. A cell that raises an error
    is recorded as failed, and the next one is run. `later` are judges that read the stored texts afterwards; `shared`
    marks cells whose speed says nothing, because another process used the device. Several processes may run the same
    queue with the same folder `work`: each takes cells that no other one runs, and while one of them trains the judge,
    the others train cells.
    """
    started, written = time.monotonic(), list[Path]()
    folder, work = (folder / REPEATED, work / REPEATED) if repeat else (folder, work)
    texts = EvaluationSets(offline=offline, say=say)
    times = CellTimes(str(machine(choose_device(device))["device"]), 60 * expect, minutes, started, shared)
    for known in read_all(folder):
        times.add(known)
    first = BUDGETS[budget].variants[0].protocol  # cells of other sizes have the same judges

    @cache
    def judges() -> list[NamedJudge]:
        return prepare_judges(first, work, device, texts, later)

    if limit == 0:
        judges()

    for variant, seed in chosen_cells(BUDGETS[budget], folder, variants, seeds):
        if times.left() <= 0:
            say(f"{minutes:g} minutes are spent; the next cell is {variant.name}, seed {seed}")
            break
        if len(written) == limit:
            break
        if not times.fits(variant, seed, say):
            continue
        if not is_trained_elsewhere(judge_folder(first, work)):  # else it is waited for after the cell's training
            judges()
            if not times.fits(variant, seed, say):  # the judge has taken time
                continue
        name = file_name(budget, variant.name, seed)
        with claimed(work, name) as ours:
            if not ours or (folder / name).exists():
                say(f"{variant.name}, seed {seed}: another process {'has run' if ours else 'runs'} it")
                continue
            cell = _attempt(folder, budget, variant, seed, judges, texts, work, device, commit)
            if cell is not None:
                cell = replace(cell, machine={**cell.machine, "shared": True}) if shared else cell
                times.add(cell)
                written.append(cell.write(folder))
    return written


def _attempt(
    folder: Path,
    budget: str,
    variant: StudyVariant,
    seed: int,
    judges: Callable[[], Sequence[NamedJudge]],
    texts: EvaluationSets,
    work: Path,
    device: str,
    commit: str | None,
) -> Cell | None:
    """The cell; None after an error, which is recorded."""
    begun = time.monotonic()
    texts.say(f"cell {variant.name}, seed {seed}")
    try:
        cell = run_cell(budget, variant, seed, judges, texts, work=work, device=device, commit=commit)
    except Exception as error:  # one variant that fails must not end the study
        line = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        found = str(machine(choose_device(device))["device"])
        Failure(budget, variant.name, seed, line, commit, found, time.monotonic() - begun).write(folder)
        texts.say(f"{variant.name}, seed {seed}, failed: {line}")
        return None
    texts.say(f"{cell.name}: {time.monotonic() - begun:.0f} s")
    return cell
