"""The command line: parses, calls, prints. Commands import what they need, so that `--help` is immediate.

Exit codes: 0 ok, 1 bug, 2 user input, 3 environment, 4 interrupted.
"""

import difflib
import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from .bench.ot import Row as Solved
    from .bench.pairs import Row as Hidden
    from .evaluation.tightness import Row

OK, BUG, USER, ENVIRONMENT, INTERRUPTED = range(5)

# mistakes in a file name that the user typed; every other OSError is the machine's doing
USER_ERRNO = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
}

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

bench = typer.Typer(help="Measure speed side by side with others, in one run.")
app.add_typer(bench, name="bench")

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE, as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"hopflow {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def hopflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Discrete flow matching for text with as few token hops as possible."""


@app.command()
def doctor(json_file: Json = None, debug: Debug = False) -> None:
    """Show versions, devices and what is missing; paste it into an issue."""
    from . import doctor as physician

    _check_target(json_file)
    report = physician.examine(Path.cwd())
    if json_file:
        _write_json(json_file, report.as_json())
    physician.show(report, _console())
    if not report.healthy:
        raise typer.Exit(ENVIRONMENT)


@app.command()
def oracle(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Run the paper's three tightness analyses (App. C.5 [C4]) exactly: paper | exact.

    Settings: seed=0, analysis=all (or first, second, third).
    """
    chosen = parse_settings(
        settings or [], {"seed": whole_number, "analysis": one_of("all", "first", "second", "third")}
    )
    _check_target(json_file)
    from .evaluation import tightness

    with _progress() as progress:
        analysis = chosen.get("analysis", "all")
        analyses = tightness.ANALYSES if analysis == "all" else (analysis,)
        rows = tightness.run(chosen.get("seed", 0), analyses, progress)
    if json_file:
        names = ("analysis", "quantity", "paper", "exact")
        _write_json(json_file, {"rows": [{name: getattr(row, name) for name in names} for row in rows]})
    _show_rows(rows, _console())


@bench.command("ot")
def bench_ot(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time the couplings of a batch beside POT: exact and Sinkhorn, same costs, same run; then behind a training step.

    Settings: full=false (true: every size, length and width), n=64, 512 and 2048, seed=0.
    """
    chosen = parse_settings(settings or [], {"full": one_of("true", "false"), "n": batch_size, "seed": whole_number})
    _check_target(json_file)
    from .bench import ot, pairs

    with _progress() as progress:
        rows = ot.run(
            full=chosen.get("full") == "true", n=chosen.get("n"), seed=chosen.get("seed", 0), progress=progress
        )
        hidden = pairs.run(progress)
    if json_file:
        _write_json(json_file, {"rows": [row.as_json() for row in rows], "hiding": hidden})
    _show_solvers(rows, _console())
    _show_hiding(hidden, _console())


def parse_settings(pairs: list[str], readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Read `key=value` words; each key has a reader that turns its text into a value or raises ValueError."""
    chosen: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {pair!r}\nknown keys: {', '.join(readers)}")
        if key not in readers:
            near = difflib.get_close_matches(key.lower(), readers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(readers)}"
            raise ValueError(f"unknown setting {key!r}\n{hint}")
        if key in chosen:
            raise ValueError(f"setting {key!r} is given twice")
        try:
            chosen[key] = readers[key](text)
        except ValueError as error:
            raise ValueError(f"setting {pair!r}: {error}") from None
    return chosen


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise ValueError("a whole number from 0 to 2^63 - 1 is expected, e.g. 0")
    return int(text)


def batch_size(text: str) -> int:
    if not 1 <= whole_number(text) <= 1 << 15:
        raise ValueError("a number of rows from 1 to 32768 is expected, e.g. 512")
    return int(text)


def one_of(*words: str) -> Callable[[str], str]:
    """A reader that takes one of these words, and says which is nearest to any other."""

    def read(text: str) -> str:
        if text not in words:
            near = difflib.get_close_matches(text.lower(), words, n=1)
            raise ValueError(f"did you mean {near[0]!r}?" if near else f"one of {', '.join(words)} is expected")
        return text

    return read


def _check_target(file: Path | None) -> None:
    """Find a mistyped `--json` before the work, not after it."""
    if file is None:
        return
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder, a file is needed", str(file))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(file))
    if not os.access(file.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "its folder may not be written to", str(file))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    from . import atomic

    try:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError as error:  # no input leads here: a number that is not finite must not reach a report
        raise RuntimeError(f"the result cannot be stored: {error}") from error
    atomic.write(file, (text + "\n").encode())


def _console(stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width: keep one finding on one line
    return console


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, plain lines elsewhere; always on stderr, so that stdout holds only results."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield lambda text: typer.echo(text, err=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)


def _show_rows(rows: "list[Row]", console: "Console") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    for analysis in dict.fromkeys(row.analysis for row in rows):
        table = Table(
            title=escape(f"{analysis} analysis"),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD if console.is_terminal else None,
            padding=(0, 2, 0, 0),
        )
        table.add_column("quantity", no_wrap=True)
        table.add_column("paper", justify="right")
        table.add_column("exact", justify="right", style="green")
        for row in rows:
            if row.analysis == analysis:
                table.add_row(escape(row.quantity), _number(row.paper), _number(row.exact))
        console.print(table)
        console.print()


def _show_solvers(rows: "list[Solved]", console: "Console") -> None:
    from rich import box
    from rich.table import Table

    for case in dict.fromkeys(row.case for row in rows):
        here = [row for row in rows if row.case == case]
        table = Table(
            title=str(case),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD if console.is_terminal else None,
            padding=(0, 2, 0, 0),
        )
        for name in ("solver", "device", "ms", "as fast as POT", "value", "marginal error", "gain"):
            table.add_column(name, justify="left" if name in ("solver", "device") else "right", no_wrap=True)
        for row in here:
            peer = "pot_sinkhorn" if "sinkhorn" in row.solver else "pot_emd"
            theirs = [other.ms for other in here if other.solver == peer and other.device == row.device]
            ratio = f"{theirs[0] / row.ms:.1f}x" if theirs else "-"
            numbers = (f"{row.ms:.2f}", ratio, f"{row.value:.10g}", f"{row.marginal_error:.1e}", f"{row.gain:.2%}")
            table.add_row(row.solver, row.device, *numbers)
        console.print(table)
        console.print()


def _show_hiding(rows: "list[Hidden]", console: "Console") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="hidden behind a 100 ms step, one worker",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        padding=(0, 2, 0, 0),
    )
    for name in ("coupling", "n", "updates", "ms to solve", "slowdown", "of it waiting"):
        table.add_column(name, justify="left" if name == "coupling" else "right", no_wrap=True)
    for row in rows:
        waited = float(row["seconds_waited"]) / float(row["seconds_plain"])
        solved = f"{1000 * float(row['seconds_solved']):.0f}"
        numbers = (str(row["n"]), str(row["updates"]), solved, f"{float(row['slowdown']):.2%}", f"{waited:.2%}")
        table.add_row(escape(str(row["coupling"])), *numbers)
    console.print(table)
    console.print()


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return " ".join(_number(item) for item in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run the command line; every failure becomes one short message and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shows "?", not a traceback
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="hopflow", standalone_mode=False)
        if code == 130:  # typer's word for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else OK)
    except (KeyboardInterrupt, typer.Abort):
        _fail(INTERRUPTED, "interrupted")
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        _fail(*diagnose(error))


def diagnose(error: Exception) -> tuple[int, str]:
    """The exit code and the message that an error deserves."""
    if hasattr(error, "format_message"):  # a usage error; typer has moved its class, its method stays
        return USER, f"{error.format_message()}\nsee: hopflow --help; settings are written key=value"
    if isinstance(error, ValueError):
        return USER, str(error)
    if isinstance(error, OSError):
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return (USER if error.errno in USER_ERRNO else ENVIRONMENT), reason
    if isinstance(error, MemoryError):
        return ENVIRONMENT, "out of memory"
    if isinstance(error, ImportError) and not (error.name or "hopflow").startswith("hopflow"):
        return ENVIRONMENT, f"{error}\n{_how_to_install(error.name or '')}"
    where = "the traceback is above" if "--debug" in sys.argv else "run the command again with --debug"
    return BUG, (
        f"this is a bug in hopflow: {type(error).__name__}: {error}\n"
        f"please report it with the output of `hopflow doctor`; {where}"
    )


def _how_to_install(module: str) -> str:
    from .doctor import requirements

    _, extras = requirements()
    for extra, packages in sorted(extras.items(), key=lambda item: item[0] == "dev"):  # what a user would install first
        if module.partition(".")[0].lower() in (package.lower() for package in packages):
            return f"install it with: pip install 'hopflow[{extra}]'"
    return "the installation is incomplete; `hopflow doctor` shows what is missing"


def _fail(code: int, message: str) -> None:
    """At most six lines on stderr: a message that is longer is not read."""
    lines = message.strip().splitlines() or ["no reason given"]
    if len(lines) > 6:
        lines = [*lines[:5], "..."]
    typer.echo("\n".join([f"hopflow: {lines[0]}", *(f"  {line}" for line in lines[1:])]), err=True)
    sys.exit(code)
