"""Drawing of figures: SVG whose colours a page may change, and the same as PNG.

Every colour of the palette is drawn as it is, and named in the SVG: `var(--c0, #2a6fbb)`. A page that sets --c0
recolours it, one that does not shows the colour itself. Text stays text. The same numbers give the same bytes.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .legible import legible
from .section import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .series import Series

INK, SOFT, GRID = "#23272e", "#5d6570", "#dfe3e8"
CYCLE = ("#2a6fbb", "#d0620f", "#178568", "#b3478f", "#8a6d0b", "#4f4fc4", "#a8323e", "#3a8fa8")
"""Run k has colour k everywhere; chosen to differ also for colour-blind readers, on light and dark pages."""
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", **{hexa: f"--c{k}" for k, hexa in enumerate(CYCLE)}}
WIDTH, HEIGHT = 4.6, 2.9
"""Inches of one panel; text of 9 points is then readable in half a page and on a phone."""
DPI = 160
FEW, MANY = 12, 40
"""Points up to which each is marked, and up to which each has an error bar."""
THEME: dict[str, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a run may be called $x$
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "path.simplify": True,
}


def colour(run: int) -> str:
    """The colour of a run, by its place among the runs."""
    return CYCLE[run % len(CYCLE)]


def dashes(run: int) -> str:
    """The line style of a run, for more runs than colours."""
    return ("-", "--", ":", "-.")[run // len(CYCLE) % 4]


def drawn(
    name: str,
    caption: str,
    paint: Callable[..., None],
    *,
    panels: int = 1,
    width: float = WIDTH,
    height: float = HEIGHT,
    data: Mapping[str, Any] | None = None,
) -> Figure:
    """A figure with panels side by side; `paint` is called with their axes, one argument for each."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    theme: Any = {**THEME, "svg.hashsalt": name}
    with matplotlib.rc_context(theme), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without some script's letters, an axis that holds one value
        canvas = Canvas(figsize=(width * panels, height))
        FigureCanvasAgg(canvas)
        paint(*canvas.subplots(1, panels, squeeze=False)[0])
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return Figure(name, caption, _inline(svg.getvalue(), name, caption), png.getvalue(), data or {}, panels > 1)


def line(axes: "Axes", x: Any, y: Any, run: int, label: str) -> None:
    """A run's line; where it has few points, these are marked."""
    marker = "o" if len(x) < FEW else ""
    axes.plot(x, y, color=colour(run), linestyle=dashes(run), marker=marker, markersize=3.5, label=label)


def band(axes: "Axes", series: "Series", shade: str) -> None:
    """From the minimum to the maximum of the values that a thinned series stands for."""
    if series.thinned:
        axes.fill_between(series.steps, series.low, series.high, color=shade, alpha=0.15, linewidth=0)


def points(
    axes: "Axes",
    x: Sequence[int | float],
    y: Sequence[int | float],
    errors: Sequence[int | float],
    run: int,
    label: str,
    style: str | None = None,
    marker: str = "o",
) -> None:
    """Measured values joined by a line, with error bars unless there are too many."""
    bars = len(x) <= MANY
    axes.errorbar(
        x,
        y,
        yerr=errors if bars else None,
        color=colour(run),
        linestyle=style or dashes(run),
        marker=marker if bars else "",
        markersize=4,
        elinewidth=1,
        capsize=2.5,
        label=label,
    )


def legend(axes: "Axes", last: str = "") -> None:
    """Above the panel, where there is more than one name; one of them may be put last."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    order = sorted(range(len(labels)), key=lambda place: labels[place] == last)
    longest = max(map(len, labels))
    axes.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3 if longest <= 14 else 2 if longest <= 28 else 1,
        borderaxespad=0.2,
    )


def count_axis(axes: "Axes", which: str = "x") -> None:
    """Integers on a logarithmic axis: 8, 16, 32."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2 if which == "x" else 10)
    axis.set_major_locator(LogLocator(base=2 if which == "x" else 10, subs=(1.0,) if which == "x" else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def step_axis(axes: "Axes") -> None:
    """Training steps, with thousands separators."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.0f}"))
    low, high = axes.get_xlim()
    if high - low < 1:  # a single step, which would be named at every tick
        axes.set_xlim(low - 1, high + 1)
    axes.set_xlabel("step")


def standalone(figure: Figure) -> str:
    """The drawing as a separate file, in light colours."""
    svg = re.sub(r"var\(--\w+, (#\w{6})\)", r"\1", figure.svg)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _inline(svg: str, name: str, caption: str) -> str:
    """Inline SVG: no header, style sheet or address; unique ids, colours and font of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>\s*", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    title = escape(legible(caption))
    head = (
        f'<svg viewBox="{box[1]}" width="100%" role="img" aria-label="{title}" '
        f'stroke-linejoin="round" stroke-linecap="butt"><title>{title}</title>'
    )
    svg = re.sub(r"<svg.*?>", lambda _: head, svg, count=1, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href").replace("'DejaVu Sans'", "system-ui, sans-serif")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for shade, variable in VARIABLES.items():
        svg = re.sub(rf"(?<=[\s:]){shade}\b", f"var({variable}, {shade})", svg)
    return svg.strip()
