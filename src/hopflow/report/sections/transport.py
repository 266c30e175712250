"""Section: transport costs of the pairs during training, and the time that couplings took."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...bounds.estimate import mean_and_error
from ...system.durations import duration
from ...system.safe_text import printable
from .. import figures
from ..blocks import Block, Figure, Paragraph, Section, TableBlock
from ..numbers import MetricColumn, StepSeries, format_value, is_finite, standard_error
from ..run_data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUPLED, INDEPENDENT, WAITED = "ot_cost", "ot_independent_cost", "ot_wait_share"
HEAD = (
    *("run", "coupling", "cost, coupled", "cost, independent", "saved"),
    *("waiting", "time per coupling", "marginal error", "n"),
)
LEAD = (
    "In training, the coupling pairs source rows with data rows of each OT batch by optimal transport (OT). The cost "
    "of a pair is compared with that of independent pairs; the difference is what the coupling saves."
)
CAPTION = (
    "Means over the n logged OT batches of the second half of training, ± one standard error. Cost: per pair. Waiting: "
    "share of the training time that was spent waiting for couplings. Marginal error: the largest of all OT batches."
)
CONSTANT = 0.05
"""Costs that stay within this share of their mean are not drawn: the table has the mean."""


@dataclass(frozen=True, eq=False)
class RunTransport:
    """Run number k, its logged OT batches, and the series to draw."""

    k: int
    run: RunData
    batches: list[dict[str, Any]]
    series: dict[str, StepSeries]


def section(runs: Sequence[RunData]) -> Section | None:
    """Costs with and without the coupling, waiting time, and means; None if no run has a coupling."""
    found = []
    for k, run in enumerate(runs):
        if batches := _batches(run):
            series = {key: MetricColumn.of(batches, key).series() for key in (COUPLED, INDEPENDENT, WAITED)}
            found.append(RunTransport(k, run, batches, series))
    if not found:
        return None
    blocks: list[Block] = [Paragraph(LEAD)]
    if any(_varies(one.series[key], CONSTANT) for one in found for key in (COUPLED, INDEPENDENT)):
        blocks.append(_costs(found))
    elif any(one.series[COUPLED].count > 1 for one in found):
        blocks.append(Paragraph(f"Costs stay within {CONSTANT:.0%} of their mean during training."))
    if any(_varies(one.series[WAITED], 1e-9) for one in found):
        blocks.append(_waits(found))
    return Section(
        "transport", "Optimal transport in training", (*blocks, TableBlock(HEAD, tuple(map(_means, found)), CAPTION))
    )


def _varies(series: StepSeries, share: float) -> bool:
    """Whether values differ from their mean by more than this share of it."""
    if series.count < 2:
        return False
    mean = float(series.mean.mean())
    return bool((abs(np.concatenate([series.low, series.high]) - mean) > share * abs(mean)).any())


def _batches(run: RunData) -> list[dict[str, Any]]:
    """One row per OT batch: a batch that serves several steps is counted once."""
    found: list[dict[str, Any]] = []
    for row in run.having(COUPLED):
        costs = (row[COUPLED], row.get(INDEPENDENT))
        if all(map(is_finite, costs)) and (not found or costs != (found[-1][COUPLED], found[-1][INDEPENDENT])):
            found.append(row)
    return found


def _costs(found: list[RunTransport]) -> Figure:
    def paint(axes: "Axes") -> None:
        for one in found:
            shade, coupled, independent = figures.colour(one.k), one.series[COUPLED], one.series[INDEPENDENT]
            for series in (independent, coupled):
                figures.band(axes, series, shade)
            marker = "." if independent.count == 1 else None
            axes.plot(
                independent.steps, independent.mean, color=shade, linestyle=(0, (4, 2)), linewidth=1.1, marker=marker
            )
            figures.line(axes, coupled.steps, coupled.mean, one.k, printable(one.run.name))
        kinds = {str(one.run.identity.get("flow.coupling.cost.kind", "")) for one in found}
        axes.set_ylabel(f"cost per pair, {kinds.pop()}" if len(kinds) == 1 and kinds != {""} else "cost per pair")
        figures.step_axis(axes)
        figures.legend(axes)

    caption = "Cost per pair of an OT batch: coupled pairs (solid) and independent pairs (dashed)."
    return figures.draw_figure("transport-cost", caption, paint, data=_data(found, COUPLED, INDEPENDENT))


def _waits(found: list[RunTransport]) -> Figure:
    def paint(axes: "Axes") -> None:
        for one in found:
            series = one.series[WAITED]
            figures.line(axes, series.steps, 100 * series.mean, one.k, printable(one.run.name))
        axes.set_ylabel("waiting for couplings, % of time")
        axes.set_ylim(bottom=0)
        figures.step_axis(axes)
        figures.legend(axes)

    caption = "Share of the training time that was spent waiting for couplings, between two logged steps."
    return figures.draw_figure("transport-time", caption, paint, data=_data(found, WAITED))


def _data(found: list[RunTransport], *keys: str) -> dict[str, Any]:
    return {one.run.name: {key: one.series[key].as_json() for key in keys} for one in found}


def _means(one: RunTransport) -> tuple[str, ...]:
    half = one.batches[len(one.batches) // 2 :]
    coupled, independent, waits, solving = (
        [float(row[key]) for row in half if is_finite(row.get(key))]
        for key in (COUPLED, INDEPENDENT, WAITED, "ot_seconds")
    )
    saved = [1 - a / b for a, b in zip(coupled, independent, strict=True) if b > 0]
    errors = [float(row["ot_marginal_error"]) for row in one.batches if is_finite(row.get("ot_marginal_error"))]
    return (
        one.run.name,
        str(one.run.identity.get("flow.coupling.kind", "-")),
        _mean(coupled),
        _mean(independent),
        _mean([100 * share for share in saved], " %"),
        _mean([100 * share for share in waits], " %"),
        duration(sum(solving) / len(solving)) if solving else "-",
        f"{max(errors):.2g}" if errors else "-",
        f"{len(half):,}",
    )


def _mean(values: list[float], unit: str = "") -> str:
    if not values:
        return "-"
    mean, error = mean_and_error(torch.tensor(values, dtype=torch.float64))
    return format_value(mean, standard_error(error, len(values))) + unit
