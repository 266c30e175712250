"""hopflow compare."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Debug, Json, Offline
from .output import check_target, echo, page_width, write_json
from .report import write_report_after

Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN...", help="Folders of two or more runs, or hub:USER/NAME.", show_default=False),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the tables to FILE as markdown.")]


def compare(
    runs: Runs = None, out: Out = None, json_file: Json = None, offline: Offline = False, debug: Debug = False
) -> None:
    """Compare what `hopflow eval` measured of two or more runs.

    Prints the differences from the first run with standard errors, how many sampler steps each run needs to reach
    another run's quality, and the settings in which the recipes differ. Figures are written to report/report.html.
    """
    check_target(out)
    check_target(json_file)
    from ..evaluation.compare import Comparison
    from ..evaluation.compare_table import page
    from ..system import atomic

    found = Comparison.of(runs or [], offline=offline)
    if json_file:
        write_json(json_file, found.as_json())
    if out:
        atomic.write(out, page(found).encode())
        echo(f"written to {out}", err=True)
    else:
        echo(page(found, page_width()), nl=False)
    if local := [run for run in runs or [] if run.is_dir()]:
        write_report_after(local)
