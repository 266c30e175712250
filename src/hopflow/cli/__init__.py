"""The command line: parses, calls, prints. Commands import what they need, so that `--help` is immediate.

Exit codes: 0 ok, 1 bug, 2 user input, 3 environment, 4 interrupted.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from .. import __version__
from . import bench, config, data, demo, infill, looks, reproduce, sample, train
from .codes import BUG, ENVIRONMENT, INTERRUPTED, OK, USER
from .compare import compare
from .eval import evaluate
from .output import echo
from .report import report
from .standard_streams import keep_open
from .training_log import Lines

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
app.command()(train.train)
app.command()(sample.sample)
app.command()(infill.infill)
app.command("eval")(evaluate)
app.command()(compare)
app.command()(report)
app.command()(demo.demo)
app.command("list")(config.list_recipes)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(reproduce.app, name="reproduce")
app.command()(looks.oracle)
app.command()(looks.doctor)


def _version(asked: bool) -> bool:
    if asked:
        echo(f"hopflow {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def hopflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Discrete flow matching for text with as few token hops as possible."""


def main() -> None:
    """Run the command line; every failure becomes one short message and an exit code."""
    keep_open()
    warnings.showwarning = _warn
    logging.lastResort = Lines(lambda text: echo(text, err=True), logging.WARNING)  # what is logged outside of training
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="hopflow", standalone_mode=False)
        if code == 130:  # typer's word for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()  # a disk that is full says so now, and not at the exit
        sys.exit(code if isinstance(code, int) else OK)
    except (KeyboardInterrupt, typer.Abort) as error:
        _fail(INTERRUPTED, str(error) or "interrupted")
    except Exception as error:
        try:
            if "--debug" in sys.argv:
                echo(traceback.format_exc(), err=True, nl=False)
            _fail(*diagnose(error))
        except MemoryError:  # too little is left even for the message
            os.write(2, b"hopflow: out of memory\n")
            os._exit(ENVIRONMENT)


def diagnose(error: Exception) -> tuple[int, str]:
    """The exit code and the message that an error deserves."""
    if hasattr(error, "format_message"):  # a usage error; typer has moved its class, its method stays
        return USER, f"{error.format_message()}\nsee: hopflow --help; settings are written key=value"
    if isinstance(error, ValueError):
        return USER, str(error)
    if _no_thread(error):
        return ENVIRONMENT, (
            "the system allows no more threads or processes: raise the limit (ulimit -u, or the container's), "
            "or end other programs; what was saved is kept"
        )
    if isinstance(error, MemoryError) or _no_memory(error):
        less = "try less at once; in training accumulate=4, recompute=true, or --fresh with a smaller batch"
        return ENVIRONMENT, f"out of memory: {less}; what was saved is kept"
    if isinstance(error, OSError):
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return (USER if error.errno in USER_ERRNO else ENVIRONMENT), reason
    if "InvalidCxxCompiler" in f"{type(error).__name__}: {error}":  # torch wraps it in an error of its own
        return ENVIRONMENT, "to compile a network torch needs a C++ compiler: install g++, or set compile=false"
    if isinstance(error, ImportError) and not (error.name or "hopflow").startswith("hopflow"):
        return ENVIRONMENT, f"{error}\n{_how_to_install(error.name or '')}"
    where = "the traceback is above" if "--debug" in sys.argv else "run the command again with --debug"
    return BUG, (
        f"this is a bug in hopflow: {type(error).__name__}: {error}\n"
        f"please report it with the output of `hopflow doctor`; {where}"
    )


def _no_memory(error: Exception) -> bool:
    """torch says so in words on a CPU, and by its own class on a GPU; the system by a number, the linker in words."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, ImportError):
        return any(words in str(error) for words in ("failed to map segment", "cannot allocate memory"))
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in str(error) for words in ("DefaultCPUAllocator", "std::bad_alloc", "Cannot allocate memory")
    )


def _no_thread(error: Exception) -> bool:
    """Python and torch have no class for it."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't start new thread", "Resource temporarily unavailable")
    )


def _how_to_install(module: str) -> str:
    from ..doctor import requirements

    _, extras = requirements()
    for extra, packages in sorted(extras.items(), key=lambda item: item[0] == "dev"):  # what a user would install first
        if module.partition(".")[0].lower() in (package.lower() for package in packages):
            return f"install it with: pip install 'hopflow[{extra}]'"
    return "the installation is incomplete; `hopflow doctor` shows what is missing"


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """What a library says in passing, without the line of code it said it in."""
    echo(f"hopflow: warning: {str(message).partition(chr(10))[0]}", err=True)


def _fail(code: int, message: str) -> None:
    """At most six lines on stderr: a message that is longer is not read."""
    lines = message.strip().splitlines() or ["no reason given"]
    if len(lines) > 6:
        lines = [*lines[:5], "..."]
    echo("\n".join([f"hopflow: {lines[0]}", *(f"  {line}" for line in lines[1:])]), err=True)
    try:
        sys.stdout.flush()
    except OSError:  # what is left would be tried again at the exit, which then has a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # where one of several processes is lost, torch's own threads wait for it for minutes, also at the exit
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
