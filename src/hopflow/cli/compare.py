"""hopflow compare."""

from pathlib import Path
from typing import Annotated

import typer

from .output import check_target, echo, page_width, write_json
from .report import afterwards
from .words import Debug, Json

Runs = Annotated[list[Path] | None, typer.Argument(metavar="RUN RUN...", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the tables to FILE, as markdown.")]


def compare(runs: Runs = None, out: Out = None, json_file: Json = None, debug: Debug = False) -> None:
    """Show what `hopflow eval` measured of two or more runs side by side: differences with their errors, from the
    first run; the sampling steps one needs to be as good as another; and what differs in their recipes. The same with
    pictures is written to report/report.html.
    """
    check_target(out)
    check_target(json_file)
    from .. import atomic
    from ..evaluation.compare import Comparison
    from ..evaluation.compare_table import page

    found = Comparison.of(runs or [])
    if json_file:
        write_json(json_file, found.as_json())
    if out:
        atomic.write(out, page(found).encode())
        echo(f"written to {out}", err=True)
    else:
        echo(page(found, page_width()), nl=False)
    afterwards(list(runs or []))
