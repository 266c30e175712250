"""The pictures of the text study as SVG files, drawn from the cells."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...report.figures import colour, count_axis, draw_figure, legend, points
from .budgets import BUDGETS
from .page import picture_name, study_cells
from .protocol import Protocol
from .statistics import Cells, bound_mean, judged_mean, tightest_reversal, transport_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = ("dfm_o", "dfm_b", "dfm_b_exact_ema", "dfm_mmf", "dfm_mmf_exact_ema")
"""Variants in the picture of samples; dfm_n equals dfm_o."""


def pictures(folder: Path, budget: str = "full") -> dict[str, str]:
    """The SVG of each picture by the name of its file."""
    cells, protocol = study_cells(folder, budget), BUDGETS[budget].variants[0].protocol
    own_size = {name: group for name, group in cells.items() if not name.endswith("_small")}
    drawn = {
        "bounds": draw_figure(
            "bounds",
            "Perplexity bounds on the test set; bars are one standard error",
            lambda axes: _bounds(axes, own_size, protocol),
            width=7.0,
            height=1.2 + 0.26 * max(1, len(own_size)),
        ),
        "samples": draw_figure(
            "samples",
            "Generative perplexity against sampling steps",
            lambda *panels: _samples(panels, own_size, protocol),
            panels=len(protocol.judges),
        ),
        "hops": draw_figure(
            "hops", "Hops per sequence against the OT batch", lambda axes: _hops(axes, own_size), width=7.0
        ),
    }
    return {picture_name(BUDGETS[budget], name): with_dark_scheme(figure.svg) for name, figure in drawn.items()}


DARK = {"ink": "#e8e8e8", "soft": "#b5b5b5", "grid": "#3d404b", "c0": "#6aa9ea", "c1": "#f08a3c", "c2": "#3fbf9b"}
"""Colors on a dark page; other colors are readable on both."""


def with_dark_scheme(svg: str) -> str:
    """An SVG file whose colors change where the reader prefers dark pages."""
    rules = " ".join(f"--{name}: {colour};" for name, colour in DARK.items())
    style = f"<style>@media (prefers-color-scheme: dark) {{ svg {{ {rules} }} }}</style>"
    opening, rest = svg.split(">", 1)
    return opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) + f">{style}{rest}\n"


def _bounds(axes: "Axes", cells: Cells, protocol: Protocol) -> None:
    """A row for each variant, a mark for each bound."""
    kinds = {
        "b0": lambda group: bound_mean(group, "test", "nll") or bound_mean(group, "test", "b0"),
        "b1": lambda group: bound_mean(group, "test", "b1"),
        "bk": lambda group: bound_mean(group, "test", "bk"),
        f"br, K = {protocol.paths}": lambda group: tightest_reversal(group, "test", protocol.paths),
    }
    for place, (kind, measure) in enumerate(kinds.items()):
        found = [(row, one) for row, group in enumerate(cells.values()) if (one := measure(group)) is not None]
        if found:
            axes.errorbar(
                [one.value for _, one in found],
                [row for row, _ in found],
                xerr=[one.known_error for _, one in found],
                fmt="osD^"[place],
                color=colour(place),
                markersize=4,
                capsize=2,
                label=kind,
            )
    axes.set_yticks(range(len(cells)), list(cells))
    axes.invert_yaxis()
    count_axis(axes, "x")
    axes.set_xlabel("perplexity bound (ar: exact)")
    legend(axes)


def _samples(panels: Sequence["Axes"], cells: Cells, protocol: Protocol) -> None:
    for judge, axes in zip(protocol.judges, panels, strict=True):
        for place, name in enumerate(DRAWN):
            means = [judged_mean(cells.get(name, ()), judge, steps) for steps in protocol.sampler_steps]
            found = [(s, one) for s, one in zip(protocol.sampler_steps, means, strict=True) if one is not None]
            if found:
                values = [one.value for _, one in found]
                points(axes, [s for s, _ in found], values, [one.known_error for _, one in found], place, name)
        count_axis(axes, "x")
        count_axis(axes, "y")
        axes.set_xlabel("sampling steps (η = 0)")
        axes.set_ylabel(f"generative perplexity, judge {judge}")
        legend(axes)


def _hops(axes: "Axes", cells: Cells) -> None:
    """Predicted hops as lines per source, counted hops as points."""
    sources = list(dict.fromkeys(str(group[0].recipe.get("source")) for group in cells.values() if group[0].transport))
    for place, source in enumerate(sources):
        rows = []
        for group in cells.values():
            recipe = group[0].recipe
            predicted, counted = (transport_mean(group, key) for key in ("predicted_jumps", "jumps"))
            if recipe.get("source") == source and predicted is not None and counted is not None:
                independent = recipe.get("coupling") == "independent"
                size = 1 if independent else recipe.get("ot_batch") or recipe.get("batch", 1)
                rows.append((int(size), predicted, counted))
        rows.sort(key=lambda row: row[0])
        sizes = [size for size, _, _ in rows]
        axes.plot(sizes, [one.value for _, one, _ in rows], "--", color=colour(place), marker="_", markersize=9)
        counted_values = [one.value for _, _, one in rows]
        errors = [one.known_error for _, _, one in rows]
        points(axes, sizes, counted_values, errors, place, source, style="none")
    count_axis(axes, "x")
    axes.set_xlabel("OT batch (1 = independent pairs); dashes: predicted from pairs, points: counted")
    axes.set_ylabel("hops per sequence")
    legend(axes)
