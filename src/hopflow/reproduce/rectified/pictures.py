"""The picture of the study of rectified pairs: quality against hops, drawn from the cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...report.figures import colour, draw_figure, legend
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
            )
            drawn[f"{name}.svg"] = with_dark_scheme(figure.svg)
    return drawn


def _paint(panels: "Sequence[Axes]", cells: Mapping[str, Sequence[Cell]], protocol: Protocol) -> None:
    """A line for each variant, a point for each number of steps."""
    for axes, judge in zip(panels, protocol.judges, strict=True):
        for place, (name, group) in enumerate(cells.items()):
            found = [(hops_mean(group, n, 0.0), judged_mean(group, judge, n, 0.0)) for n in protocol.sampler_steps]
            both = [(hops.value, ppl.value) for hops, ppl in found if hops is not None and ppl is not None]
            if both:
                x, y = zip(*both, strict=True)
                axes.plot(x, y, color=colour(place), marker="o", markersize=3.5, label=name)
        numbers = ", ".join(map(str, protocol.sampler_steps))
        axes.set_xlabel(f"hops per sequence ({numbers} steps, from high to low perplexity)")
        axes.set_ylabel(f"perplexity by {judge}")
        axes.set_yscale("log")
        legend(axes)
