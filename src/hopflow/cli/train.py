"""hopflow train."""

import json
import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import training_log
from .codes import INTERRUPTED
from .output import box, check_target, console, duration, echo, progress_line, size, write_json
from .report import afterwards
from .words import Debug, Json, Offline, Settings, parse_keys

SAMPLES, EXCERPT = "samples.jsonl", 240
"""Where training keeps what it draws, and the characters of it that the closing panel shows."""

if TYPE_CHECKING:
    from ..recipes import Built, Plan, Recipe
    from ..training.loop import Run


def train(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE", show_default=False)],
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew in another folder; nothing is deleted.")] = False,
    offline: Offline = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Train a recipe of `hopflow list`, a recipe.toml, or a flow on a text of your own; or go on with a run's folder.

    The same command goes on where it stopped. Settings: `hopflow config keys`, e.g. steps=500 coupling=exact.
    """
    check_target(json_file)
    from ..recipes import build, plan, resolve, seconds_per_step
    from ..training.distributed import launched
    from ..training.signals import Interrupted

    recipe = resolve(what, parse_keys(settings or []), fresh=fresh)
    rank = int(os.environ.get("RANK", "0"))
    first = rank == 0
    with launched(recipe.device):
        with progress_line() if first else nullcontext(lambda text: None) as progress:
            progress(f"reading {recipe.data}")
            built = build(recipe, offline=offline, progress=progress)
            planned = plan(built, progress) if dry_run else None
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
        except Interrupted as stopped:  # typer keeps the message of no KeyboardInterrupt
            if first:
                echo(f"hopflow: {stopped}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if first:
        _show_run(run, recipe, json_file)
        afterwards([run.path])


def _what(built: "Built") -> str:
    """The first line: what is trained, on what, and where."""
    from ..training.devices import choose_device

    recipe, corpus = built.recipe, built.corpus
    weights = sum(p.numel() for p in built.model.parameters())
    return (
        f"{recipe.name}: {recipe.size} {recipe.model} with {weights:,} weights on {choose_device(recipe.device)}; "
        f"{corpus.rows:,} sequences of {recipe.length}, {corpus.vocab_size:,} tokens known"
    )


def _show_plan(built: "Built", plan: "Plan", json_file: Path | None) -> None:
    from dataclasses import asdict

    from ..training.devices import choose_device

    if json_file:
        write_json(json_file, asdict(plan))
    rows = {
        "parameters": f"{plan.parameters:,}",
        "memory": f"about {size(plan.memory_bytes)}, beside what torch itself takes",
        "a checkpoint": size(plan.checkpoint_bytes),
        "text": f"{built.corpus.rows:,} sequences of {built.recipe.length}, {built.corpus.vocab_size:,} tokens known",
        "tokens to train on": f"{plan.tokens:,} ({plan.epochs:.3g} epochs)",
        "time": f"about {duration(plan.seconds)} on {choose_device(built.recipe.device)}{_by(plan.threads)}",
    }
    if plan.ot_gain is not None:
        rows["coupling"] = (
            f"saves {plan.ot_gain:.2%} ± {plan.ot_gain_stderr:.2%} of the independent cost, "
            f"{duration(plan.ot_seconds or 0)} each in one thread"
        )
    box(console(), f"{built.recipe.name}, not trained", rows)


def _by(threads: int | None) -> str:
    return "" if threads is None else f" with {threads} thread{'s' * (threads > 1)}"


def _show_run(run: "Run", recipe: "Recipe", json_file: Path | None) -> None:
    from ..training.checkpoint import folder_of, steps
    from ..training.folder import CHECKPOINTS
    from ..training.metrics import best, read

    rows, last, home = read(run.path / "metrics.jsonl"), run.last, run.path / CHECKPOINTS
    lowest = best(rows, steps(home))  # of what was saved: it can be sampled
    kept = None if lowest is None else str(folder_of(home, lowest["step"] + 1))
    if json_file:
        facts = {"run": str(run.path), "step": run.step, "recipe_hash": run.recipe_hash}
        write_json(json_file, {**facts, "last": dict(last), "best": lowest, "best_checkpoint": kept})
    shown = {"steps": f"{run.step:,}, {run.step * recipe.batch * recipe.length:,} tokens"}
    if "loss" in last:
        shown |= {"time": duration(last["seconds"]), "loss": f"{last['loss']:.4f} nats per token"}
    shown |= training_log.looked(last)
    if lowest is not None and lowest["step"] != last["step"]:
        number = next(iter(training_log.looked(lowest).values()))
        shown["best"] = f"{number}, at step {lowest['step'] + 1:,}: hopflow sample {shlex.quote(str(kept))}"
    if text := sample_of(run.path):
        shown["a sample"] = text
    shown["folder"] = f"{run.path}: {', '.join(sorted(f.name for f in run.path.iterdir() if f.name[0] != '.'))}"
    box(console(), "trained", shown | _next(shlex.quote(str(run.path)), recipe, run.step))


def _next(run: str, recipe: "Recipe", steps: int) -> dict[str, str]:
    """What to type next, and why."""
    commands = {
        "draw from it": f"hopflow sample {run}",
        "measure it": f"hopflow eval {run}",
        "look at it": f"hopflow report {run}",
        "train longer": f"hopflow train {run} steps={2 * steps}",
        "all its keys": f"hopflow config show {run}",
    }
    if recipe.data == "-":  # nobody kept the text
        del commands["measure it"], commands["train longer"]
    elif recipe.rate != "constant":  # where the rate falls to its end, a longer run is another one
        del commands["train longer"]
    return commands


def sample_of(run: Path) -> str | None:
    """The first of the texts that the last evaluation drew, on one line and shortened."""
    from ..symbols import harmless

    try:
        with (run / SAMPLES).open(encoding="utf-8") as file:
            text = str(json.loads(file.readline())["text"])
    except (OSError, ValueError, KeyError, TypeError):  # none was drawn, or the file is cut off
        return None
    line = " ".join(harmless(text, keep="\n\t").split())
    return (line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…") or None
