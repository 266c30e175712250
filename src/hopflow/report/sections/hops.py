"""Section: hops from source to text. An animation, and hops by sampling step and position: counted and predicted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...system.safe_text import printable
from .. import figures
from ..animation import frames_at
from ..blocks import AnimationBlock, Block, Paragraph, SampleTexts, Section, TableBlock
from ..hop_counts import CountedHops, HopPrediction, run_hops
from ..numbers import Means, format_number, format_value
from ..run_data import RunData
from ..trained_run import results_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, PREDICTED = "Hops from source to text", "predicted"
STILL_TIMES = (0.0, 0.5, 1.0)
LEAD = (
    "A sampler starts from random source tokens and changes them until they are text; each change of a token is a hop. "
    "The coupling, which pairs source rows with data rows in training, determines the number of hops: a perfect "
    "network makes as many hops as the rows of a pair differ in (Cor. 3.2 [coro1])."
)
LINES = "Solid: counted, ± one standard error (band) over n = {n} samples. Dashed: predicted for a perfect network."
BY_STEP = "Hops per sequence in each sampling step, η = 0."
BY_POSITION = "Hops per sequence at each position, η = 0."
HEAD = ("run", "hops per sequence", "predicted", "tokens", "sampler", "OT batch")


@dataclass(frozen=True)
class RunHops:
    """Hops of run number k, counted and predicted; `reason` says why there is no prediction."""

    k: int
    run: RunData
    counted: CountedHops
    predicted: HopPrediction | None
    reason: str = ""

    @classmethod
    def of(cls, k: int, run: RunData) -> "RunHops":
        return cls(k, run, *run_hops(run))


def section(runs: Sequence[RunData]) -> Section | None:
    """Animations, counts and curves of every run with a network, a sentence on every other; None if no run has one."""
    if all(run.checkpoint is None for run in runs):
        return None
    found, failures = results_of(runs, RunHops.of, "no sequence was sampled")
    if not found:
        return Section("hops", TITLE, tuple(map(Paragraph, failures)))
    blocks: list[Block] = [Paragraph(LEAD)]
    for one in found:
        blocks += _animation(one, named=len(runs) > 1)
    unpredicted = [f"{one.run.name}: hops are not predicted, since {one.reason}." for one in found if one.reason]
    notes = map(Paragraph, [*unpredicted, *failures])
    return Section("hops", TITLE, (*blocks, _table(found), *_figures(found), *notes))


def _animation(hops: RunHops, named: bool) -> list[Block]:
    counted = hops.counted
    facts = (
        f"{f'{hops.run.name}: ' if named else ''}{len(counted.animation['sequences'])} of {counted.n} samples, "
        f"{counted.sampler}, η = 0, weights of step {hops.run.checkpoint:,} in {counted.dtype}."
    )
    stills = _stills(counted.animation, hops.run)
    return [Paragraph(facts), AnimationBlock(f"player-{hops.k}", counted.animation, stills, stills[-1].readings)]


def _stills(animation: dict[str, Any], run: RunData) -> tuple[SampleTexts, ...]:
    """The sequences at a few times, for paper and markdown; the final ones are also decoded."""
    found = []
    for t in STILL_TIMES:
        frames = frames_at(animation, t)
        texts = tuple(frame.text for frame in frames)
        readings = run.decoded(texts) if t == 1 else ()
        found.append(SampleTexts(texts, f"t = {t:g}: {sum(frame.jumps for frame in frames):,} hops", readings))
    return tuple(found)


def _table(found: Sequence[RunHops]) -> TableBlock:
    rows = tuple(
        (
            one.run.name,
            format_value(*one.counted.jumps, one.counted.n),
            _predicted(one.predicted),
            f"{one.counted.length:,}",
            one.counted.sampler,
            f"{one.predicted.rows:,}" if one.predicted and one.predicted.batches else "-",
        )
        for one in found
    )
    types = " and ".join(dict.fromkeys(one.counted.dtype for one in found))
    caption = f"Hops per sequence: counted in n samples, the network in {types}."
    if any(one.predicted and one.predicted.batches for one in found):
        caption += (
            " Predicted: from n OT batches of the training text, coupled as in the training. "
            "OT batch: rows that are coupled at once."
        )
    if any(one.predicted and not one.predicted.batches for one in found):
        caption += " From masks every token hops exactly once, with any coupling."
    return TableBlock(HEAD, rows, caption)


def _predicted(found: HopPrediction | None) -> str:
    if found is None:
        return "unknown"
    return format_value(*found.jumps, found.batches) if found.batches else f"{found.jumps[0]:,g} (exact)"


def _figures(found: Sequence[RunHops]) -> list[Block]:
    lines = LINES.format(n=", ".join(dict.fromkeys(f"{one.counted.n:,}" for one in found)))
    bins = sorted({one.counted.bin for one in found if one.counted.bin > 1})
    averaged = f" A point is the mean of {' or '.join(map(str, bins))} positions." if bins else ""
    by_step, by_position = ({one.run.name: _numbers(one, name) for one in found} for name in ("by_step", "by_position"))
    blocks: list[Block] = [
        figures.draw_figure("jumps_by_step", f"{BY_STEP} {lines}", lambda axes: _paint_steps(axes, found), data=by_step)
    ]
    levels = {value for one in found for value in one.counted.by_position.mean}
    if len(levels) == 1:  # from masks: a horizontal line
        level = levels.pop()
        often = "once" if level == 1 else f"{format_number(level)} times"
        return [*blocks, Paragraph(f"Every position hops {often} in each sequence.")]
    caption = f"{BY_POSITION} {lines}{averaged}"
    figure = figures.draw_figure(
        "jumps_by_position", caption, lambda axes: _paint_positions(axes, found), data=by_position
    )
    return [*blocks, figure]


def _numbers(hops: RunHops, name: str) -> dict[str, Any]:
    at = {"by_step": hops.counted.times, "by_position": hops.counted.positions}[name]
    predicted = None if hops.predicted is None else asdict(getattr(hops.predicted, name))
    return {"at": at, "n": hops.counted.n, "counted": asdict(getattr(hops.counted, name)), "expected": predicted}


def _paint_steps(axes: "Axes", found: Sequence[RunHops]) -> None:
    for one in found:
        centres = [(a + b) / 2 for a, b in pairwise(one.counted.times)]
        _paint_lines(axes, one, centres, one.counted.by_step, one.predicted.by_step if one.predicted else None)
    axes.set(xlabel="time t", ylabel="hops per sampling step", xlim=(0, 1))
    _finish(axes, found)


def _paint_positions(axes: "Axes", found: Sequence[RunHops]) -> None:
    for one in found:
        predicted = one.predicted.by_position if one.predicted else None
        _paint_lines(axes, one, one.counted.positions, one.counted.by_position, predicted)
    axes.set(xlabel="position", ylabel="hops per position")
    _finish(axes, found)


def _paint_lines(axes: "Axes", hops: RunHops, x: Sequence[float], counted: Means, predicted: Means | None) -> None:
    shade, marker = figures.colour(hops.k), "o" if len(x) == 1 else None
    low, high = zip(*((m - e, m + e) for m, e in zip(counted.mean, counted.stderr, strict=True)), strict=True)
    axes.fill_between(x, low, high, color=shade, alpha=0.2, linewidth=0)
    axes.plot(x, counted.mean, color=shade, marker=marker, label=printable(hops.run.name))
    if predicted is not None:
        axes.plot(x, predicted.mean, color=shade, linestyle="--", marker=marker, linewidth=1.2)


def _finish(axes: "Axes", found: Sequence[RunHops]) -> None:
    """The y axis starts at zero, so that heights can be compared."""
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    if any(one.predicted for one in found):
        axes.plot([], [], color=figures.SOFT, linestyle="--", linewidth=1.2, label=PREDICTED)
    figures.legend(axes, last=PREDICTED)
