"""The log of a training run: a bar that moves on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from .output import duration, size

if TYPE_CHECKING:
    from rich.console import Console

QUIET = 8.0
"""Seconds after which a command that has nothing to report says that it is alive."""


class TrainingLog:
    """One line per row of metrics, and a sign of life between them; on stderr, so that stdout holds results only."""

    def __init__(self, console: "Console", steps: int) -> None:
        self.console, self.steps = console, steps
        self._said = self._started = time.monotonic()
        self._first: int | None = None

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics."""
        self._say(line(row, self.steps))

    def step(self, done: int, steps: int) -> None:
        """After every step."""
        if self._first is None:
            self._first = done
        if time.monotonic() - self._said > QUIET:
            self._say(f"step {done}/{steps} {self._left(done)}")

    def _left(self, done: int) -> str:
        passed, taken = time.monotonic() - self._started, done - (self._first or 0) + 1
        return f"{duration((self.steps - done) * passed / max(1, taken))} left"

    def _say(self, text: str) -> None:
        typer.echo(text, err=True)
        self._said = time.monotonic()


class TrainingBar(TrainingLog):
    """The same above a progress bar with the time that is left, counted from the resume point."""

    def __init__(self, console: "Console", steps: int) -> None:
        super().__init__(console, steps)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self._task: Any = None

    def step(self, done: int, steps: int) -> None:
        if self._task is None:
            self._task = self.bar.add_task("training", total=steps, completed=done - 1)
        self.bar.update(self._task, completed=done)

    def _say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)


@contextmanager
def training(console: "Console", steps: int) -> Iterator[TrainingLog]:
    if not console.is_terminal:
        yield TrainingLog(console, steps)
        return
    bar = TrainingBar(console, steps)
    with bar.bar:
        yield bar


def line(row: Mapping[str, Any], steps: int) -> str:
    """One readable line of a row of metrics."""
    said = [f"step {row['step'] + 1:>{len(str(steps))}}/{steps}"]
    if "loss" in row:
        said += [f"loss {row['loss']:.4f}", f"grad {row['grad_norm']:.2f}", f"{row['tokens_per_s']:,.0f} tok/s"]
    if "ot_cost" in row:
        said.append(f"OT {row['ot_cost']:.4g} of {row['ot_independent_cost']:.4g} ({row['ot_wait_share']:.1%} of time)")
    if "memory_bytes" in row:
        said.append(size(row["memory_bytes"]))
    for bound in ("b0", "bn"):
        if f"{bound}_ppl" in row:
            said.append(f"{bound} ppl {row[f'{bound}_ppl']:.4g} ± {row[f'{bound}_se']:.2g} (n={row[f'{bound}_n']})")
    for name in ("nll", "jumps"):
        if name in row:
            said.append(f"{name} {row[name]:.4g} ± {row[f'{name}_se']:.2g}")
    return "  ".join(said)
