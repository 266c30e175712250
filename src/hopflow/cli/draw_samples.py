"""Draw samples from a trained network: with progress, with Ctrl-C, and written to where the user asked."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .codes import INTERRUPTED
from .output import console, echo, write_json
from .sample_output import DrawnSamples, show, write
from .sampling_log import CountCallback, sampling
from .trained_network import TrainedNetwork
from .watch import HopView, stills, watch

if TYPE_CHECKING:
    from torch import Tensor

    from ..sampling.generation import Generation
    from ..sampling.stream import Frame
    from .command_settings import SampleSettings

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, a checkpoint or a saved network, novels (in pretrained/novels), or hub:USER/NAME.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the texts to FILE, whose name ends in .txt or .jsonl; - is stdout."
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Show the hops of the first sequences while they are drawn.")]


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn, and how; after Ctrl-C only the sequences that were finished."""

    out: "Generation"
    rows: Sequence[int]
    """Indices of the prompts of these sequences."""
    seconds: float
    shown: bool = False
    """Whether the terminal shows every text already."""


def draw(network: TrainedNetwork, prompts: "Tensor | Sequence[Tensor]", options: dict[str, Any]) -> Drawn:
    """Fill the holes of prompts."""
    from ..sampling.generate import Unfinished, infill

    assert network.flow is not None
    started = time.perf_counter()
    rows: Sequence[int] = range(len(prompts))
    with sampling(console(stderr=True), len(prompts)) as progress:
        try:
            out = infill(network.model, network.flow, prompts, **options, progress=progress)
        except Unfinished as stopped:
            out, rows = stopped.drawn, stopped.rows.tolist()
    return Drawn(out, rows, _since(started))


def draw_watched(network: TrainedNetwork, prompts: "Tensor | Sequence[Tensor]", options: dict[str, Any]) -> Drawn:
    """`draw`, and show the hops of the first sequences while they are drawn.

    The first Ctrl-C ends the display only: the rest is drawn without it.
    """
    from ..sampling.stream import stream

    assert network.flow is not None
    screen, report, shown = console(stderr=True), Reports(), 0
    with stream(network.model, network.flow, prompts, **options, progress=report) as frames:
        timed, label = TimedFrames(frames), f"{frames.sampler.label}, η = {frames.eta:g}"
        view = HopView(network.tokenizer, network.flow.vocab.data, label, frames.count)
        try:
            if screen.is_interactive:
                with first_interrupt() as stopped:
                    shown = watch(timed, view, screen, stopped)
            all_shown = view.done and view.most == frames.count
            with nullcontext(report.callback) if all_shown else sampling(screen, frames.count) as report.callback:
                if not screen.is_interactive:
                    stills(timed, view, screen)
                for _ in timed:  # what is not shown
                    pass
            out, rows = frames.result, list(range(frames.count))
        except KeyboardInterrupt:
            finished = frames.finished
            if finished is None or not len(finished[1]):
                raise
            out, rows = finished[0], finished[1].tolist()
        return Drawn(out, rows, max(timed.seconds, 1e-9), shown == frames.count)


class Reports:
    """The `progress` of a stream: passes counts on to `callback`, which may change."""

    def __init__(self) -> None:
        self.callback: CountCallback = lambda done, count: None

    def __call__(self, done: int, count: int) -> None:
        self.callback(done, count)


class TimedFrames:
    """The frames of a stream, and the seconds that the network has worked on them."""

    def __init__(self, frames: "Iterator[Frame]") -> None:
        self._frames, self.seconds = frames, 0.0

    def __iter__(self) -> "TimedFrames":
        return self

    def __next__(self) -> "Frame":
        started = time.perf_counter()
        try:
            return next(self._frames)
        finally:
            self.seconds += time.perf_counter() - started


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed during the block; it raises KeyboardInterrupt from the second time on."""
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


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
