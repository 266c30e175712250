"""hopflow bench: speed side by side with others, in one run."""

from typing import TYPE_CHECKING

import typer

from .output import check_target, console, progress_line, write_json
from .words import Debug, Json, Settings, batch_size, one_of, parse_settings, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.ot import Row as Solved
    from ..bench.pairs import Row as Hidden

app = typer.Typer(help="Measure speed side by side with others, in one run.")


@app.command("ot")
def bench_ot(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time the couplings of a batch beside POT: exact and Sinkhorn, same costs, same run; then behind a training step.

    Settings: full=false (true: every size, length and width), n=64, 512 and 2048, seed=0.
    """
    chosen = parse_settings(settings or [], {"full": one_of("true", "false"), "n": batch_size, "seed": whole_number})
    check_target(json_file)
    from ..bench import ot, pairs

    with progress_line() as progress:
        rows = ot.run(
            full=chosen.get("full") == "true", n=chosen.get("n"), seed=chosen.get("seed", 0), progress=progress
        )
        hidden = pairs.run(progress)
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows], "hiding": hidden})
    _show_solvers(rows, console())
    _show_hiding(hidden, console())


def _show_solvers(rows: "list[Solved]", screen: "Console") -> None:
    from rich import box
    from rich.table import Table

    for case in dict.fromkeys(row.case for row in rows):
        here = [row for row in rows if row.case == case]
        table = Table(
            title=str(case),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD if screen.is_terminal else None,
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
        screen.print(table)
        screen.print()


def _show_hiding(rows: "list[Hidden]", screen: "Console") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="hidden behind a 100 ms step, one worker",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if screen.is_terminal else None,
        padding=(0, 2, 0, 0),
    )
    for name in ("coupling", "n", "updates", "ms to solve", "slowdown", "of it waiting"):
        table.add_column(name, justify="left" if name == "coupling" else "right", no_wrap=True)
    for row in rows:
        waited = float(row["seconds_waited"]) / float(row["seconds_plain"])
        solved = f"{1000 * float(row['seconds_solved']):.0f}"
        numbers = (str(row["n"]), str(row["updates"]), solved, f"{float(row['slowdown']):.2%}", f"{waited:.2%}")
        table.add_row(escape(str(row["coupling"])), *numbers)
    screen.print(table)
    screen.print()
