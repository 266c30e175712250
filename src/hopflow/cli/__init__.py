"""The command line: parses arguments, calls the library, prints results.

Commands import torch and other slow packages inside their functions, so that `--help` is fast.

Exit codes: 0 ok, 1 bug, 2 user input, 3 environment, 4 interrupted.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from . import bench, config, data, reproduce
from .codes import BUG, ENVIRONMENT, INTERRUPTED, OK, USER
from .command_help import Command, CommandGroup, CommandWithSettings
from .compare import compare
from .demo import demo
from .doctor import doctor
from .eval import evaluate
from .import_weights import import_weights
from .infill import infill
from .oracle import oracle
from .output import echo, fitting
from .rectify import rectify
from .report import report
from .sample import sample
from .serve import serve
from .standard_streams import keep_open
from .train import train
from .training_log import Lines
from .usage_errors import usage_message

# a wrong file name typed by the user; every other OSError is a problem of the machine
USER_ERRNO = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
}

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=CommandWithSettings)(train)
app.command(cls=CommandWithSettings)(sample)
app.command(cls=CommandWithSettings)(infill)
app.command("eval", cls=CommandWithSettings)(evaluate)
app.command(cls=Command)(compare)
app.command(cls=CommandWithSettings)(report)
app.command(cls=CommandWithSettings)(rectify)
app.command("import", cls=CommandWithSettings)(import_weights)
app.command(cls=CommandWithSettings)(serve)
app.command(cls=CommandWithSettings)(demo)
app.command("list", cls=Command)(config.list_recipes)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(reproduce.app, name="reproduce")
app.command(cls=CommandWithSettings)(oracle)
app.command(cls=Command)(doctor)


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
    """Run the command line; every error becomes a short message and an exit code."""
    keep_open()
    # pages of 2 MiB for torch's large CPU tensors, which are faster to get: docs/speed.md
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    warnings.showwarning = _warn
    logging.lastResort = Lines(lambda text: echo(text, err=True), logging.WARNING)  # for messages outside of a training
    try:
        _check_working_directory()
        code = app(sys.argv[1:] or ["--help"], prog_name="hopflow", standalone_mode=False)
        if code == 130:  # typer's exit code for Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()  # fail now, not at the exit, if the disk is full
        sys.exit(code if isinstance(code, int) else OK)
    except (KeyboardInterrupt, typer.Abort) as error:
        _fail(INTERRUPTED, str(error) or "interrupted")
    except Exception as error:
        try:
            if "--debug" in sys.argv:
                echo(traceback.format_exc(), err=True, nl=False)
            _fail(*diagnose(error))
        except MemoryError:  # not even enough memory for the message
            os.write(2, b"hopflow: out of memory\n")
            os._exit(ENVIRONMENT)


def _check_working_directory() -> None:
    """Raise a ValueError if the working directory was deleted: MKL, a library of torch, ends the process there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ValueError("the working directory was deleted: change to another one with cd") from None


def diagnose(error: Exception) -> tuple[int, str]:
    """The exit code and the message for an error."""
    if hasattr(error, "format_message"):  # a usage error; the class differs between versions of typer
        return USER, usage_message(error, sys.argv[1:])
    if isinstance(error, ValueError):
        return USER, str(error)
    if _no_thread(error):
        return ENVIRONMENT, (
            "the system allows no more threads or processes: raise the limit (ulimit -u, or that of the container) "
            "or end other programs; saved checkpoints are kept"
        )
    if isinstance(error, MemoryError) or _no_memory(error):
        less = "use a smaller batch; in training accumulate=4, recompute=true, or --fresh with a smaller batch"
        return ENVIRONMENT, f"out of memory: {less}; saved checkpoints are kept"
    if isinstance(error, OSError):
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return (USER if error.errno in USER_ERRNO else ENVIRONMENT), reason
    if "InvalidCxxCompiler" in f"{type(error).__name__}: {error}":  # torch wraps it in another error
        return ENVIRONMENT, "torch needs a C++ compiler to compile a network: install g++, or set compile=false"
    if isinstance(error, ImportError) and not (error.name or "hopflow").startswith("hopflow"):
        says_how = "pip install" in str(error)
        return ENVIRONMENT, str(error) if says_how else f"{error}\n{_how_to_install(error.name or '')}"
    where = "the traceback is above" if "--debug" in sys.argv else "run the command again with --debug"
    return BUG, (
        f"this is a bug in hopflow: {type(error).__name__}: {error}\n"
        f"please report it with the output of `hopflow doctor`; {where}"
    )


def _no_memory(error: Exception) -> bool:
    """Whether memory ran out: an error number of the system, a class of torch on a GPU, else only a message."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, ImportError):
        return any(text in str(error) for text in ("failed to map segment", "cannot allocate memory"))
    return type(error).__name__ == "OutOfMemoryError" or any(
        text in str(error) for text in ("DefaultCPUAllocator", "std::bad_alloc", "Cannot allocate memory")
    )


def _no_thread(error: Exception) -> bool:
    """Whether no thread could be started; Python and torch have no class for it."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in ("can't start new thread", "Resource temporarily unavailable")
    )


def _how_to_install(module: str) -> str:
    from ..doctor import requirements

    _, extras = requirements()
    for extra, packages in sorted(extras.items(), key=lambda item: item[0] == "dev"):  # the extra dev last
        if module.partition(".")[0].lower() in (package.lower() for package in packages):
            return f"install it with: pip install 'hopflow[{extra}]'"
    return "the installation is incomplete; `hopflow doctor` shows what is missing"


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line, without its place in the code."""
    echo(fitting(f"hopflow: warning: {str(message).partition(chr(10))[0]}"), err=True)


def _fail(code: int, message: str) -> None:
    """Print at most six lines on stderr and exit."""
    lines = message.strip().splitlines() or ["unknown error"]
    if len(lines) > 6:
        lines = [*lines[:5], "..."]
    echo(fitting("\n".join([f"hopflow: {lines[0]}", *(f"  {line}" for line in lines[1:])])), err=True)
    try:
        sys.stdout.flush()
    except OSError:  # otherwise Python tries again at the exit, with another exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # after the loss of one of several processes torch's threads would delay the exit for minutes
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
