"""hopflow oracle."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .options import Debug, Json, Settings
from .output import check_target, console, echo, figures, number, progress_line, write_json
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from rich.console import Console


def oracle(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Compute by enumeration how tight the bound b0 is in the paper's three examples (App. C.5 [C4])."""
    from .command_settings import OracleSettings

    chosen = parse_settings(settings, OracleSettings)
    check_target(json_file)
    from ..evaluation import tightness

    analyses = tightness.ANALYSES if chosen.analysis == "all" else (chosen.analysis,)
    with progress_line() as progress:
        rows = tightness.run(chosen.seed, analyses, progress)
    _show(rows, console())
    echo("Values are in nats. V2L2: 2 tokens, sequences of length 2; law: the distribution of the samples.")
    if json_file:
        names = ("analysis", "quantity", "paper", "exact")
        write_json(json_file, {"rows": [{name: getattr(row, name) for name in names} for row in rows]})


def _show(rows: Sequence[Any], screen: "Console") -> None:
    for analysis in dict.fromkeys(row.analysis for row in rows):
        table = figures(f"{analysis} analysis", 1, "quantity", "paper", "exact")
        for row in rows:
            if row.analysis == analysis:
                table.add_row(row.quantity, number(row.paper), number(row.exact))
        screen.print(table)
        screen.print()
