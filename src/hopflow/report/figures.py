"""Figures drawn by matplotlib, as SVG for the page and as PNG.

The SVG refers to each color by a CSS variable with a default, `var(--c0, #2a6fbb)`: the page sets --c0 for its light
and dark schemes. Text stays text. Equal numbers result in equal bytes.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..system.safe_text import printable
from .blocks import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .numbers import StepSeries

INK, SOFT, GRID = "#23272e", "#5d6570", "#dfe3e8"
CYCLE = ("#2a6fbb", "#d0620f", "#178568", "#b3478f", "#8a6d0b", "#4f4fc4", "#a8323e", "#3a8fa8")
"""Run k has color k in every figure; the colors differ for color-blind readers, too."""
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", **{hexa: f"--c{k}" for k, hexa in enumerate(CYCLE)}}
WIDTH, HEIGHT = 4.6, 2.9
"""Inches of one panel: text of 9 points is readable at half the width of a page and on a phone."""
DPI = 160
MAX_MARKERS, MAX_ERROR_BARS = 12, 40
"""Lines with fewer points have markers, and lines with at most this many have error bars."""
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
    """The color of run number `run`."""
    return CYCLE[run % len(CYCLE)]


def dashes(run: int) -> str:
    """The line style of run number `run`: it changes when the colors repeat."""
    return ("-", "--", ":", "-.")[run // len(CYCLE) % 4]


def draw_figure(
    name: str,
    caption: str,
    paint: Callable[..., None],
    *,
    panels: int = 1,
    width: float = WIDTH,
    height: float = HEIGHT,
    data: Mapping[str, Any] | None = None,
) -> Figure:
    """A figure with panels side by side; `paint` draws on their axes, one argument per panel."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    theme: Any = {**THEME, "svg.hashsalt": name}
    with matplotlib.rc_context(theme), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks, an axis with a single value
        canvas = Canvas(figsize=(width * panels, height))
        FigureCanvasAgg(canvas)
        paint(*canvas.subplots(1, panels, squeeze=False)[0])
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        canvas.savefig(png, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return Figure(name, caption, _inline(svg.getvalue(), name, caption), png.getvalue(), data or {}, panels > 1)


def line(axes: "Axes", x: Any, y: Any, run: int, label: str) -> None:
    """The line of a run; a line of few points has markers."""
    marker = "o" if len(x) < MAX_MARKERS else ""
    axes.plot(x, y, color=colour(run), linestyle=dashes(run), marker=marker, markersize=3.5, label=label)


def band(axes: "Axes", series: "StepSeries", shade: str) -> None:
    """A band from the minimum to the maximum of the values that each point of a thinned series is the mean of."""
    if series.is_thinned:
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
    """Values on a line, with error bars unless there are too many."""
    bars = len(x) <= MAX_ERROR_BARS
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
    """A legend above the panel if there are at least two labels; the label `last` comes last."""
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
    """A logarithmic axis with plain numbers: 8, 16, 32."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2 if which == "x" else 10)
    axis.set_major_locator(LogLocator(base=2 if which == "x" else 10, subs=(1.0,) if which == "x" else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def step_axis(axes: "Axes") -> None:
    """The x axis shows training steps, with thousands separators."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.0f}"))
    low, high = axes.get_xlim()
    if high - low < 1:  # a single step would label every tick
        axes.set_xlim(low - 1, high + 1)
    axes.set_xlabel("training step")


def standalone(figure: Figure) -> str:
    """The SVG as a separate file, in light colors."""
    svg = re.sub(r"var\(--\w+, (#\w{6})\)", r"\1", figure.svg)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _inline(svg: str, name: str, caption: str) -> str:
    """Inline SVG without header, style sheet and URLs; with unique ids, and colors and font of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>\s*", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    title = escape(printable(caption))
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
