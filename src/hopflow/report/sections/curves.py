"""Section: the training loss and the evaluations on held-out text, over training steps."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...system.safe_text import printable
from .. import figures
from ..blocks import Block, Paragraph, Section
from ..numbers import MetricColumn, format_number
from ..run_data import LOGGED_COLUMNS, RunData, logged_evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPTIONS = {
    "b0": "Perplexity bound b0 on held-out text",
    "bn": "Perplexity bound bn on held-out text",
    "nll": "Negative log-likelihood of held-out text",
    "jumps": "Hops per sequence",
}
AXES = {
    "b0": "perplexity bound b0",
    "bn": "perplexity bound bn",
    "nll": "negative log-likelihood, nats per token",
    "jumps": "hops per sequence",
}
MAX_EVALUATIONS = 200
"""Evaluations of a run that are drawn at most; of more, every second, third, …"""
LEAD = "Training loss, and evaluations during training on text that the network was not trained on."


def section(runs: Sequence[RunData]) -> Section | None:
    """The loss and every evaluation over steps; a constant becomes a sentence. None if there is nothing to draw."""
    blocks: list[Block] = [*_dropped(runs), *_loss(runs)]
    for quantity in CAPTIONS:
        blocks += _evaluations(runs, quantity)
    return Section("training", "Training curves", (Paragraph(LEAD), *blocks)) if blocks else None


def _loss(runs: Sequence[RunData]) -> list[Block]:
    """The loss curve; empty for single points, which are in the summary."""
    columns = [(k, run, MetricColumn.of(run.having("loss"), "loss")) for k, run in enumerate(runs)]
    curves = [(k, run, column.series(), column.trend()) for k, run, column in columns if len(column.values)]
    if all(series.count < 2 for _, _, series, _ in curves):
        return []

    def paint(axes: "Axes") -> None:
        for k, run, series, trend in curves:
            shade, name = figures.colour(k), printable(run.name)
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

    thinned = any(series.is_thinned for _, _, series, _ in curves)
    logged = "logged steps" + (" (mean, minimum and maximum of neighboring steps)" if thinned else "")
    windows = any(trend is not None for *_, trend in curves)
    lines = f"Thin: {logged}. Bold: means over windows of steps, ± one standard error" if windows else f"Line: {logged}"
    data = {
        run.name: {**series.as_json(), **({} if trend is None else {"trend": trend.as_json()})}
        for _, run, series, trend in curves
    }
    caption = f"Loss of the training batches, nats per token. {lines}."
    return [figures.draw_figure("loss", caption, paint, data=data)]


def _evaluations(runs: Sequence[RunData], quantity: str) -> list[Block]:
    """Value and error of every evaluation; empty for single evaluations, which are in the summary."""
    curves = [(k, run.name, found) for k, run in enumerate(runs) if (found := logged_evaluations(run, quantity))]
    if all(len(found) < 2 for *_, found in curves):
        return []
    levels = {one.value for *_, found in curves for one in found}
    if len(levels) == 1:
        return [Paragraph(f"{CAPTIONS[quantity]}: {format_number(levels.pop())} at every evaluation.")]
    every = max(-(-len(found) // MAX_EVALUATIONS) for *_, found in curves)
    curves = [(k, run, found[::-every][::-1]) for k, run, found in curves]  # always with the last one

    def paint(axes: "Axes") -> None:
        for k, run, found in curves:
            steps, values, errors = zip(
                *((float(one.step), one.value, one.stderr or 0.0) for one in found), strict=True
            )
            low, high = ([v + side * e for v, e in zip(values, errors, strict=True)] for side in (-1, 1))
            axes.fill_between(steps, low, high, color=figures.colour(k), alpha=0.2, linewidth=0)
            figures.points(axes, steps, values, errors, k, printable(run))
        axes.set_ylabel(AXES[quantity])
        figures.step_axis(axes)
        figures.legend(axes)

    counts = sorted({one.n for *_, found in curves for one in found if one.n is not None})
    units = "samples" if quantity == "jumps" else "sequences"
    n = f", n = {' to '.join(f'{c:,}' for c in dict.fromkeys((counts[0], counts[-1])))} {units}" if counts else ""
    some = f" Every {every}th evaluation." if every > 1 else ""
    data = {run: [asdict(one) for one in found] for _, run, found in curves}
    caption = f"{CAPTIONS[quantity]}; ± one standard error{n}.{some}"
    return [figures.draw_figure(quantity, caption, paint, data=data)]


def _dropped(runs: Sequence[RunData]) -> list[Paragraph]:
    """A sentence on values that are not finite, which are not drawn."""
    parts = []
    for run in runs:
        for key in ("loss", *LOGGED_COLUMNS.values()):
            if dropped := MetricColumn.of(run.having(key), key).dropped:
                values, verb = ("value", "is") if dropped == 1 else ("values", "are")
                parts.append(f"{run.name}: {dropped:,} {values} of {key} {verb} not finite and {verb} left out")
    return [Paragraph(f"{'; '.join(parts)}.")] if parts else []
