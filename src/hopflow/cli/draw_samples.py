"""Draw samples from a trained network: with progress, with Ctrl-C, and written to where the user asked."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .codes import INTERRUPTED
from .output import console, echo, write_json
from .sample_output import DrawnSamples, show, write
from .sampling_log import sampling
from .trained_network import TrainedNetwork
from .watch import HopReplay, watch

if TYPE_CHECKING:
    from torch import Tensor

    from ..sampling.generation import Generation
    from .command_settings import SampleSettings

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Folder of a run, a checkpoint or a saved network, or novels.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the texts to FILE, whose name ends in .txt or .jsonl; - is stdout."
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Replay the hops of the first sequences on the terminal.")]


def draw(
    network: TrainedNetwork, prompts: "Tensor | Sequence[Tensor]", options: dict[str, Any], watched: bool = False
) -> "tuple[Generation, Sequence[int], float]":
    """Fill the holes of prompts: the samples, the indices of their prompts, and the seconds it took.

    After Ctrl-C: the samples that were finished.
    """
    from ..sampling.generate import Unfinished, infill

    assert network.flow is not None
    started = time.perf_counter()
    rows: Sequence[int] = range(len(prompts))
    with sampling(console(stderr=True), len(prompts)) as progress:
        options = {**options, "trajectory": watched, "progress": progress}
        try:
            out = infill(network.model, network.flow, prompts, **options)
        except Unfinished as stopped:
            out, rows = stopped.drawn, stopped.rows.tolist()
    return out, rows, _since(started)


def draw_autoregressive(network: TrainedNetwork, length: int, settings: "SampleSettings") -> DrawnSamples:
    """Samples of an autoregressive network, from left to right; after Ctrl-C those that were finished."""
    import torch

    n, seed, temperature = settings.n, settings.seed, settings.temperature
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[int]] = []
    started = time.perf_counter()
    with sampling(console(stderr=True), n) as progress:
        try:
            for piece in network.model.pieces(n, length, generator, temperature):
                rows += piece.tolist()
                progress(len(rows), n)
        except KeyboardInterrupt:
            if not rows:
                raise
    seconds = _since(started)
    end = network.tokenizer.end if settings.cut else None
    texts = [network.tokenizer.decode(row[: row.index(end)] if end in row else row) for row in rows]
    how = {"sampler": "token by token", "seed": seed, "temperature": temperature, "dtype": network.dtype}
    calls = {"calls": torch.full((len(rows),), length)}
    return DrawnSamples(texts, rows, calls, how, network, seconds, range(len(rows)), n)


def replay(out: "Generation", network: TrainedNetwork) -> bool:
    """Replay the hops; True if that has left every text on the terminal."""
    assert network.flow is not None
    screen = console(stderr=True)
    shown = watch(HopReplay(out, network.tokenizer, network.flow.vocab.data), screen)
    return screen.is_interactive and shown == len(out.tokens)


def write_samples(drawn: DrawnSamples, out: Path | None, json_file: Path | None, shown: bool = False) -> None:
    """Write the texts (unless the terminal shows them already), the JSON file and the summary.

    After Ctrl-C the command ends with the exit code of an interruption.
    """
    if out is not None or not (shown and sys.stdout.isatty()):
        try:
            write(drawn, out)
        except OSError:
            if out is not None and str(out) != "-":
                write(drawn, None)  # print what does not fit on the disk
            raise
    if json_file:
        write_json(json_file, drawn.as_json())
    show(drawn, out)
    if drawn.interrupted:  # typer drops the message of a KeyboardInterrupt
        echo(f"hopflow: interrupted: {len(drawn.texts):,} of {drawn.asked:,} sequences were drawn", err=True)
        raise typer.Exit(INTERRUPTED)


def _since(started: float) -> float:
    """The seconds since then, above 0 also where the clock is too coarse to notice them."""
    return max(time.perf_counter() - started, 1e-9)
