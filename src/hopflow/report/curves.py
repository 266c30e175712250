"""Curves: how training went, the loss and what looks at held-out text found."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from . import figures
from .legible import legible
from .looks import COLUMNS, WORDS, looks
from .section import Block, Figure, Prose, Section
from .series import Series
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "b0": "Bound b0 on the perplexity of held-out text",
    "bn": "Bound bn on the perplexity of held-out text",
    "nll": "Negative log-likelihood of held-out text",
    "jumps": "How often tokens of a sample hop, while training goes on",
}


def section(stories: Sequence[Story]) -> Section | None:
    """The loss, then every number that looks at held-out text found more than nothing of."""
    drawn = [_loss(stories), *(_look(stories, quantity) for quantity in TITLES)]
    found: list[Block] = [figure for figure in drawn if figure is not None]
    if not found:
        return None
    return Section("training", "Training", (*_dropped(stories), *found))


def _loss(stories: Sequence[Story]) -> Figure | None:
    told = [(k, story, Series.of(story.metrics, "loss")) for k, story in enumerate(stories)]
    told = [(k, story, series) for k, story, series in told if series.count]
    if not told:
        return None
    trends = {story.name: Series.trend(story.metrics, "loss") for _, story, _ in told}

    def paint(axes: "Axes") -> None:
        for k, story, series in told:
            line(axes, k, story.name, series, trends[story.name])
        axes.set_ylabel("loss, nats per token")
        figures.step_axis(axes)
        figures.legend(axes)

    pale = "Pale: every logged step" + (
        ", from least to greatest of neighbours" if any(s.thinned for *_, s in told) else ""
    )
    bold = ". Bold: means of windows of logged steps, ± one standard error" if any(trends.values()) else ""
    data = {story.name: series.as_json() for _, story, series in told}
    return figures.drawn("loss", f"Loss of the training batches, nats per token. {pale}{bold}.", paint, data=data)


def line(axes: "Axes", k: int, name: str, series: Series, trend: Series | None) -> None:
    """A column as a pale line with its range, below its trend."""
    shade, dashes = figures.colour(k), figures.dashes(k)
    marker = "o" if len(series.steps) < 12 else ""
    if series.thinned:
        axes.fill_between(series.steps, series.low, series.high, color=shade, alpha=0.15, linewidth=0)
    if trend is None:
        axes.plot(
            series.steps, series.mean, color=shade, linestyle=dashes, marker=marker, markersize=3.5, label=legible(name)
        )
        return
    axes.plot(series.steps, series.mean, color=shade, alpha=0.3, linewidth=0.8)
    axes.fill_between(
        trend.steps, trend.mean - trend.error, trend.mean + trend.error, color=shade, alpha=0.3, linewidth=0
    )
    axes.plot(trend.steps, trend.mean, color=shade, linestyle=dashes, label=legible(name))


def _look(stories: Sequence[Story], quantity: str) -> Figure | None:
    """Value and error at every look; nothing where there are none."""
    told = [(k, story.name, found) for k, story in enumerate(stories) if (found := looks(story, quantity))]
    if not told:
        return None

    def paint(axes: "Axes") -> None:
        for k, run, found in told:
            steps, values, errors = zip(*((float(look.step), look.value, look.stderr) for look in found), strict=True)
            low, high = ([v + side * e for v, e in zip(values, errors, strict=True)] for side in (-1, 1))
            axes.fill_between(steps, low, high, color=figures.colour(k), alpha=0.2, linewidth=0)
            figures.points(axes, steps, values, errors, k, legible(run))
        axes.set_ylabel(WORDS[quantity])
        figures.step_axis(axes)
        figures.legend(axes)

    counts = sorted({look.n for *_, found in told for look in found if look.n is not None})
    n = f", n = {' to '.join(f'{c:,}' for c in dict.fromkeys((counts[0], counts[-1])))}" if counts else ""
    data = {run: [asdict(look) for look in found] for _, run, found in told}
    return figures.drawn(quantity, f"{TITLES[quantity]}; ± one standard error{n}.", paint, data=data)


def _dropped(stories: Sequence[Story]) -> list[Prose]:
    """What was logged and is no number is not drawn, and said."""
    said = []
    for story in stories:
        for key in ("loss", *COLUMNS.values()):
            if dropped := Series.of(story.metrics, key, points=1).dropped:
                said.append(f"{story.name}: {dropped:,} values of {key} are not finite and are left out")
    return [Prose(f"{'; '.join(said)}.")] if said else []
