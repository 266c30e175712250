"""Output of commands: results on stdout, progress on stderr, files written atomically."""

import errno
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..system.safe_text import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

QUIET = 8.0
"""Seconds without output after which a command repeats its last progress line."""


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print text without control characters. Commands print only by this function or on a `console`."""
    typer.echo(harmless(str(text), keep="\n\t"), err=err, nl=nl)


def console(stderr: bool = False) -> "Console":
    """A rich console on stdout or stderr; in a pipe nothing moves, and lines are not wrapped."""
    from .screen import Screen

    screen = Screen(stderr=stderr)
    if not screen.file.isatty():  # FORCE_COLOR asks for colors, not for moving bars
        screen.is_interactive = False
        screen.width = 200  # a pipe has no width: do not wrap lines
    return screen


def page_width() -> int:
    """Columns of the terminal (or $COLUMNS), 80 if there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def fitting(message: str) -> str:
    """A message for stderr: its lines are wrapped between words on a terminal, and unchanged elsewhere."""
    if not sys.stderr.isatty():
        return message
    wrapper = textwrap.TextWrapper(page_width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) for line in message.splitlines())


@contextmanager
def lines() -> Iterator[Callable[[str], None]]:
    """Print progress as lines on stderr; the last line is repeated during long work."""
    from ..system.progress import Progress

    latest = "starting"
    progress = Progress(lambda text: echo(text, err=True), QUIET)

    def say(text: str) -> None:
        nonlocal latest
        latest = text
        progress.write(text)

    with progress.keep_updating(lambda: latest.partition("\n")[0]):
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
    """Refuse a file that cannot be written before the work begins."""
    if file is None:
        return
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder, not a file", str(file))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(file))
    if not os.access(file.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "its folder is not writable", str(file))


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a result as JSON by one rename; a number that is not finite is a bug."""
    from ..system import atomic

    try:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError as error:  # a number that is not finite is a bug
        raise RuntimeError(f"the result cannot be stored: {error}") from error
    atomic.write(file, (text + "\n").encode())


def table(*columns: str) -> "Table":
    """An empty table with these columns."""
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD if console().is_terminal else None, padding=(0, 2, 0, 0))


def figures(title: str, names: int, *columns: str) -> "Table":
    """A table with a title: `names` columns of text, then columns of numbers."""
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
    """Print one fact per line: name and value."""
    from rich.text import Text

    screen, width = console(), max(map(len, facts)) + 2
    for name, value in facts.items():
        plain = str(value).lower() if isinstance(value, bool) else str(value)  # as one types it
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain
        screen.print(Text.assemble((name.ljust(width), "bold"), shown), soft_wrap=True)


def number(value: Any) -> str:
    """A number in at most five digits, or "-"; several of them with blanks between them."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return " ".join(number(item) for item in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def size(count: int | float) -> str:
    """A number of bytes with its unit: 3.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def box(screen: "Console", title: str, rows: Mapping[str, str]) -> None:
    """Print a summary: in a frame on a terminal, as lines elsewhere."""
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
