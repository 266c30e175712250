"""hopflow eval."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .build_sampler import evaluated_sampler
from .options import Debug, Json, Offline, Settings
from .output import check_target, echo, page_width, progress_line, write_json
from .report import write_report_after
from .settings_parser import parse_settings
from .trained_network import check_folder, import_network_class, show_origin, threads

if TYPE_CHECKING:
    from .command_settings import EvalSettings

NOT_OF_SUITE = ("device", "threads", "model", "sampler", "per_call", "grid", "refresh")
"""Settings of the command that are not fields of `Suite`, or not in the same form."""


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, a checkpoint or a saved network, novels (in pretrained/novels), or hub:USER/NAME.",
            show_default=False,
        ),
    ],
    settings: Settings = None,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Measure a run: perplexity bounds on held-out text, and the quality of its samples, with standard errors.

    The results are printed, and added to RUN/eval.json and RUN/eval.md.
    """
    from .command_settings import EvalSettings

    chosen = parse_settings(settings, EvalSettings)
    check_target(json_file)
    from ..evaluation import record
    from ..evaluation.evaluated_model import EvaluatedModel
    from ..evaluation.likelihood import missing_bounds
    from ..evaluation.suite import Suite
    from ..evaluation.table import page
    from ..network.network import device_of
    from ..runs.named_networks import network_place
    from ..runs.pretrained import newest
    from ..runs.run_folder import is_run

    import_network_class(chosen.model)
    place, rows, remarks, complete = network_place(run), [], [], False
    folder = Path(place)
    if isinstance(place, Path):
        check_folder(place)
    suite = Suite.of(_suite_keys(chosen))
    try:
        with progress_line() as progress:
            progress(f"loading {run}")
            subject = EvaluatedModel.load(place, chosen.device, offline=offline)
            show_origin(subject.name if isinstance(place, str) else None)
            if is_run(folder):
                record.check(folder)  # a result that cannot be stored is refused before the work
            remarks = missing_bounds(subject.flow)
            device = device_of(subject.model)
            with threads(newest(folder), subject.model, subject.flow, subject.length, device, chosen.threads):
                for row in suite.run(subject, offline=offline, progress=progress):
                    rows.append(row)
        complete = True
    finally:  # rows that were measured are shown and stored even if a later one fails
        if rows or (complete and remarks):
            echo(page(rows, remarks, page_width()), nl=False)
        if is_run(folder) and rows:
            record.keep(folder, rows, remarks)
        if json_file and rows:
            write_json(json_file, {"rows": [row.as_json() for row in rows]})
    if is_run(folder):
        echo(f"\nall results: {folder / record.FILE}, {folder / record.PAGE}", err=True)
        write_report_after([folder])


def _suite_keys(settings: "EvalSettings") -> dict[str, Any]:
    """The keys of `Suite` that were typed, with the sampler as an object."""
    keys = settings.typed(*NOT_OF_SUITE)
    if keys.get("detokenise") == "none":
        keys["detokenise"] = "as is"
    if "metric" in keys:
        keys["validators"] = keys.pop("metric")
    if (sampler := evaluated_sampler(settings)) is not None:
        keys["sampler"] = sampler
    return keys
