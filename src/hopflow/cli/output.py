"""Output: results on stdout, what is going on on stderr, files by one rename."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..symbols import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

QUIET = 8.0
"""Seconds after which a command that has nothing to report says that it is alive."""


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print plain text without what would steer a terminal. Commands print by this or on a `console`, never else."""
    typer.echo(harmless(str(text), keep="\n\t"), err=err, nl=nl)


def console(stderr: bool = False) -> "Console":
    from .screen import Screen

    screen = Screen(stderr=stderr)
    if not screen.file.isatty():  # FORCE_COLOR asks for colours there, not for bars that move
        screen.is_interactive = False
        screen.width = 200  # a pipe has no width: keep one finding on one line
    return screen


def page_width() -> int:
    """Columns that text may take: those of the terminal (or of COLUMNS), 80 elsewhere."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


@contextmanager
def lines() -> Iterator[Callable[[str], None]]:
    """Plain lines on stderr, so that stdout holds only results; the last one again where long work is silent."""
    from ..data.pulse import Pulse

    latest = "starting"
    pulse = Pulse(lambda text: echo(text, err=True), QUIET)

    def say(text: str) -> None:
        nonlocal latest
        latest = text
        pulse.say(text)

    with pulse.meanwhile(lambda: latest.partition("\n")[0]):
        yield say


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, plain lines elsewhere; always on stderr."""
    from rich.text import Text

    screen = console(stderr=True)
    if not screen.is_interactive:
        with lines() as say:
            yield say
        return
    with screen.status("starting") as status:
        yield lambda text: status.update(Text(text))


def check_target(file: Path | None) -> None:
    """Find a mistyped `--json` before the work, not after it."""
    if file is None:
        return
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder, a file is needed", str(file))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(file))
    if not os.access(file.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "its folder may not be written to", str(file))


def write_json(file: Path, content: dict[str, Any]) -> None:
    from .. import atomic

    try:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError as error:  # no input leads here: a number that is not finite must not reach a report
        raise RuntimeError(f"the result cannot be stored: {error}") from error
    atomic.write(file, (text + "\n").encode())


def table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD if console().is_terminal else None, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column == "bytes" else "left")
    return made


def figures(title: str, names: int, *columns: str) -> "Table":
    """A table of numbers under a title; the first columns hold names."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if console().is_terminal else None,
        padding=(0, 2, 0, 0),
    )
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place < names else "right", no_wrap=True)
    return made


def show_facts(facts: Mapping[str, Any]) -> None:
    """One fact a line: its name, its value."""
    from rich.text import Text

    screen, width = console(), max(map(len, facts)) + 2
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        screen.print(Text.assemble((name.ljust(width), "bold"), shown), soft_wrap=True)


def number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return " ".join(number(item) for item in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def duration(seconds: int | float) -> str:
    """12 ms, 3.4 s, 5 min 6 s, 7 h 8 min, 9 d 10 h."""
    for unit, below, whole in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if seconds >= whole:
            part = {"d": 3600, "h": 60, "min": 1}[unit]
            return f"{int(seconds // whole)} {unit} {int(seconds % whole // part)} {below}"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(count: int | float) -> str:
    """Bytes in a unit that keeps them short."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def box(screen: "Console", title: str, rows: Mapping[str, str]) -> None:
    """A summary: names and values in a frame on a terminal, lines elsewhere."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if not screen.is_interactive:
        width = max(map(len, rows)) + 3
        for name, value in rows.items():
            screen.print(f"{name}:".ljust(width) + value, soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(Text(name, "bold"), value)
    screen.print(Panel(grid, title=Text(title), expand=False))
