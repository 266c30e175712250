"""hopflow report, and the report that other commands write when they are done."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .codes import ENVIRONMENT
from .output import echo
from .words import Debug

if TYPE_CHECKING:
    from ..report import Told

SWITCH = "HOPFLOW_REPORT"
"""The environment variable that stops other commands from writing reports if it is `off`."""
MISSING = "no report: matplotlib is not installed, pip install 'hopflow[report]'"
Runs = Annotated[list[Path] | None, typer.Argument(metavar="RUN...", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Where to write; one run's own folder, ./report for several.",
        show_default=False,
    ),
]


def report(runs: Runs = None, out: Out = None, debug: Debug = False) -> None:
    """Write a report on one run, or on several side by side: report.html, one page that opens offline.

    It also writes report.md, report.json with every number, and the figures as SVG and PNG. Results of `hopflow eval`
    are included.
    """
    if not _can_draw():
        echo(f"hopflow: {MISSING}", err=True)
        raise typer.Exit(ENVIRONMENT)
    from ..report import write
    from .output import progress_line

    with progress_line() as progress:
        progress(f"reporting on {', '.join(map(str, runs or []))}")
        path = write(runs or [], out)
    echo(path)


def afterwards(runs: "Sequence[Told]", out: Path | None = None) -> Path | None:
    """Write the report at the end of another command; if it fails, print one line on stderr."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return None
    if not _can_draw():
        echo(MISSING, err=True)
        return None
    from ..report import write

    try:
        path = write(runs, out)
    except Exception as error:  # the command itself has succeeded
        reason = str(error).partition("\n")[0] or type(error).__name__
        echo(f"no report: {reason}", err=True)
        return None
    echo(f"report: {path}", err=True)
    return path


def _can_draw() -> bool:
    """Whether matplotlib is installed, without the time to import it."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None
