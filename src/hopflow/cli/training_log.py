"""The log of a training run: a bar that moves on a terminal, plain lines elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from .output import QUIET, duration, echo, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..recipes import Recipe

WIDEST, BESIDE = 40, 48
"""Columns of a bar, and those that are left to the words beside it."""
NARROW = 56
"""Columns of a terminal that has no room for all of them."""
CLEAR = "\r\x1b[2K"
"""Wipes the line where another process may have its bar."""


class TrainingLog:
    """Lines for every row of metrics, on stderr, so that stdout holds results only."""

    def __init__(
        self, steps: int, say: Callable[[str], None], expected: Callable[[int], str | None] | None = None
    ) -> None:
        self.steps, self.say, self._expected = steps, say, expected
        self._first: int | None = None
        self._done = 0
        self._started = self._ended = time.monotonic()

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics."""
        for text in lines_of(row, self.steps):
            self.say(text)

    def step(self, done: int, steps: int) -> None:
        """At the step this call goes on from, and after every one."""
        now = time.monotonic()
        if self._first is None:
            self._begin(done)
            self._first, self._started = done, now
        self._done, self._ended = done, now

    def _begin(self, done: int) -> None:
        """Where the run starts, and what it is expected to take."""
        if done == self.steps:
            self.say(f"all {done:,} steps were taken before")
            return
        if done:
            self.say(f"resuming from step {done:,} of {self.steps:,}")
        if self._expected and (text := self._expected(self.steps - done)):
            self.say(text)

    @property
    def taken(self) -> int:
        """Steps of this call."""
        return 0 if self._first is None else max(0, self._done - self._first)

    @property
    def left(self) -> float:
        """Seconds to the end, by the steps of this call."""
        each = (self._ended - self._started) / self.taken
        return max(0.0, (self.steps - self._done) * each - (time.monotonic() - self._ended))

    def now(self) -> str:
        """Where the run is, for whoever waits."""
        if not self.taken:
            return "the first step is under way"
        at = f"step {self._done}/{self.steps}"
        if time.monotonic() - self._ended > QUIET / 2:  # a look at held-out text, a save, or a step that waits for OT
            return f"{at} is done, what follows takes longer"
        return f"{at}, {duration(self.left)} left"


class TrainingBar(TrainingLog):
    """The same lines above a bar, with the newest speed and the time that is left."""

    def __init__(self, console: "Console", steps: int, expected: Callable[[int], str | None] | None = None) -> None:
        from rich import progress as columns
        from rich.table import Column

        super().__init__(steps, lambda text: console.print(text, highlight=False, markup=False), expected)
        self._speed = ""
        self.bar = columns.Progress(
            columns.SpinnerColumn(),
            columns.BarColumn(max(4, min(WIDEST, console.width - BESIDE))),
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
        """What stands beside the bar."""
        from rich.text import Text

        at, left = f"{self._done}/{self.steps}", ""
        if self._done == self.steps:
            left = f"in {duration(self._ended - self._started)}"
        elif self.taken:
            left = f"{duration(self.left) if self.left >= 1 else 'a moment'} left"
        speed = self._speed if self.bar.console.width >= NARROW else ""  # the lines above have it, too
        return Text("  ".join(word for word in (at, speed, left) if word))


class ProcessLog(TrainingLog):
    """Of a process that is not the first: it has no metrics, and says at every log step that it is there."""

    def __init__(
        self, rank: int, steps: int, every: int, memory: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        super().__init__(steps, say)
        self.rank, self.every, self.memory = rank, every, memory

    def _begin(self, done: int) -> None:
        """The first process says where the run starts."""

    def step(self, done: int, steps: int) -> None:
        super().step(done, steps)
        if self.taken and (done == 1 or done % self.every == 0 or done == steps):
            self.say(f"rank {self.rank}: {_at(done, steps)}  {size(self.memory())}")


@contextmanager
def training(console: "Console", recipe: "Recipe", rank: int = 0, pace: float | None = None) -> Iterator[TrainingLog]:
    """A bar that moves on a terminal; elsewhere a line tells of every silence, whatever the run is doing.

    `pace`: seconds that a step is expected to take.
    """

    def expected(steps: int) -> str | None:
        return expectation(recipe, steps, pace)

    if rank:
        yield _beside_the_first(console, recipe, rank)
        return
    if console.is_interactive:
        bar = TrainingBar(console, recipe.steps, expected)
        with bar.bar, messages(bar.say):
            yield bar
        return
    from ..data.pulse import Pulse

    pulse = Pulse(lambda text: echo(text, err=True), QUIET)
    log = TrainingLog(recipe.steps, pulse.say, expected)
    with pulse.meanwhile(log.now), messages(log.say):
        yield log


@contextmanager
def messages(say: Callable[[str], None]) -> Iterator[None]:
    """Show what the library logs as lines of the training log."""
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
    """Passes the text of each message on."""

    def __init__(self, say: Callable[[str], None], level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.say = say

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())


def expectation(recipe: "Recipe", steps: int, pace: float | None) -> str | None:
    """What is ahead: time, steps and tokens."""
    if pace is None:
        return None
    from ..training.devices import choose_device

    device = choose_device(recipe.device).type
    where = "on one CPU thread" if device == "cpu" else f"on {device}"
    if recipe.compile:
        where += ", less once compiled"
    return f"about {duration(steps * pace)} {where}: {steps:,} steps of {recipe.batch} × {recipe.length} tokens"


def _beside_the_first(console: "Console", recipe: "Recipe", rank: int) -> ProcessLog:
    from ..training.devices import choose_device, memory_bytes

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
    """A readable line of a row of metrics, and one more where held-out text was looked at."""
    at = _at(row["step"] + 1, steps)
    said = [f"loss {row['loss']:.4f}", f"grad {row['grad_norm']:.2f}", f"{row['tokens_per_s']:,.0f} tok/s"]
    if "ot_cost" in row:
        count = row.get("ot_workers", 1)
        workers = f", {count} workers" if count > 1 else ""
        costs = f"OT {row['ot_cost']:.4g} of {row['ot_independent_cost']:.4g}"
        said.append(f"{costs} ({row['ot_wait_share']:.1%} of time{workers})")
    said.append(size(row["memory_bytes"]))
    found = [f"{label} {value}" for label, value in looked(row).items()]
    return ["  ".join([at, *said]), *(["  ".join([" " * len(at), *found])] if found else [])]


def looked(row: Mapping[str, Any]) -> dict[str, str]:
    """What a look at held-out text found, each number with its error and n."""
    found = {}
    for bound in ("b0", "bn"):
        if f"{bound}_ppl" in row:
            found[bound] = f"ppl {row[f'{bound}_ppl']:.4g} ± {row[f'{bound}_se']:.2g} (n={row[f'{bound}_n']})"
    if "nll" in row:
        found["held-out"] = f"{row['nll']:.4f}{_error(row, 'nll')} nats per token (n={row['nll_n']})"
    if "jumps" in row:
        found["hops"] = f"{row['jumps']:.2f}{_error(row, 'jumps')} per sample (n={row['jumps_n']})"
    return found


def _error(row: Mapping[str, Any], name: str) -> str:
    """Unknown for a single value; runs of earlier versions hold 0 there."""
    return f" ± {row[f'{name}_se']:.2g}" if row[f"{name}_n"] > 1 else " ± ?"


def _at(done: int, steps: int) -> str:
    return f"step {done:>{len(str(steps))}}/{steps}"
