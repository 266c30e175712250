"""hopflow reproduce: the paper's tables, trained again."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import check_target, console, lines, table, write_json
from .words import Debug, Json, Offline, Settings, batch_size, parse_settings, whole_number

if TYPE_CHECKING:
    from ..reproduce.morse import Row

app = typer.Typer(help="Train the paper's tables again.")
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the runs are kept.")]


@app.command("morse")
def morse(
    settings: Settings = None,
    out: Out = Path("runs/morse"),
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Table 1 [toy-OT] at laptop size: hops, their prediction and bounds, over seeds. Hours on two CPU cores.

    Settings: seeds=3, steps=2000, samples=1000, sampler_steps=1024, device=auto.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "seeds": batch_size,
        "steps": whole_number,
        "samples": batch_size,
        "sampler_steps": batch_size,
        "device": str,
    }
    chosen = parse_settings(settings or [], readers)
    check_target(json_file)
    from ..reproduce import morse as table_1

    with lines() as say:
        rows = table_1.run(out, offline=offline, say=say, **chosen)
    _show(rows)
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows]})


def _show(rows: "list[Row]") -> None:
    from ..estimate import plus_minus
    from ..reproduce.morse import QUANTITIES

    shown = table("recipe", "seeds", *QUANTITIES)
    for row in rows:
        numbers = (plus_minus(row.values[key], row.errors[key]) for key in QUANTITIES)
        shown.add_row(row.recipe, str(row.seeds), *numbers)
    console().print(shown)
