"""The picture of the study of rectified pairs: quality against hops, drawn from the cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...report.figures import draw_figure, legend, points
from ..text.cell import Cell
from ..text.page import study_cells
from ..text.pictures import with_dark_scheme
from ..text.protocol import Protocol
from ..text.statistics import hops_mean, judged_mean
from .page import TITLES
from .variants import RECTIFIED_BUDGETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pictures(folder: Path) -> dict[str, str]:
    """The SVG of each text that has cells, by the name of its file."""
    drawn = {}
    for budget in RECTIFIED_BUDGETS:
        cells, protocol = study_cells(folder, budget.name), budget.variants[0].protocol
        if cells:
            name = f"rectified_{budget.name}"
            figure = draw_figure(
                name,
                f"{TITLES[budget.name]}: judged perplexity against hops",
                lambda *panels, cells=cells, protocol=protocol: _paint(panels, cells, protocol),
                panels=len(protocol.judges),
                width=6.4,
                height=3.6,
            )
            drawn[f"{name}.svg"] = with_dark_scheme(figure.svg)
    return drawn


def _paint(panels: "Sequence[Axes]", cells: Mapping[str, Sequence[Cell]], protocol: Protocol) -> None:
    """A line for each variant, a point for each number of steps."""
    for axes, judge in zip(panels, protocol.judges, strict=True):
        for place, (name, group) in enumerate(cells.items()):
            found = [(hops_mean(group, n), judged_mean(group, judge, n)) for n in protocol.sampler_steps]
            both = [(hops.value, ppl) for hops, ppl in found if hops is not None and ppl is not None]
            if both:
                values = [ppl.value for _, ppl in both]
                points(axes, [hops for hops, _ in both], values, [ppl.known_error for _, ppl in both], place, name)
        numbers = ", ".join(map(str, protocol.sampler_steps))
        axes.set_xlabel(f"hops per sequence; the points of a line: {numbers} steps")
        axes.set_ylabel(f"perplexity of samples by {judge}")
        legend(axes)
