"""hopflow report, and the report that other commands write at their end."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .codes import ENVIRONMENT
from .options import Debug
from .output import echo
from .settings_parser import parse_settings
from .trained_network import check_folder, import_network_class

if TYPE_CHECKING:
    from ..report import RunOrFolder

SWITCH = "HOPFLOW_REPORT"
"""Environment variable: with the value `off` other commands write no report."""
MISSING = "no report: matplotlib is not installed, pip install 'hopflow[report]'"
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN... [KEY=VALUE]...", help="Folders of one or more runs; settings may follow.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Where to write (default: the run's folder, or ./report for several runs).",
        show_default=False,
    ),
]


def report(words: Words = None, out: Out = None, debug: Debug = False) -> None:
    """Write report.html about one run or several: one page that opens offline.

    Also writes report.md, report.json with every number, and all figures.
    Results of `hopflow eval` are included.
    """
    from .command_settings import ReportSettings

    settings = [word for word in words or [] if word.partition("=")[0] in ReportSettings.model_fields]
    runs = [Path(word) for word in words or [] if word not in settings]
    chosen = parse_settings(settings, ReportSettings)
    if not _can_draw():
        echo(f"hopflow: {MISSING}", err=True)
        raise typer.Exit(ENVIRONMENT)
    import_network_class(chosen.model)
    from ..report import load_runs, write
    from .output import progress_line

    if not runs:
        raise ValueError("report needs a run: hopflow report RUN")
    for run in runs:
        if not run.is_dir():
            check_folder(run)
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: --out needs a folder")
    loaded = load_runs(runs)  # a run that cannot be read is an error before anything is printed
    with progress_line() as progress:
        progress(f"writing a report on {', '.join(map(str, runs))}")
        path = write(loaded, out)
    echo(path)


def write_report_after(runs: "Sequence[RunOrFolder]", out: Path | None = None) -> Path | None:
    """Write the report at the end of another command; a failure is one line on stderr."""
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
    """Whether matplotlib is installed; does not import it, which is slow."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None
