"""Transport: what pairs cost while training went on, and what coupling them cost in time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..estimate import mean_and_error
from . import figures
from .legible import legible
from .numbers import finite, lasting, measured
from .section import Block, Section, Table
from .series import Series
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Batch = dict[str, Any]


def section(stories: Sequence[Story]) -> Section | None:
    """Costs with and without the coupling, the share of time, and means; None where nothing was coupled."""
    told = [(k, story, batches) for k, story in enumerate(stories) if (batches := _batches(story))]
    if not told:
        return None
    blocks: list[Block] = [
        figures.drawn(
            "transport",
            "Cost of the pairs of an OT batch while training goes on: as coupled (solid) and as independent (dashed).",
            _costs(told),
            data=_data(told, "ot_cost", "ot_independent_cost"),
        )
    ]
    if any("ot_wait_share" in row for _, _, batches in told for row in batches):
        blocks.append(
            figures.drawn(
                "transport-time",
                "Part of the time between two logged steps that training waited for a coupling.",
                _shares(told),
                data=_data(told, "ot_wait_share"),
            )
        )
    return Section("transport", "Transport", (*blocks, _table(told)))


def _batches(story: Story) -> list[Batch]:
    """A row for every OT batch: an OT batch serves several steps, and is counted once."""
    found: list[Batch] = []
    for row in story.metrics:
        costs = [row.get("ot_cost"), row.get("ot_independent_cost")]
        if not all(map(finite, costs)):
            continue
        if not found or costs != [found[-1]["ot_cost"], found[-1]["ot_independent_cost"]]:
            found.append(row)
    return found


def _costs(told: list[tuple[int, Story, list[Batch]]]) -> Callable[["Axes"], None]:
    def paint(axes: "Axes") -> None:
        for k, story, batches in told:
            for key, style, width in (("ot_independent_cost", (0, (4, 2)), 1.1), ("ot_cost", "-", 1.6)):
                series = Series.of(batches, key)
                label = legible(story.name) if key == "ot_cost" else "_"
                if series.thinned:
                    axes.fill_between(
                        series.steps, series.low, series.high, color=figures.colour(k), alpha=0.12, linewidth=0
                    )
                axes.plot(
                    series.steps, series.mean, color=figures.colour(k), linestyle=style, linewidth=width, label=label
                )
        axes.set_ylabel(f"cost per pair{_kind([story for _, story, _ in told])}")
        figures.step_axis(axes)
        figures.legend(axes)

    return paint


def _shares(told: list[tuple[int, Story, list[Batch]]]) -> Callable[["Axes"], None]:
    def paint(axes: "Axes") -> None:
        for k, story, batches in told:
            series = Series.of(batches, "ot_wait_share")
            axes.plot(
                series.steps, 100 * series.mean, color=figures.colour(k), label=legible(story.name), linewidth=1.2
            )
        axes.set_ylabel("waiting for OT, % of time")
        axes.set_ylim(bottom=0)
        figures.step_axis(axes)
        figures.legend(axes)

    return paint


def _kind(stories: Sequence[Story]) -> str:
    """The cost's name, where the runs agree on one."""
    kinds = {story.identity.get("flow.coupling.cost.kind") for story in stories}
    kind = kinds.pop() if len(kinds) == 1 else None
    return f", {kind}" if isinstance(kind, str) else ""


def _data(told: list[tuple[int, Story, list[Batch]]], *keys: str) -> dict[str, Any]:
    return {story.name: {key: Series.of(batches, key).as_json() for key in keys} for _, story, batches in told}


def _table(told: list[tuple[int, Story, list[Batch]]]) -> Table:
    rows = []
    for _, story, batches in told:
        half = batches[len(batches) // 2 :]
        coupled, independent = ([float(row[key]) for row in half] for key in ("ot_cost", "ot_independent_cost"))
        saved = [1 - a / b for a, b in zip(coupled, independent, strict=True) if b > 0]
        waits = [float(row["ot_wait_share"]) for row in half if finite(row.get("ot_wait_share"))]
        solving = [float(row["ot_seconds"]) for row in half if finite(row.get("ot_seconds"))]
        worst = max((float(row.get("ot_marginal_error") or 0) for row in batches), default=0.0)
        rows.append(
            (
                story.name,
                str(story.identity.get("flow.coupling.kind", "-")),
                _mean(coupled),
                _mean(independent),
                _mean([100 * share for share in saved], " %"),
                _mean([100 * share for share in waits], " %"),
                lasting(sum(solving) / len(solving)) if solving else "-",
                f"{worst:.2g}",
                f"{len(half):,}",
            )
        )
    head = (
        "run",
        "coupling",
        "cost",
        "independent",
        "saved",
        "waiting",
        "to solve one",
        "marginal error, at most",
        "n",
    )
    caption = (
        "Means over the OT batches of the second half of training, ± one standard error; n logged OT batches. "
        "Of marginal errors the greatest of all."
    )
    return Table(head, tuple(rows), caption)


def _mean(values: list[float], unit: str = "") -> str:
    if len(values) < 2:
        return f"{values[0]:.4g}{unit}" if values else "-"
    mean, error = mean_and_error(torch.tensor(values, dtype=torch.float64))
    return measured(mean, error) + unit
