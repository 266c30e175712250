"""hopflow doctor."""

from pathlib import Path

import typer

from .codes import ENVIRONMENT
from .options import Debug, Json
from .output import check_target, console, write_json


def doctor(json_file: Json = None, debug: Debug = False) -> None:
    """Show versions, devices and missing packages; paste the output into a bug report."""
    from .. import doctor as diagnosis

    check_target(json_file)
    report = diagnosis.examine(Path.cwd())
    if json_file:
        write_json(json_file, report.as_json())
    diagnosis.show(report, console())
    if not report.healthy:
        raise typer.Exit(ENVIRONMENT)
