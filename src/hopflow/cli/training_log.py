"""The log of a training run: a progress bar on a terminal, lines elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from ..system.durations import duration
from .output import QUIET, echo, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..recipes import Recipe

LONGEST_BAR, BAR_TEXT = 40, 48
"""Largest number of columns of the bar, and columns of the text to its right."""
NARROW = 56
"""Below this width of the terminal the speed is left out."""
CLEAR = "\r\x1b[2K"
"""Clears the line, on which another process may have drawn its bar."""


class TrainingLog:
    """Prints each row of metrics as lines on stderr."""

    def __init__(
        self, steps: int, say: Callable[[str], None], expected: Callable[[int], str | None] | None = None
    ) -> None:
        self.steps, self.say, self._expected = steps, say, expected
        self._first: int | None = None
        self._done = 0
        self._started = self._ended = time.monotonic()

    def row(self, row: Mapping[str, Any]) -> None:
        """Print a row of metrics."""
        for text in lines_of(row, self.steps):
            self.say(text)

    def step(self, done: int, steps: int) -> None:
        """Count a step; called once before the first step, too."""
        now = time.monotonic()
        if self._first is None:
            self._begin(done)
            self._first, self._started = done, now
        self._done, self._ended = done, now

    def _begin(self, done: int) -> None:
        """Print where the run starts, and the expected time."""
        if done == self.steps:
            self.say(f"the run has already finished its {done:,} steps")
            return
        if done:
            self.say(f"resuming from step {done:,} of {self.steps:,}")
        if self._expected and (text := self._expected(self.steps - done)):
            self.say(text)

    @property
    def taken(self) -> int:
        """Steps since this process started."""
        return 0 if self._first is None else max(0, self._done - self._first)

    @property
    def left(self) -> float:
        """Seconds to the end, extrapolated from the steps of this process."""
        each = (self._ended - self._started) / self.taken
        return max(0.0, (self.steps - self._done) * each - (time.monotonic() - self._ended))

    def now(self) -> str:
        """One line of progress."""
        if not self.taken:
            return "computing the first step"
        at = f"step {self._done}/{self.steps}"
        if time.monotonic() - self._ended > QUIET / 2:  # an evaluation, a checkpoint, or waiting for OT
            return f"{at} done, evaluating or saving …"
        return f"{at}, {duration(self.left)} left"


class TrainingBar(TrainingLog):
    """The same lines above a progress bar with speed and remaining time."""

    def __init__(self, console: "Console", steps: int, expected: Callable[[int], str | None] | None = None) -> None:
        from rich import progress as columns
        from rich.table import Column

        super().__init__(steps, lambda text: console.print(text, highlight=False, markup=False), expected)
        self._speed = ""
        self.bar = columns.Progress(
            columns.SpinnerColumn(),
            columns.BarColumn(max(4, min(LONGEST_BAR, console.width - BAR_TEXT))),
            columns.RenderableColumn(self, table_column=Column(no_wrap=True)),
            console=console,
        )
        self._task = self.bar.add_task("training", total=steps)

    def row(self, row: Mapping[str, Any]) -> None:
        super().row(row)
        self._speed = f"{row['tokens_per_s']:,.0f} tok/s"

    def step(self, done: int, steps: int) -> None:
        super().step(done, steps)
        self.bar.update(self._task, completed=done)

    def __rich__(self) -> "Text":
        """The text to the right of the bar."""
        from rich.text import Text

        at, left = f"{self._done}/{self.steps}", ""
        if self._done == self.steps:
            left = f"in {duration(self._ended - self._started)}"
        elif self.taken:
            left = f"{duration(self.left) if self.left >= 1 else 'a moment'} left"
        speed = self._speed if self.bar.console.width >= NARROW else ""  # the lines above contain it
        return Text("  ".join(word for word in (at, speed, left) if word))


class ProcessLog(TrainingLog):
    """The log of a process other than the first: no metrics, one line per log step."""

    def __init__(
        self, rank: int, steps: int, every: int, memory: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        super().__init__(steps, say)
        self.rank, self.every, self.memory = rank, every, memory

    def _begin(self, done: int) -> None:
        """Only the first process prints where the run starts."""

    def step(self, done: int, steps: int) -> None:
        super().step(done, steps)
        if self.taken and (done == 1 or done % self.every == 0 or done == steps):
            self.say(f"rank {self.rank}: {_at(done, steps)}  {size(self.memory())}")


@contextmanager
def training(console: "Console", recipe: "Recipe", rank: int = 0, pace: float | None = None) -> Iterator[TrainingLog]:
    """The log of this process: a bar on a terminal, else lines, with one every few seconds during long work.

    `pace`: the expected seconds per step.
    """

    def expected(steps: int) -> str | None:
        return expectation(recipe, steps, pace)

    if rank:
        yield _other_process_log(console, recipe, rank)
        return
    if console.is_interactive:
        bar = TrainingBar(console, recipe.steps, expected)
        with bar.bar, messages(bar.say):
            yield bar
        return
    from ..system.progress import Progress

    progress = Progress(lambda text: echo(text, err=True), QUIET)
    log = TrainingLog(recipe.steps, progress.write, expected)
    with progress.keep_updating(log.now), messages(log.say):
        yield log


@contextmanager
def messages(say: Callable[[str], None]) -> Iterator[None]:
    """Print the library's log messages as lines of the training log."""
    handler, library = Lines(say), logging.getLogger("hopflow")
    before = library.level
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    try:
        yield
    finally:
        library.setLevel(before)
        library.removeHandler(handler)


class Lines(logging.Handler):
    """A logging handler that passes each message to a function."""

    def __init__(self, say: Callable[[str], None], level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.say = say

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())


def expectation(recipe: "Recipe", steps: int, pace: float | None) -> str | None:
    """The expected time, steps and tokens."""
    if pace is None:
        return None
    from ..runs.devices import choose_device

    device = choose_device(recipe.device).type
    where = f"on {device}" + (_timed_threads() if device == "cpu" else "")
    if recipe.compile:
        where += ", less after compilation"
    return (
        f"expected time {duration(steps * pace)} {where}: "
        f"{steps:,} steps of {recipe.batch} sequences of {recipe.length} tokens"
    )


def _timed_threads() -> str:
    """On a CPU a step is timed with one thread, before the run chooses how many it uses."""
    import torch

    used = torch.get_num_threads()
    return " with 1 thread" if used == 1 else f", timed with 1 thread (the run uses {used})"


def _other_process_log(console: "Console", recipe: "Recipe", rank: int) -> ProcessLog:
    from ..runs.devices import choose_device, memory_bytes

    device = choose_device(recipe.device)

    def say(text: str) -> None:
        if console.is_interactive:
            typer.echo(CLEAR, err=True, nl=False)
        echo(text, err=True)

    return ProcessLog(
        rank,
        recipe.steps,
        recipe.log_every,
        lambda: memory_bytes(device),
        say,
    )


def lines_of(row: Mapping[str, Any], steps: int) -> list[str]:
    """A row of metrics as a line, and a second line if held-out text was evaluated."""
    at = _at(row["step"] + 1, steps)
    shown = [f"loss {row['loss']:.4f}", f"grad norm {row['grad_norm']:.2f}", f"{row['tokens_per_s']:,.0f} tok/s"]
    if "ot_cost" in row:
        count = row.get("ot_workers", 1)
        workers = f", {count} workers" if count > 1 else ""
        costs = f"OT cost {row['ot_cost']:.4g} (independent {row['ot_independent_cost']:.4g})"
        shown.append(f"{costs}  OT wait {row['ot_wait_share']:.1%}{workers}")
    shown.append(size(row["memory_bytes"]))
    found = [f"{label}: {value}" for label, value in evaluation_results(row).items()]
    return ["  ".join([at, *shown]), *(["  ".join([" " * len(at), *found])] if found else [])]


def evaluation_results(row: Mapping[str, Any]) -> dict[str, str]:
    """The results of the evaluation on held-out text, each with its error and n."""
    found = {}
    for bound in ("b0", "bn"):
        if f"{bound}_ppl" in row:
            value, error, n = (row[f"{bound}_{part}"] for part in ("ppl", "se", "n"))
            found[f"perplexity bound {bound}"] = f"{value:.4g} ± {error:.2g} (n={n})"
    if "nll" in row:
        found["held-out NLL"] = f"{row['nll']:.4f}{_error(row, 'nll')} nats per token (n={row['nll_n']})"
    if "jumps" in row:
        found["hops"] = f"{row['jumps']:.2f}{_error(row, 'jumps')} per sample (n={row['jumps_n']})"
    return found


def _error(row: Mapping[str, Any], name: str) -> str:
    """The standard error; unknown for a single value, where older runs store 0."""
    return f" ± {row[f'{name}_se']:.2g}" if row[f"{name}_n"] > 1 else " ± ?"


def _at(done: int, steps: int) -> str:
    return f"step {done:>{len(str(steps))}}/{steps}"
