"""The log of a sampler: a progress bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..system.durations import duration
from .output import QUIET, echo

if TYPE_CHECKING:
    from rich.console import Console

CountCallback = Callable[[int, int], None]


class SamplingLog:
    """Counts the finished sequences and their speed."""

    def __init__(self, count: int) -> None:
        self.count, self.done, self._started = count, 0, time.monotonic()

    def step(self, done: int, count: int) -> None:
        self.done = done

    @property
    def speed(self) -> str:
        return speed(self.done / max(time.monotonic() - self._started, 1e-9)) if self.done else ""

    def now(self) -> str:
        """One line of progress."""
        if not self.done:
            return f"drawing {self.count:,} sequences"
        left = (time.monotonic() - self._started) * (self.count - self.done) / self.done
        return f"{self.done:,} of {self.count:,} sequences, {self.speed}, {duration(left)} left"


@contextmanager
def sampling(console: "Console", count: int) -> Iterator[CountCallback]:
    """The `progress` of `generate`: a bar that disappears at the end, or a line every few seconds."""
    log = SamplingLog(count)
    if not console.is_interactive:
        from ..system.progress import Progress

        with Progress(lambda text: echo(text, err=True), QUIET).keep_updating(log.now):
            yield log.step
        return
    from rich import progress as columns

    bar = columns.Progress(
        columns.SpinnerColumn(),
        columns.BarColumn(),
        columns.MofNCompleteColumn(),
        columns.TextColumn("sequences  {task.description}"),
        columns.TimeRemainingColumn(),
        columns.TextColumn("left"),
        console=console,
        transient=True,
    )
    task = bar.add_task("", total=count)

    def step(done: int, count: int) -> None:
        log.step(done, count)
        bar.update(task, completed=done, description=log.speed)

    with bar:
        yield step


def speed(rate: float) -> str:
    """Sequences per second, in three digits."""
    return f"{rate:,.0f} per second" if rate >= 100 else f"{rate:.3g} per second"
