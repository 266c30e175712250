"""hopflow train."""

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..system.durations import duration
from . import training_log
from .codes import INTERRUPTED
from .options import Debug, Json, Offline, Settings
from .output import box, check_target, console, echo, progress_line, size, write_json
from .report import write_report_after
from .settings_parser import unread_settings
from .trained_network import import_network_class

SAMPLES, EXCERPT = "samples.jsonl", 240
"""File of the samples drawn in training, and how many characters of one the summary shows."""

LARGEST_SAMPLES = 1 << 28
"""Bytes of that file; a larger one is not read."""

if TYPE_CHECKING:
    from ..recipes import Built, Recipe, Requirements
    from ..training.train import Run


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|FILE|RUN",
            help=(
                "A text file, a folder of texts, a file with one sequence per row (.npy, .npz, .fasta, .smi, .csv), a "
                "recipe of `hopflow list`, a recipe.toml, or the folder of a run."
            ),
            show_default=False,
        ),
    ],
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print parameters, memory and time; do not train.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run in a new folder; the existing run is kept.")
    ] = False,
    offline: Offline = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Train on a text file, or with the settings of a recipe.

    The same command continues an interrupted run.
    """
    check_target(json_file)
    keys = unread_settings(settings)  # before torch is imported
    from ..recipes import build, requirements, resolve, seconds_per_step
    from ..runs.devices import choose_device
    from ..training.distributed import launched, launcher_number
    from ..training.signals import Interrupted

    import_network_class(keys["model"] if ":" in keys.get("model", "") else None)
    recipe = resolve(what, keys, fresh=fresh)
    rank = launcher_number("RANK", 0)
    first = rank == 0
    with launched(recipe.device):
        choose_device(recipe.device)  # refuse one that is not here before the text is read
        with progress_line() if first else nullcontext(lambda text: None) as progress:
            progress(f"loading {recipe.data}")
            built = build(recipe, offline=offline, progress=progress)
            planned = requirements(built, progress) if dry_run else None
            pace = None
            if first and not dry_run:
                progress("timing a step")
                pace = seconds_per_step(built)
        if planned is not None:
            if first:
                _show_plan(built, planned, json_file)
            return
        if first:
            echo(_what(built), err=True)
        try:
            with training_log.training(console(stderr=True), recipe, rank, pace) as log:
                run = built.train(fresh=fresh, logger=log.row, progress=log.step)
        except Interrupted as stopped:  # typer drops the message of a KeyboardInterrupt
            if first:
                echo(f"hopflow: {stopped}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if first:
        _show_run(run, recipe, json_file)
        write_report_after([run.path])


def _what(built: "Built") -> str:
    """The first line of the log: network, device and text."""
    from ..runs.devices import choose_device

    recipe, corpus = built.recipe, built.corpus
    weights = sum(p.numel() for p in built.model.parameters())
    return (
        f"{recipe.name}: {recipe.size} {recipe.model} with {weights:,} parameters on {choose_device(recipe.device)}; "
        f"{corpus.rows:,} sequences of {recipe.length} tokens, vocabulary of {corpus.vocab_size:,}"
    )


def _show_plan(built: "Built", plan: "Requirements", json_file: Path | None) -> None:
    from dataclasses import asdict

    from ..runs.devices import choose_device

    if json_file:
        write_json(json_file, asdict(plan))
    rows = {
        "parameters": f"{plan.parameters:,}",
        "memory": f"about {size(plan.memory_bytes)}, plus what torch itself needs",
        "checkpoint": size(plan.checkpoint_bytes),
        "text": (
            f"{built.corpus.rows:,} sequences of {built.recipe.length} tokens, "
            f"vocabulary of {built.corpus.vocab_size:,}"
        ),
        "training tokens": f"{plan.tokens:,} ({plan.epochs:.3g} epochs)",
        "time": f"about {duration(plan.seconds)} on {choose_device(built.recipe.device)}{_with_threads(plan.threads)}",
    }
    if plan.ot_gain is not None:
        rows["coupling"] = (
            f"pairs cost {plan.ot_gain:.2%} ± {plan.ot_gain_stderr:.2%} less than independent pairs; "
            f"{duration(plan.ot_seconds or 0)} per OT batch on one CPU thread"
        )
    box(console(), f"{built.recipe.name}, not trained", rows)


def _with_threads(threads: int | None) -> str:
    return "" if threads is None else f" with {threads} thread{'s' * (threads > 1)}"


def _show_run(run: "Run", recipe: "Recipe", json_file: Path | None) -> None:
    from ..runs.checkpoint import folder_of, steps
    from ..runs.metrics import best, read
    from ..runs.run_folder import CHECKPOINTS

    rows, last, home = read(run.path / "metrics.jsonl"), run.last, run.path / CHECKPOINTS
    lowest = best(rows, steps(home))  # among saved checkpoints, so that it can be sampled
    kept = None if lowest is None else str(folder_of(home, lowest["step"] + 1))
    if json_file:
        facts = {"run": str(run.path), "step": run.step, "recipe_hash": run.recipe_hash}
        write_json(json_file, {**facts, "last": dict(last), "best": lowest, "best_checkpoint": kept})
    shown = {"steps": f"{run.step:,}, {run.step * recipe.batch * recipe.length:,} tokens"}
    if "loss" in last:
        shown |= {"time": duration(last["seconds"]), "loss": f"{last['loss']:.4f} nats per token"}
    shown |= training_log.evaluation_results(last)
    if lowest is not None and lowest["step"] != last["step"]:
        number = next(iter(training_log.evaluation_results(lowest).values()))
        shown["best"] = f"{number}, at step {lowest['step'] + 1:,}: hopflow sample {shlex.quote(str(kept))}"
    if text := sample_of(run.path):
        shown["sample"] = text
    shown["folder"] = f"{run.path}: {', '.join(sorted(f.name for f in run.path.iterdir() if f.name[0] != '.'))}"
    box(console(), "trained", shown | _next(shlex.quote(str(run.path)), recipe, run.step))


def _next(run: str, recipe: "Recipe", steps: int) -> dict[str, str]:
    """Commands to run next."""
    custom = f" model={recipe.model}" if ":" in recipe.model else ""
    commands = {
        "draw samples": f"hopflow sample {run}{custom}",
        "evaluate": f"hopflow eval {run}{custom}",
        "write report": f"hopflow report {run}{custom}",
        "train longer": f"hopflow train {run} steps={2 * steps}{custom}",
        "show settings": f"hopflow config show {run}",
    }
    if recipe.data == "-":  # the text from stdin was not stored
        del commands["evaluate"], commands["train longer"]
    elif recipe.rate != "constant":  # the learning rate depends on the number of steps
        del commands["train longer"]
    return commands


def sample_of(run: Path) -> str | None:
    """The first text of the last evaluation, shortened to one line."""
    from ..system import regular_file
    from ..system.safe_text import harmless

    try:
        text = str(json.loads(regular_file.read(run / SAMPLES, LARGEST_SAMPLES).partition(b"\n")[0])["text"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no sample was drawn, or the file is incomplete
        return None
    line = " ".join(harmless(text, keep="\n\t").split())
    return (line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…") or None
