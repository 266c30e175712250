"""hopflow doctor and hopflow oracle."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .codes import ENVIRONMENT
from .output import check_target, console, figures, number, progress_line, write_json
from .words import Debug, Json, Settings, one_of, parse_settings, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from ..evaluation.tightness import Row


def doctor(json_file: Json = None, debug: Debug = False) -> None:
    """Show versions, devices and what is missing; paste it into an issue."""
    from .. import doctor as physician

    check_target(json_file)
    report = physician.examine(Path.cwd())
    if json_file:
        write_json(json_file, report.as_json())
    physician.show(report, console())
    if not report.healthy:
        raise typer.Exit(ENVIRONMENT)


def oracle(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Run the paper's three tightness analyses (App. C.5 [C4]) exactly: paper | exact.

    Settings: seed=0, analysis=all (or first, second, third).
    """
    chosen = parse_settings(
        settings or [], {"seed": whole_number, "analysis": one_of("all", "first", "second", "third")}
    )
    check_target(json_file)
    from ..evaluation import tightness

    with progress_line() as progress:
        analysis = chosen.get("analysis", "all")
        analyses = tightness.ANALYSES if analysis == "all" else (analysis,)
        rows = tightness.run(chosen.get("seed", 0), analyses, progress)
    _show_rows(rows, console())
    if json_file:
        names = ("analysis", "quantity", "paper", "exact")
        write_json(json_file, {"rows": [{name: getattr(row, name) for name in names} for row in rows]})


def _show_rows(rows: "list[Row]", screen: "Console") -> None:
    for analysis in dict.fromkeys(row.analysis for row in rows):
        table = figures(f"{analysis} analysis", 1, "quantity", "paper", "exact")
        for row in rows:
            if row.analysis == analysis:
                table.add_row(row.quantity, number(row.paper), number(row.exact))
        screen.print(table)
        screen.print()
