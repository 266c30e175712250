"""hopflow bench: time hopflow and other implementations in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .command_help import CommandGroup, CommandWithSettings
from .options import Debug, Json, Settings
from .output import check_target, console, figures, progress_line, size, write_json
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.bounds import BoundsCase, BoundsSpeed
    from ..bench.case import SpeedCase
    from ..bench.ot import SolverSpeed
    from ..bench.pairs import PairingCost
    from ..bench.sample import SamplingCase, SamplingSpeed
    from ..bench.serve import ServingCase, ServingSpeed
    from ..bench.train import TrainingSpeed
    from ..bench.training_run import TrainingCase
    from .setting_types import CommandSettings

app = typer.Typer(help="Time hopflow and other implementations in one process.", cls=CommandGroup)


@app.command("ot", cls=CommandWithSettings)
def bench_ot(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time exact OT and Sinkhorn against POT on the same costs, then couplings computed during training steps."""
    from .bench_settings import BenchOTSettings

    chosen = parse_settings(settings, BenchOTSettings)
    check_target(json_file)
    from ..bench import ot, pairs

    with progress_line() as progress:
        rows = ot.run(full=chosen.full, n=chosen.n, seed=chosen.seed, progress=progress)
        hidden = pairs.run(progress)
    _show_solvers(rows, console())  # before the file is written, which may fail
    _show_hiding(hidden, console())
    if json_file:
        write_json(json_file, {"rows": [row.as_json() for row in rows], "hiding": hidden})


@app.command("sample", cls=CommandWithSettings)
def bench_sample(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time hopflow's samplers against a plain Euler loop over the complete vocabulary.

    The plain loop is timed on six steps.
    """
    from .bench_settings import BenchSampleSettings

    chosen = parse_settings(settings, BenchSampleSettings)
    check_target(json_file)
    from ..bench import sample

    case = _case(sample.SamplingCase, chosen)
    with progress_line() as progress:
        rows = sample.run(case, progress=progress)
    _show_sampling(case, rows, console())
    _write_rows(json_file, case, rows)


@app.command("serve", cls=CommandWithSettings)
def bench_serve(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time the server against calls of `generate`: requests per second, and the time until the first hops.

    Each request draws one sequence. The clients run in the server's process and share its CPU.
    """
    from .bench_settings import BenchServeSettings

    chosen = parse_settings(settings, BenchServeSettings)
    check_target(json_file)
    from ..bench import serve

    case = _case(serve.ServingCase, chosen)
    with progress_line() as progress:
        rows = serve.run(case, progress=progress)
    _show_serving(case, rows, console())
    _write_rows(json_file, case, rows)


@app.command("eval", cls=CommandWithSettings)
def bench_eval(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time the NLL bounds: with the default options, and in float32 with 64 sequences per network call.

    Both use the same Monte Carlo draws.
    """
    from .bench_settings import BenchEvalSettings

    chosen = parse_settings(settings, BenchEvalSettings)
    check_target(json_file)
    from ..bench import bounds

    case = _case(bounds.BoundsCase, chosen)
    with progress_line() as progress:
        rows = bounds.run(case, progress=progress)
    _show_bounds(case, rows, console())
    _write_rows(json_file, case, rows)


@app.command("train", cls=CommandWithSettings)
def bench_train(settings: Settings = None, json_file: Json = None, debug: Debug = False) -> None:
    """Time a training step: with all optimizations, without each of them, and as plain PyTorch."""
    from .bench_settings import BenchTrainSettings

    chosen = parse_settings(settings, BenchTrainSettings)
    check_target(json_file)
    from ..bench import train, training_run

    case = _case(training_run.TrainingCase, chosen)
    with progress_line() as progress:
        rows = train.run(case, progress=progress)
    _show_training(case, rows, console())
    _write_rows(json_file, case, rows)


def _case(kind: Any, settings: "CommandSettings") -> Any:
    """What a bench measures; `source` is one of its sources, or all."""
    from ..runs.devices import choose_device

    keys = settings.typed()
    device = choose_device(keys.pop("device", "auto"))
    if (only := keys.pop("source", "all")) != "all":
        keys["sources"] = (only,)
    return kind.on(device, **keys)


def _write_rows(json_file: Path | None, case: Any, rows: Sequence[Any]) -> None:
    from ..bench.machine import machine

    if json_file:
        found = {"case": case.as_json(), "rows": [row.as_json() for row in rows]}
        write_json(json_file, {"machine": machine(case.device), **found})


def _network(case: "SpeedCase") -> str:
    return f"{case.size} transformer, vocabulary of {case.tokens:,}"


def _show_training(case: "TrainingCase", rows: "list[TrainingSpeed]", screen: "Console") -> None:
    title = f"{_network(case)}, {case.batch} sequences of {case.length}, {case.device}"
    columns = ("ms/step", "± ms", "tokens/s", "TFLOP/s", "of peak", "peak memory", "loss", "slowdown, %")
    table = figures(title, 2, "source", "variant", *columns)
    for row in rows:
        share = "-" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        speed = (f"{row.ms:.1f}", f"{row.ms_spread:.1f}", f"{row.tokens_per_s:,.0f}", f"{row.tflop_per_s:.3g}")
        slower = "-" if row.slowdown is None else f"{100 * row.slowdown:.1f} ± {100 * (row.slowdown_spread or 0):.1f}"
        loss = "-" if row.loss is None else f"{row.loss:.4f}"
        table.add_row(row.source, row.variant, *speed, share, size(row.peak_bytes), loss, slower)
    screen.print(table)


def _show_sampling(case: "SamplingCase", rows: "list[SamplingSpeed]", screen: "Console") -> None:
    from ..bench import sample

    faster = {id(row): ratio for row, ratio in sample.ratios(rows)}
    title = f"{_network(case)}, {case.n} sequences of {case.length}, {case.device}"
    columns = ("sequences/s", "calls/sequence", "speed-up", "peak memory", "timed steps")
    table = figures(title, 2, "source", "sampler", "steps", *columns)
    for row in rows:
        ratio = f"{faster[id(row)]:.1f}x" if id(row) in faster else "1"
        numbers = (f"{row.sequences_per_s:.4g}", f"{row.calls_per_sequence:.1f}", ratio, size(row.peak_bytes))
        table.add_row(row.source, row.sampler, str(row.steps), *numbers, str(row.timed_steps))
    screen.print(table)


def _show_serving(case: "ServingCase", rows: "list[ServingSpeed]", screen: "Console") -> None:
    from ..bench import serve

    size_of_case = f"{case.n} sequences of {case.length} in {case.steps} steps"
    title = f"{_network(case)}, {size_of_case}, {case.device}"
    columns = ("requests/s", "ratio", "first hops, ms", "slowest, ms")
    table = figures(title, 2, "source", "way", *columns)
    for row, ratio in serve.ratios(rows):
        first = [("-" if ms is None else f"{ms:.0f}") for ms in (row.first_frame_ms, row.slowest_first_frame_ms)]
        table.add_row(row.source, row.way, f"{row.requests_per_s:.3g}", f"{ratio:.2f}x", *first)
    screen.print(table)


def _show_bounds(case: "BoundsCase", rows: "list[BoundsSpeed]", screen: "Console") -> None:
    title = f"{_network(case)}, {case.n} sequences of {case.length}, {case.device}"
    columns = ("sequences/s", "speed-up", "nats", "± s.e.", "difference, s.e.")
    table = figures(title, 4, "source", "bound", "variant", "precision", *columns)
    for row in rows:
        speed = (f"{row.sequences_per_s:.4g}", f"{row.ratio:.2f}x")
        numbers = (f"{row.nats:.3f}", f"{row.stderr:.3f}", f"{row.errors:.3f}")
        table.add_row(row.source, row.quantity, row.variant, row.dtype, *speed, *numbers)
    screen.print(table)


def _show_solvers(rows: "list[SolverSpeed]", screen: "Console") -> None:
    columns = ("ms", "speed-up over POT", "value", "marginal error", "gain")
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


def _show_hiding(rows: "list[PairingCost]", screen: "Console") -> None:
    columns = ("step", "n", "updates", "workers", "ms to solve", "slowdown", "waiting")
    table = figures("couplings computed during a 100 ms training step", 1, "coupling", *columns)
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
