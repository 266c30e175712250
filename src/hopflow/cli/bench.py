"""hopflow bench: speed side by side with others, in one run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import check_target, console, figures, progress_line, size, write_json
from .words import Debug, Json, Settings, batch_size, one_of, parse_settings, row_length, whole_number, whole_numbers

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.bounds import Case as BoundCase
    from ..bench.bounds import Row as Bounded
    from ..bench.ot import Row as Solved
    from ..bench.pairs import Row as Hidden
    from ..bench.sample import Case
    from ..bench.sample import Row as Sampled
    from ..bench.train import Case as TrainCase
    from ..bench.train import Row as Trained

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
    _show_solvers(rows, console())  # before it is written, which may fail
    _show_hiding(hidden, console())
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows], "hiding": hidden})


@app.command("sample")
def bench_sample(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time sampling by events and in random order beside a plain Euler loop over the whole vocabulary, in one run.

    Settings: n=16, length=128, tokens=5000, size=tiny, steps=32,128,1024, source=all (or one of them), seed=0,
    device=auto. On a GPU the defaults are n=2048, tokens=50257, size=small. The plain loop is timed on six steps.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "n": batch_size,
        "length": row_length,
        "tokens": whole_number,
        "size": str,
        "steps": whole_numbers,
        "source": one_of("all", "mask", "multimask", "bag_of_words", "uniform"),
        "seed": whole_number,
        "device": str,
    }
    chosen = parse_settings(settings or [], readers)
    check_target(json_file)
    from ..bench import sample

    case = _case(sample.Case, chosen)
    with progress_line() as progress:
        rows = sample.run(case, progress=progress)
    _show_sampling(case, rows, console())
    _keep(json_file, case, rows)


@app.command("eval")
def bench_eval(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time the bounds of sequences: by default, and in float32 with 64 sequences per network call, in one run.

    Settings: n=32, length=64, tokens=1000, size=tiny, draws=8, source=all (mask, uniform), seed=0, device=auto. On a
    GPU the defaults are n=1024, length=128, tokens=50257, size=small. Both are estimated from the same draws.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "n": batch_size,
        "length": row_length,
        "tokens": whole_number,
        "size": str,
        "draws": batch_size,
        "source": one_of("all", "mask", "multimask", "bag_of_words", "uniform"),
        "seed": whole_number,
        "device": str,
    }
    chosen = parse_settings(settings or [], readers)
    check_target(json_file)
    from ..bench import bounds

    case = _case(bounds.Case, chosen)
    with progress_line() as progress:
        rows = bounds.run(case, progress=progress)
    _show_bounds(case, rows, console())
    _keep(json_file, case, rows)


@app.command("train")
def bench_train(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time a step of training: as it is, with each optimisation left out, and as plain code, in one run.

    Settings: batch=16, length=64, tokens=2000, size=tiny, steps=5, source=all (uniform: every position in the loss;
    multimask: those that are masked), seed=0, device=auto. On a GPU the defaults are batch=512, length=128,
    tokens=50257, size=small, steps=40. Couplings are timed in turns with the same trainer without them.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "batch": batch_size,
        "length": row_length,
        "tokens": whole_number,
        "size": str,
        "steps": whole_number,
        "source": one_of("all", "uniform", "multimask"),
        "seed": whole_number,
        "device": str,
    }
    chosen = parse_settings(settings or [], readers)
    check_target(json_file)
    from ..bench import train

    case = _case(train.Case, chosen)
    with progress_line() as progress:
        rows = train.run(case, progress=progress)
    _show_training(case, rows, console())
    _keep(json_file, case, rows)


def _case(kind: Any, chosen: dict[str, Any]) -> Any:
    """A bench's case on the device that was chosen; `source` names one of its sources, or all."""
    from ..training.devices import choose_device

    keys = dict(chosen)
    device = choose_device(keys.pop("device", "auto"))
    if (only := keys.pop("source", "all")) != "all":
        keys["sources"] = (only,)
    return kind.on(device, **keys)


def _keep(json_file: Path | None, case: Any, rows: Sequence[Any]) -> None:
    from ..bench.machine import machine

    if json_file:
        found = {"case": case.as_json(), "rows": [row.as_json() for row in rows]}
        write_json(json_file, {"machine": machine(case.device), **found})


def _show_training(case: "TrainCase", rows: "list[Trained]", screen: "Console") -> None:
    title = f"{case.size} transformer, {case.tokens:,} tokens, {case.batch} sequences of {case.length}, {case.device}"
    columns = ("ms a step", "±", "tokens/s", "TFLOP/s", "of the peak", "peak memory", "loss", "slowdown, %")
    table = figures(title, 2, "source", "variant", *columns)
    for row in rows:
        share = "-" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        speed = (f"{row.ms:.1f}", f"{row.ms_spread:.1f}", f"{row.tokens_per_s:,.0f}", f"{row.tflop_per_s:.3g}")
        slower = "-" if row.slowdown is None else f"{100 * row.slowdown:.1f} ± {100 * (row.slowdown_spread or 0):.1f}"
        loss = "-" if row.loss is None else f"{row.loss:.4f}"
        table.add_row(row.source, row.variant, *speed, share, size(row.peak_bytes), loss, slower)
    screen.print(table)


def _show_sampling(case: "Case", rows: "list[Sampled]", screen: "Console") -> None:
    from ..bench import sample

    faster = {id(row): ratio for row, ratio in sample.ratios(rows)}
    title = f"{case.size} transformer, {case.tokens:,} tokens, {case.n} sequences of {case.length}, {case.device}"
    columns = ("sequences/s", "calls a sequence", "as fast as plain", "peak memory", "steps timed")
    table = figures(title, 2, "source", "sampler", "steps", *columns)
    for row in rows:
        ratio = f"{faster[id(row)]:.1f}x" if id(row) in faster else "1"
        numbers = (f"{row.sequences_per_s:.4g}", f"{row.calls_per_sequence:.1f}", ratio, size(row.peak_bytes))
        table.add_row(row.source, row.sampler, str(row.steps), *numbers, str(row.timed_steps))
    screen.print(table)


def _show_bounds(case: "BoundCase", rows: "list[Bounded]", screen: "Console") -> None:
    title = f"{case.size} transformer, {case.tokens:,} tokens, {case.n} sequences of {case.length}, {case.device}"
    columns = ("sequences/s", "as fast", "nats", "± s.e.", "s.e. apart")
    table = figures(title, 4, "source", "bound", "variant", "network in", *columns)
    for row in rows:
        speed = (f"{row.sequences_per_s:.4g}", f"{row.ratio:.2f}x")
        numbers = (f"{row.nats:.3f}", f"{row.stderr:.3f}", f"{row.errors:.3f}")
        table.add_row(row.source, row.quantity, row.variant, row.dtype, *speed, *numbers)
    screen.print(table)


def _show_solvers(rows: "list[Solved]", screen: "Console") -> None:
    columns = ("ms", "as fast as POT", "value", "marginal error", "gain")
    for case in dict.fromkeys(row.case for row in rows):
        here = [row for row in rows if row.case == case]
        table = figures(str(case), 2, "solver", "device", *columns)
        for row in here:
            peer = "pot_sinkhorn" if "sinkhorn" in row.solver else "pot_emd"
            theirs = [other.ms for other in here if other.solver == peer and other.device == row.device]
            ratio = f"{theirs[0] / row.ms:.1f}x" if theirs else "-"
            numbers = (f"{row.ms:.2f}", ratio, f"{row.value:.10g}", f"{row.marginal_error:.1e}", f"{row.gain:.2%}")
            table.add_row(row.solver, row.device, *numbers)
        screen.print(table)
        screen.print()


def _show_hiding(rows: "list[Hidden]", screen: "Console") -> None:
    columns = ("behind", "n", "updates", "workers", "ms to solve", "slowdown", "of it waiting")
    table = figures("hidden behind a 100 ms step", 1, "coupling", *columns)
    for row in rows:
        waited = float(row["seconds_waited"]) / float(row["seconds_plain"])
        solved = f"{1000 * float(row['seconds_solved']):.0f}"
        error = row["slowdown_stderr"]
        slowdown = f"{float(row['slowdown']):.2%} ± {'?' if error is None else f'{float(error):.2%}'}"
        counts = (str(row[name]) for name in ("kind", "n", "updates", "workers"))
        numbers = (*counts, solved, slowdown, f"{waited:.2%}")
        table.add_row(str(row["coupling"]), *numbers)
    screen.print(table)
    screen.print()
