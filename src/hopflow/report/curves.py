"""Section: the loss and the evaluations on held-out text, over training steps."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from . import figures
from .legible import legible
from .looks import COLUMNS, WORDS, looks
from .numbers import plain
from .section import Block, Prose, Section
from .series import Column
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "b0": "Bound b0 on the perplexity of held-out text",
    "bn": "Bound bn on the perplexity of held-out text",
    "nll": "Negative log-likelihood of held-out text",
    "jumps": "Hops per sample",
}
DRAWN = 200
"""Evaluations of a run that are drawn at most; of more, every second, third, …"""


def section(stories: Sequence[Story]) -> Section | None:
    """The loss and every evaluation over steps; one point or a constant makes a sentence. None without a log."""
    blocks: list[Block] = [*_dropped(stories), *_loss(stories)]
    for quantity in TITLES:
        blocks += _look(stories, quantity)
    return Section("training", "Training", tuple(blocks)) if blocks else None


def _loss(stories: Sequence[Story]) -> list[Block]:
    """Nothing for single points: the summary has them."""
    columns = [(k, story, Column.of(story.having("loss"), "loss")) for k, story in enumerate(stories)]
    told = [(k, story, column.series(), column.trend()) for k, story, column in columns if len(column.values)]
    if all(series.count < 2 for _, _, series, _ in told):
        return []

    def paint(axes: "Axes") -> None:
        for k, story, series, trend in told:
            shade, name = figures.colour(k), legible(story.name)
            figures.band(axes, series, shade)
            if trend is None:
                figures.line(axes, series.steps, series.mean, k, name)
            else:
                axes.plot(series.steps, series.mean, color=shade, alpha=0.3, linewidth=0.8)
                low, high = trend.mean - trend.error, trend.mean + trend.error
                axes.fill_between(trend.steps, low, high, color=shade, alpha=0.3, linewidth=0)
                figures.line(axes, trend.steps, trend.mean, k, name)
        axes.set_ylabel("loss, nats per token")
        figures.step_axis(axes)
        figures.legend(axes)

    thinned = any(series.thinned for _, _, series, _ in told)
    logged = "logged steps" + (" (mean, minimum and maximum of neighbours)" if thinned else "")
    windows = any(trend is not None for *_, trend in told)
    lines = f"Pale: {logged}. Bold: means over windows, ± one standard error" if windows else f"Line: {logged}"
    data = {
        story.name: {**series.as_json(), **({} if trend is None else {"trend": trend.as_json()})}
        for _, story, series, trend in told
    }
    return [figures.drawn("loss", f"Loss of the training batches, nats per token. {lines}.", paint, data=data)]


def _look(stories: Sequence[Story], quantity: str) -> list[Block]:
    """Value and error at every evaluation; nothing for single ones, which the summary has."""
    told = [(k, story.name, found) for k, story in enumerate(stories) if (found := looks(story, quantity))]
    if all(len(found) < 2 for *_, found in told):
        return []
    levels = {look.value for *_, found in told for look in found}
    if len(levels) == 1:
        return [Prose(f"{TITLES[quantity]}: {plain(levels.pop())} at every evaluation.")]
    every = max(-(-len(found) // DRAWN) for *_, found in told)
    told = [(k, run, found[::-every][::-1]) for k, run, found in told]  # the last one is always drawn

    def paint(axes: "Axes") -> None:
        for k, run, found in told:
            steps, values, errors = zip(
                *((float(look.step), look.value, look.stderr or 0.0) for look in found), strict=True
            )
            low, high = ([v + side * e for v, e in zip(values, errors, strict=True)] for side in (-1, 1))
            axes.fill_between(steps, low, high, color=figures.colour(k), alpha=0.2, linewidth=0)
            figures.points(axes, steps, values, errors, k, legible(run))
        axes.set_ylabel(WORDS[quantity])
        figures.step_axis(axes)
        figures.legend(axes)

    counts = sorted({look.n for *_, found in told for look in found if look.n is not None})
    n = f", n = {' to '.join(f'{c:,}' for c in dict.fromkeys((counts[0], counts[-1])))}" if counts else ""
    some = f" Every {every}th evaluation." if every > 1 else ""
    data = {run: [asdict(look) for look in found] for _, run, found in told}
    caption = f"{TITLES[quantity]}, by training steps; ± one standard error{n}.{some}"
    return [figures.drawn(quantity, caption, paint, data=data)]


def _dropped(stories: Sequence[Story]) -> list[Prose]:
    """A sentence on values that are not finite, which are not drawn."""
    said = []
    for story in stories:
        for key in ("loss", *COLUMNS.values()):
            if dropped := Column.of(story.having(key), key).dropped:
                said.append(f"{story.name}: {dropped:,} values of {key} are not finite and are left out")
    return [Prose(f"{'; '.join(said)}.")] if said else []
