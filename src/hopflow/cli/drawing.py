"""Drawing: sequences of a saved network, with signs of life, to where they were asked for."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .codes import INTERRUPTED
from .drawn import Drawn, show, write
from .output import console, echo, write_json
from .sampling_log import sampling
from .saved import Saved
from .watch import Replay, watch

if TYPE_CHECKING:
    from torch import Tensor

    from ..generation import Generation
    from ..sampling import How

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, a checkpoint or a saved network.", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE.txt or FILE.jsonl; - is stdout.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Replay the first sequences, coloured by state as they hop.")]


def draw(
    saved: Saved, prompts: "Tensor | Sequence[Tensor]", how: "How", watched: bool = False
) -> "tuple[Generation, Sequence[int], float]":
    """What a flow draws in the holes of prompts, of which prompts, and the seconds it took.

    After Ctrl-C it is what was finished by then.
    """
    from ..sampling import Unfinished, infill

    assert saved.flow is not None
    started = time.perf_counter()
    rows: Sequence[int] = range(len(prompts))
    with sampling(console(stderr=True), len(prompts)) as progress:
        told: How = {**how, "trajectory": watched, "progress": progress}
        try:
            out = infill(saved.model, saved.flow, prompts, **told)
        except Unfinished as stopped:
            out, rows = stopped.drawn, stopped.rows.tolist()
    return out, rows, time.perf_counter() - started


def draw_causal(saved: Saved, n: int, length: int, chosen: Mapping[str, Any]) -> Drawn:
    """What a causal network draws, one token after the other; after Ctrl-C what was finished by then."""
    import torch

    seed, temperature = chosen.get("seed", 0), chosen.get("temperature", 1.0)
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[int]] = []
    started = time.perf_counter()
    with sampling(console(stderr=True), n) as progress:
        try:
            for piece in saved.model.pieces(n, length, generator, temperature):
                rows += piece.tolist()
                progress(len(rows), n)
        except KeyboardInterrupt:
            if not rows:
                raise
    seconds = time.perf_counter() - started
    end = saved.tokenizer.end if chosen.get("cut") else None
    texts = [saved.tokenizer.decode(row[: row.index(end)] if end in row else row) for row in rows]
    how = {"sampler": "token by token", "seed": seed, "temperature": temperature, "dtype": saved.dtype}
    return Drawn(texts, rows, {"calls": torch.full((len(rows),), length)}, how, saved, seconds, range(len(rows)), n)


def replay(out: "Generation", saved: Saved) -> bool:
    """Show how the first sequences came about; whether that has put all of them on a terminal."""
    assert saved.flow is not None
    screen = console(stderr=True)
    shown = watch(Replay(out, saved.tokenizer, saved.flow.vocab.data), screen)
    return screen.is_interactive and shown == len(out.tokens)


def deliver(drawn: Drawn, out: Path | None, json_file: Path | None, seen: bool = False) -> None:
    """Files, the texts on stdout unless they are seen on this terminal already, and the summary.

    A command that was interrupted ends as such.
    """
    if out is not None or not (seen and sys.stdout.isatty()):
        try:
            write(drawn, out)
        except OSError:
            if out is not None and str(out) != "-":
                write(drawn, None)  # a disk that is full by now loses nothing
            raise
    if json_file:
        write_json(json_file, drawn.as_json())
    show(drawn, out)
    if drawn.interrupted:  # typer keeps the message of no KeyboardInterrupt
        echo(f"hopflow: interrupted: {len(drawn.texts):,} of {drawn.asked:,} sequences were drawn", err=True)
        raise typer.Exit(INTERRUPTED)
