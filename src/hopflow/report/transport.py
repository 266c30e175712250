"""Section: costs of the pairs during training, and the time that coupling took."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..estimate import mean_and_error
from . import figures
from .legible import legible
from .numbers import error_of, finite, lasting, measured
from .section import Block, Figure, Prose, Section, Table
from .series import Column, Series
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUPLED, INDEPENDENT, WAITED = "ot_cost", "ot_independent_cost", "ot_wait_share"
HEAD = ("run", "coupling", "cost", "independent", "saved", "waiting", "time to solve", "marginal error", "n")
CAPTION = (
    "Means over the logged OT batches of the second half of training, ± one standard error; n counts OT batches. Cost "
    "per pair; waiting: share of the training time; marginal error: the largest of all OT batches."
)
LEVEL = 0.05
"""Costs that stay within this share of their mean are not drawn: the table has the mean."""


@dataclass(frozen=True, eq=False)
class Told:
    """A run that coupled: its place among the runs, its OT batches, and their columns to draw."""

    place: int
    story: Story
    batches: list[dict[str, Any]]
    series: dict[str, Series]


def section(stories: Sequence[Story]) -> Section | None:
    """Costs with and without the coupling, waiting time, and means; None where nothing was coupled."""
    told = []
    for place, story in enumerate(stories):
        if batches := _batches(story):
            series = {key: Column.of(batches, key).series() for key in (COUPLED, INDEPENDENT, WAITED)}
            told.append(Told(place, story, batches, series))
    if not told:
        return None
    blocks: list[Block] = []
    if any(_changes(run.series[key], LEVEL) for run in told for key in (COUPLED, INDEPENDENT)):
        blocks.append(_costs(told))
    elif any(run.series[COUPLED].count > 1 for run in told):
        blocks.append(Prose(f"Costs stay within {LEVEL:.0%} of their mean during training."))
    if any(_changes(run.series[WAITED], 1e-9) for run in told):
        blocks.append(_waits(told))
    return Section("transport", "Transport", (*blocks, Table(HEAD, tuple(map(_means, told)), CAPTION)))


def _changes(series: Series, share: float) -> bool:
    """Whether values differ from their mean by more than this share of it."""
    if series.count < 2:
        return False
    mean = float(series.mean.mean())
    return bool((abs(np.concatenate([series.low, series.high]) - mean) > share * abs(mean)).any())


def _batches(story: Story) -> list[dict[str, Any]]:
    """A row for every OT batch: one that serves several steps is counted once."""
    found: list[dict[str, Any]] = []
    for row in story.having(COUPLED):
        costs = (row[COUPLED], row.get(INDEPENDENT))
        if all(map(finite, costs)) and (not found or costs != (found[-1][COUPLED], found[-1][INDEPENDENT])):
            found.append(row)
    return found


def _costs(told: list[Told]) -> Figure:
    def paint(axes: "Axes") -> None:
        for run in told:
            shade, coupled, independent = figures.colour(run.place), run.series[COUPLED], run.series[INDEPENDENT]
            for series in (independent, coupled):
                figures.band(axes, series, shade)
            marker = "." if independent.count == 1 else None
            axes.plot(
                independent.steps, independent.mean, color=shade, linestyle=(0, (4, 2)), linewidth=1.1, marker=marker
            )
            figures.line(axes, coupled.steps, coupled.mean, run.place, legible(run.story.name))
        kinds = {str(run.story.identity.get("flow.coupling.cost.kind", "")) for run in told}
        axes.set_ylabel(f"cost per pair, {kinds.pop()}" if len(kinds) == 1 and kinds != {""} else "cost per pair")
        figures.step_axis(axes)
        figures.legend(axes)

    caption = "Cost per pair of an OT batch by training steps: coupled (solid) and independent pairs (dashed)."
    return figures.drawn("transport-cost", caption, paint, data=_data(told, COUPLED, INDEPENDENT))


def _waits(told: list[Told]) -> Figure:
    def paint(axes: "Axes") -> None:
        for run in told:
            series = run.series[WAITED]
            figures.line(axes, series.steps, 100 * series.mean, run.place, legible(run.story.name))
        axes.set_ylabel("waiting for OT, % of time")
        axes.set_ylim(bottom=0)
        figures.step_axis(axes)
        figures.legend(axes)

    caption = "Share of the time between two logged steps that training waited for a coupling."
    return figures.drawn("transport-time", caption, paint, data=_data(told, WAITED))


def _data(told: list[Told], *keys: str) -> dict[str, Any]:
    return {run.story.name: {key: run.series[key].as_json() for key in keys} for run in told}


def _means(run: Told) -> tuple[str, ...]:
    half = run.batches[len(run.batches) // 2 :]
    coupled, independent, waits, solving = (
        [float(row[key]) for row in half if finite(row.get(key))]
        for key in (COUPLED, INDEPENDENT, WAITED, "ot_seconds")
    )
    saved = [1 - a / b for a, b in zip(coupled, independent, strict=True) if b > 0]
    errors = [float(row["ot_marginal_error"]) for row in run.batches if finite(row.get("ot_marginal_error"))]
    return (
        run.story.name,
        str(run.story.identity.get("flow.coupling.kind", "-")),
        _mean(coupled),
        _mean(independent),
        _mean([100 * share for share in saved], " %"),
        _mean([100 * share for share in waits], " %"),
        lasting(sum(solving) / len(solving)) if solving else "-",
        f"{max(errors):.2g}" if errors else "-",
        f"{len(half):,}",
    )


def _mean(values: list[float], unit: str = "") -> str:
    if not values:
        return "-"
    mean, error = mean_and_error(torch.tensor(values, dtype=torch.float64))
    return measured(mean, error_of(error, len(values))) + unit
