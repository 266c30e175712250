"""The pictures of docs/choosing.md: seven inches wide, in colors that a color-blind reader can tell apart.

A picture follows the page around it: it has no background, and its colors change where the page is dark.
"""

import re
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"  # Okabe and Ito's
COLOURS = {
    "#000000": ("ink", "#e8e8e8"),
    "#e6e6e6": ("grid", "#3d404b"),
    GREY: ("grey", "#b5b5b5"),
    BLUE: ("blue", "#56b4e9"),
    ORANGE: ("orange", "#f28e4b"),
    GREEN: ("green", "#2fc99a"),
    PURPLE: ("purple", "#e3a3c6"),
}
"""What a color is called, and what it is on a dark page."""
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "hopflow",  # the same file from the same numbers
    "lines.markersize": 5,
}
DRAWN = ("sources", "couplings", "predictions", "eta")


def draw(folder: Path, table: dict, curves: dict) -> None:
    folder.mkdir(exist_ok=True)
    with pyplot.rc_context(STYLE):
        for name in DRAWN:
            figure = globals()[name](table, curves)
            file = folder / f"choosing_{name}.svg"
            figure.savefig(file, metadata={"Date": None})
            file.write_text(themed(file.read_text(encoding="utf-8")), encoding="utf-8")
            pyplot.close(figure)


def themed(svg: str) -> str:
    """The same drawing with its colors as variables, which a dark page sets anew."""
    for colour, (name, _) in COLOURS.items():
        svg = re.sub(f"{colour}\\b", f"var(--{name})", svg, flags=re.IGNORECASE)
    light = "".join(f"--{name}: {colour}; " for colour, (name, _) in COLOURS.items())
    dark = "".join(f"--{name}: {colour}; " for name, colour in COLOURS.values())
    rules = f":root {{ {light}fill: var(--ink) }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    return svg.replace("</style>", f"\n{rules}</style>", 1)


def panels(count: int):
    return pyplot.subplots(1, count, figsize=(7, 3.1), layout="constrained")


def points(axes, x, numbers, **look):
    """Values with bars of two standard errors."""
    values, errors = zip(*numbers, strict=True)
    axes.errorbar(x, values, yerr=[2 * error for error in errors], capsize=3, **look)


def sources(table, curves):
    names = ("mask", "multimask", "uniform", "bag_of_words")
    figure, (left, right) = panels(2)
    points(left, range(4), [table[n]["jumps"] for n in names], fmt="o", color=BLUE, label="measured")
    for x, name in enumerate(names):
        left.plot([x - 0.25, x + 0.25], [table[name]["predicted"][0]] * 2, color=GREY, ls="--", lw=1.2)
    left.plot([], [], color=GREY, ls="--", lw=1.2, label="predicted from pairs")
    left.set(title="Jumps per sample of 64 letters", ylim=(55, 70))
    left.legend(loc="upper left")
    for key, label, marker, colour, shift in (
        ("b0", "b0: η = 0 samples", "o", BLUE, -0.2),
        ("bk", "bk: η = 0 samples", "s", ORANGE, 0.0),
        ("b1", "b1: η = 1 samples", "^", GREEN, 0.2),
    ):
        have = [(x + shift, table[n][key]) for x, n in enumerate(names) if key in table[n]]
        points(right, [x for x, _ in have], [v for _, v in have], fmt=marker, color=colour, label=label)
    right.set(title="Bounds on perplexity per letter", ylim=(0, None))
    right.legend(loc="upper left")
    for axes in (left, right):
        axes.set_xticks(range(4), ["mask", "multi-\nmask", "uniform", "bag of\nwords"])
        axes.set_xlim(-0.5, 3.5)
    return figure


def couplings(table, curves):
    figure, (left, right) = panels(2)
    for tokens, colour, label in (("char", ORANGE, "letters, predicted"), ("morse", BLUE, "Morse, predicted")):
        alone = curves[tokens][1][0]
        sizes = [size for size in curves[tokens] if size > 1]
        left.plot(sizes, [100 * curves[tokens][n][0] / alone for n in sizes], "--", color=colour, label=label)
    names = {size: f"morse_exact_{size}" for size in (32, 128, 512)}
    alone = table["morse_independent"]["jumps"][0]
    share = [tuple(100 * part / alone for part in table[name]["jumps"]) for name in names.values()]
    points(left, list(names), share, fmt="o", color=BLUE, label="Morse, trained")
    left.set(title="Jumps, % of those of independent pairs", xlabel="OT batch", ylim=(60, 101))
    left.legend(loc="lower left")
    ticks = [8, 32, 128, 512]
    every = {8: "morse_independent", **names}
    for key, marker, colour, shift in (("b0", "o", BLUE, 1.0), ("bk", "s", ORANGE, 0.88), ("b1", "^", GREEN, 1.14)):
        x = [shift * size for size in every]
        points(right, x, [table[n][key] for n in every.values()], fmt=marker, color=colour, label=key)
    right.set(title="Bounds on perplexity per Morse symbol", xlabel="OT batch", ylim=(2, 4.6))
    right.legend(loc="upper left", ncols=3)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    left.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
    right.set_xticks(ticks, ["none", "32", "128", "512"])
    return figure


def predictions(table, curves):
    figure, pair = panels(2)
    steps = (4, 8, 16, 32, 64, 128, 256)
    cases = (("mask", "mask", "Evidence, Carry", "Plain"), ("bag_of_words", "bag of words", "Evidence", "Plain, Carry"))
    for axes, (name, title, with_evidence, without) in zip(pair, cases, strict=True):
        for case, label, fmt, colour in (
            (name, with_evidence, "o-", BLUE),
            (f"{name}_plain", without, "s--", ORANGE),
        ):
            points(axes, steps, [table[case][f"bn_{n}"] for n in steps], fmt=fmt, color=colour, label=label)
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(steps, map(str, steps))
        axes.set(title=f"{title}: bn, perplexity per letter", xlabel="sampler steps N, η = 0")
        axes.legend(loc="upper left")
        axes.margins(y=0.25)
    return figure


def eta(table, curves):
    found = table["bag_of_words"]
    etas = (0.0, 0.25, 0.5, 1.0, 2.0)
    names = [f"{e:g}" for e in etas]
    figure, (left, middle, right) = panels(3)
    expected = [found["predicted"][0] + found[f"surplus_{e}"][0] for e in names]
    points(left, etas, [found[f"jumps_{e}"] for e in names], fmt="o", color=BLUE, label="measured")
    left.plot(etas, expected, "--", color=GREY, label="predicted")
    left.set(title="Jumps per sample", ylim=(0, None))
    points(middle, etas, [found[f"b{e}"] for e in names], fmt="^-", color=GREEN, label="bound $b_η$")
    points(middle, etas, [found[f"gen_ppl_{e}"] for e in names], fmt="s-", color=PURPLE, label="by the judge")
    middle.set(title="Perplexity per letter", ylim=(0, None))
    points(right, etas, [found[f"entropy_{e}"] for e in names], fmt="o-", color=BLUE)
    right.set(title="Entropy of a sample, bits", ylim=(3.5, 4.5))
    for axes in (left, middle):
        axes.legend(loc="best")
    for axes in (left, middle, right):
        axes.set(xlabel="η")
    return figure
