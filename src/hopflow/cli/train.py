"""hopflow train."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import training_log
from .output import box, check_target, console, duration, progress_line, size, write_json
from .words import Debug, Json, Offline, Settings, parse_keys

if TYPE_CHECKING:
    from ..recipes import Built, Plan, Recipe
    from ..training.loop import Run

INTERRUPTED = 4


def train(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE", show_default=False)],
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew in another folder; nothing is deleted.")] = False,
    offline: Offline = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Train a recipe of `hopflow list`, a recipe.toml, or a flow on a text file of your own.

    The same command goes on where it stopped. Settings: `hopflow config keys`, e.g. steps=500 coupling=exact.
    """
    check_target(json_file)
    from ..recipes import build, plan, resolve
    from ..training.distributed import launched
    from ..training.signals import Interrupted

    recipe = resolve(what, parse_keys(settings or []))
    with launched(recipe.device):
        with progress_line() as progress:
            progress(f"reading {recipe.data}")
            built = build(recipe, offline=offline, progress=progress)
            planned = plan(built, progress) if dry_run else None
        if planned is not None:
            _show_plan(built, planned, json_file)
            return
        first = int(os.environ.get("RANK", "0")) == 0
        try:
            with training_log.training(console(stderr=True), recipe.steps) as log:
                run = built.train(fresh=fresh, logger=log.row if first else None, progress=log.step if first else None)
        except Interrupted as stopped:  # typer keeps the message of no KeyboardInterrupt
            if first:
                typer.echo(f"hopflow: {stopped}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if first:
        _show_run(run, what, recipe, json_file)


def _show_plan(built: "Built", plan: "Plan", json_file: Path | None) -> None:
    from dataclasses import asdict

    if json_file:
        write_json(json_file, asdict(plan))
    rows = {
        "parameters": f"{plan.parameters:,}",
        "memory": f"about {size(plan.memory_bytes)}",
        "a checkpoint": size(plan.checkpoint_bytes),
        "text": f"{built.corpus.rows:,} sequences of {built.recipe.length}, {built.corpus.vocab_size:,} tokens known",
        "tokens to train on": f"{plan.tokens:,} ({plan.epochs:.3g} epochs)",
        "time": f"about {duration(plan.seconds)} on {built.recipe.device}",
    }
    if plan.ot_gain is not None:
        rows["coupling"] = (
            f"saves {plan.ot_gain:.2%} ± {plan.ot_gain_stderr:.2%} of the independent cost, "
            f"{duration(plan.ot_seconds or 0)} each in one thread"
        )
    box(console(), f"{built.recipe.name}, not trained", rows)


def _show_run(run: "Run", what: str, recipe: "Recipe", json_file: Path | None) -> None:
    last = run.last
    if json_file:
        write_json(
            json_file, {"run": str(run.path), "step": run.step, "recipe_hash": run.recipe_hash, "last": dict(last)}
        )
    rows = {"steps": f"{run.step:,}, {run.step * recipe.batch * recipe.length:,} tokens"}
    if "seconds" in last:
        rows["time"] = duration(last["seconds"])
    if "loss" in last:
        rows["loss"] = f"{last['loss']:.4f} nats per token"
    for name, label in (("b0", "bound b0"), ("bn", "bound bn")):
        if f"{name}_ppl" in last:
            rows[label] = f"ppl {last[f'{name}_ppl']:.4g} ± {last[f'{name}_se']:.2g}, n={last[f'{name}_n']}"
    if "nll" in last:
        rows["held-out"] = f"{last['nll']:.4f} ± {last['nll_se']:.2g} nats per token, n={last['nll_n']}"
    if "jumps" in last:
        rows["jumps"] = f"{last['jumps']:.2f} ± {last['jumps_se']:.2g} per sample, n={last['jumps_n']}"
    rows["folder"] = str(run.path)
    rows["train longer"] = f"hopflow train {what} … steps={2 * run.step}"
    box(console(), "trained", rows)
