"""The log of a training run: a bar that moves on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from .output import QUIET, duration, size

if TYPE_CHECKING:
    from rich.console import Console


class TrainingLog:
    """Lines for every row of metrics, on stderr, so that stdout holds results only."""

    def __init__(self, steps: int, say: Callable[[str], None]) -> None:
        self.steps, self.say = steps, say
        self._started, self._first, self._done = time.monotonic(), 0, 0

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics."""
        for text in lines_of(row, self.steps):
            self.say(text)

    def step(self, done: int, steps: int) -> None:
        """After every step."""
        self._first = self._first or done
        self._done = done

    def now(self) -> str:
        """Where the run is, for whoever waits."""
        if not self._done:
            return "the first step is under way"
        passed, taken = time.monotonic() - self._started, self._done - self._first + 1
        return f"step {self._done}/{self.steps}, {duration((self.steps - self._done) * passed / taken)} left"


class TrainingBar(TrainingLog):
    """The same lines above a bar, with the time that has passed and that is left since this call."""

    def __init__(self, console: "Console", steps: int) -> None:
        from rich import progress as columns

        super().__init__(steps, lambda text: console.print(text, highlight=False, markup=False))
        self.bar = columns.Progress(
            columns.SpinnerColumn(),
            columns.BarColumn(),
            columns.MofNCompleteColumn(),
            columns.TimeElapsedColumn(),
            columns.TextColumn("passed,"),
            columns.TimeRemainingColumn(),
            columns.TextColumn("left"),
            console=console,
        )
        self._task = self.bar.add_task("training", total=steps)

    def step(self, done: int, steps: int) -> None:
        super().step(done, steps)
        if done == self._first > 1:  # rich would take the steps of an earlier call for very quick ones
            self.bar.reset(self._task, completed=done)
        self.bar.update(self._task, completed=done)


@contextmanager
def training(console: "Console", steps: int) -> Iterator[TrainingLog]:
    """A bar that moves on a terminal; elsewhere a line tells of every silence, whatever the run is doing."""
    if console.is_terminal:
        bar = TrainingBar(console, steps)
        with bar.bar:
            yield bar
        return
    from ..data.pulse import Pulse

    pulse = Pulse(lambda text: typer.echo(text, err=True), QUIET)
    log = TrainingLog(steps, pulse.say)
    with pulse.meanwhile(log.now):
        yield log


def lines_of(row: Mapping[str, Any], steps: int) -> list[str]:
    """A readable line of a row of metrics, and one more where held-out text was looked at."""
    at = f"step {row['step'] + 1:>{len(str(steps))}}/{steps}"
    said = [f"loss {row['loss']:.4f}", f"grad {row['grad_norm']:.2f}", f"{row['tokens_per_s']:,.0f} tok/s"]
    if "ot_cost" in row:
        said.append(f"OT {row['ot_cost']:.4g} of {row['ot_independent_cost']:.4g} ({row['ot_wait_share']:.1%} of time)")
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
        found["held-out"] = f"{row['nll']:.4f} ± {row['nll_se']:.2g} nats per token (n={row['nll_n']})"
    if "jumps" in row:
        found["jumps"] = f"{row['jumps']:.2f} ± {row['jumps_se']:.2g} per sample (n={row['jumps_n']})"
    return found
