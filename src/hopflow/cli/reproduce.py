"""hopflow reproduce: train and measure the paper's tables again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..system import atomic
from .command_help import CommandGroup, CommandWithSettings
from .options import Debug, Json, Offline, Settings
from .output import check_target, console, echo, lines, table, write_json
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from .reproduce_settings import TextStudySettings

app = typer.Typer(help="Reproduce the tables of the paper.", cls=CommandGroup)
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the runs.")]

Results = Annotated[
    Path | None, typer.Option("--results", metavar="FOLDER", help="Folder of the result files, one per run.")
]
Cells = Annotated[Path, typer.Option("--cells", metavar="FOLDER", help="Folder of the result files, one per run.")]
Work = Annotated[Path, typer.Option("--work", metavar="FOLDER", help="Folder of the training runs.")]
PageOnly = Annotated[bool, typer.Option("--table", help="Only rewrite the results page from the files.")]
NetworkFolder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the network.")]
JudgeOnly = Annotated[
    bool, typer.Option("--judge", help="Only score stored samples by the judges of later=…, then rewrite the page.")
]


@app.command("morse", cls=CommandWithSettings)
def morse(
    settings: Settings = None,
    out: Out = Path("runs/morse"),
    results: Results = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Reproduce Tables 1 [toy-OT] and 5 [toy-OT2]: hops, predicted hops and bounds, averaged over seeds.

    Takes hours on two CPU cores. Runs that exist in the folder are measured, not trained again. With --results, the
    numbers of every run are written to a file, and runs that have one are skipped.
    """
    from .reproduce_settings import MorseSettings

    chosen = parse_settings(settings, MorseSettings)
    check_target(json_file)
    from ..reproduce import morse as table_1

    with lines() as progress:
        rows = table_1.run(out, results=results, offline=offline, say=progress, **chosen.typed())
    _show(rows)
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows]})


@app.command("text", cls=CommandWithSettings)
def text(
    settings: Settings = None,
    cells: Cells = Path("docs/results/text"),
    work: Work = Path("runs/text"),
    page_only: PageOnly = False,
    judge_only: JudgeOnly = False,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Run the study of the paper's claims about text.

    Trains, samples and evaluates every run (variant and seed) that has no result file yet, and writes one JSON file
    for each. The study can be stopped at any time and continued on another machine: runs that have a file are not run
    again. The autoregressive judge is trained once and kept in the folder --work. budget=full reads the novels in
    $HOPFLOW_DATA.
    """
    from .reproduce_settings import TextStudySettings

    chosen = parse_settings(settings, TextStudySettings)
    from ..reproduce.text import page, pictures, queue
    from ..reproduce.text.budgets import BUDGETS

    _run_study(chosen, cells, work, page_only, judge_only, offline)
    budget = BUDGETS[chosen.budget]
    if budget.page is None:
        echo(page.page(cells, budget.name), nl=False)
        return
    target = cells.parent / budget.page
    if page_only or judge_only:
        _write_pictures(target, lambda: pictures.pictures(cells, budget.name))
    atomic.write(target, page.page(cells, budget.name).encode())
    echo(f"{target} ({len(queue.missing(budget, cells))} runs missing)")


@app.command("rectified", cls=CommandWithSettings)
def rectified(
    settings: Settings = None,
    cells: Cells = Path("docs/results/rectified"),
    work: Work = Path("runs/rectified"),
    page_only: PageOnly = False,
    judge_only: JudgeOnly = False,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Run the study of rectified pairs: hops against quality.

    Trains flows on independent pairs, on OT pairs, and on pairs that a trained flow has drawn, and measures hops,
    bounds and samples with few and many steps. Like `reproduce text` it writes one JSON file for each run, and can be
    stopped and continued at any time.
    """
    from .reproduce_settings import RectifiedStudySettings

    chosen = parse_settings(settings, RectifiedStudySettings)
    from ..reproduce.rectified import page, pictures

    _run_study(chosen, cells, work, page_only, judge_only, offline)
    target = cells.parent / "rectified.md"
    if page_only or judge_only:
        _write_pictures(target, lambda: pictures.pictures(cells))
    atomic.write(target, page.page(cells).encode())
    echo(str(target))


def _run_study(
    chosen: "TextStudySettings", cells: Path, work: Path, page_only: bool, judge_only: bool, offline: bool
) -> None:
    """Run the missing cells of a study, or let judges score the stored samples, or neither."""
    from ..reproduce.text import late_judges, queue

    with lines() as progress:
        if judge_only:
            how = chosen.typed("minutes", "expect", "limit", "later", "shared", "commit")
            late_judges.score_stored_texts(cells, **{"budget": chosen.budget, **how}, offline=offline, say=progress)
        elif not page_only:
            how = {"budget": chosen.budget, **chosen.typed()}
            queue.run(cells, work=work, offline=offline, say=progress, **how)


@app.command("network", cls=CommandWithSettings)
def network(
    settings: Settings = None,
    out: NetworkFolder = Path("pretrained/novels"),
    work: Work = Path("runs/novels"),
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Train the network novels, and write it with its evaluation and model card.

    The training is resumed from the folder --work. The texts are novels in $HOPFLOW_DATA.
    """
    from .reproduce_settings import NetworkSettings

    chosen = parse_settings(settings, NetworkSettings)
    from ..reproduce import network as novels

    with lines() as progress:
        folder = novels.run(out, work=work, offline=offline, say=progress, **chosen.typed())
    echo(f"{folder}: try `hopflow sample {folder}`")


def _write_pictures(page: Path, draw: Callable[[], Mapping[str, str]]) -> None:
    """Draw the pictures of a results page in docs; elsewhere only the page is written."""
    drawings = page.resolve().parent.parent / "pictures"
    if drawings.is_dir():
        for name, drawing in draw().items():
            atomic.write(drawings / name, drawing.encode())


def _show(rows: Sequence[Any]) -> None:
    from ..bounds.estimate import plus_minus
    from ..reproduce.morse import QUANTITIES

    shown = table("recipe", "seeds", *QUANTITIES)
    for row in rows:
        numbers = (plus_minus(row.values[key], row.errors[key]) for key in QUANTITIES)
        shown.add_row(row.recipe, str(row.seeds), *numbers)
    console().print(shown)
