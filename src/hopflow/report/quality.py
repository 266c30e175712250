"""Section: quality of samples against sampling steps, by a judge and by their entropy."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import Row
from . import figures
from .judges import judge_names
from .legible import legible
from .measures import steps_of
from .numbers import error_of, known, measured
from .section import Block, Figure, Prose, Section, Table
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITSELF = "the text itself"
STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
COLUMNS = {
    "gen_ppl": "generative perplexity",
    "entropy_bits": "entropy, bits",
    "jumps": "hops",
    "calls": "network calls",
}
CAUTION = "Compare it together with the entropy: repetitive text has a low generative perplexity, too."


def section(stories: Sequence[Story]) -> Section | None:
    """Curves over steps and a table of each run; None without a judge or a second number of steps."""
    judges = judge_names(stories)
    several = len(steps_of([row for story in stories for row in story.rows])) > 1
    if not (judges or several) or not any(_samples(story.rows) for story in stories):
        return None
    blocks: list[Block] = []
    if judges:
        said = " and ".join(judges.values())
        blocks.append(Prose(f"Generative perplexity is the perplexity of the samples under {said}. {CAUTION}"))
    if several:
        blocks += [_figure(stories, "gen_ppl", judge, f"quality-{judge[:6]}", name) for judge, name in judges.items()]
        blocks.append(_figure(stories, "entropy_bits", None, "entropy"))
    tables = (_table(story, judges) for story in stories if _samples(story.rows))
    return Section("quality", "Steps against quality", (*blocks, *tables))


def _samples(rows: Sequence[Row], quantity: str | None = None, judge: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row.set == SAMPLES and quantity in (None, row.quantity) and judge in (None, row.more.get("judge_hash"))
    ]


def _figure(stories: Sequence[Story], quantity: str, judge: str | None, name: str, reader: str = "") -> Figure:
    """A line for every run, η and temperature; the text itself as a level line."""
    lines = [
        (k, place, label, rows)
        for k, story in enumerate(stories)
        for place, (label, rows) in enumerate(_lines(story, quantity, judge, len(stories) > 1).items())
    ]
    levels = {
        f"{row.value:.4g}": row.value
        for story in stories
        for row in story.rows
        if row.quantity == quantity
        and row.more.get("sampler") == ITSELF
        and judge in (None, row.more.get("judge_hash"))
    }
    words = {"gen_ppl": "generative perplexity", "entropy_bits": "entropy within a sample, bits"}[quantity]
    counts = sorted({row.n for *_, rows in lines for row in rows})
    n = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    data = {label: [row.as_json() for row in rows] for _, _, label, rows in lines}
    by = f" (judge {reader})" if reader else ""
    caption = f"{words[0].upper()}{words[1:]}{by} by sampling steps; ± one standard error, n = {n} samples per point."
    return figures.drawn(name, caption, _painter(lines, list(levels.values()), words, quantity), data=data)


def _lines(story: Story, quantity: str, judge: str | None, several: bool) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(_samples(story.rows, quantity, judge), key=lambda row: row.more.get("steps") or 0):
        said = [story.name] if several else []
        said += [f"η = {row.eta:g}"] if row.eta is not None else ["left to right"]
        said += [f"temperature {row.more['temperature']:g}"] if row.more.get("temperature", 1.0) != 1.0 else []
        found.setdefault(legible(", ".join(said)), []).append(row)
    return found


def _painter(
    lines: list[tuple[int, int, str, list[Row]]], levels: list[float], words: str, quantity: str
) -> Callable[["Axes"], None]:
    def paint(axes: "Axes") -> None:
        for order, (k, place, label, rows) in enumerate(lines):
            style, marker = STYLES[place % 4], MARKERS[place % 4]
            by_steps = [row for row in rows if row.more.get("steps")]
            if by_steps:
                # shifted a little, so that error bars of several lines do not overlap
                at = [row.more["steps"] * 1.03 ** (order - (len(lines) - 1) / 2) for row in by_steps]
                values, errors = (
                    [row.value for row in by_steps],
                    [row.stderr if known(row.stderr) else 0.0 for row in by_steps],
                )
                figures.points(axes, at, values, errors, k, label, style, marker)
            else:  # a causal network has no steps to choose
                axes.axhline(rows[0].value, color=figures.colour(k), linestyle=style, label=label)
        for place, level in enumerate(levels):
            axes.axhline(
                level, color=figures.SOFT, linewidth=1, linestyle=(0, (4, 3)), label="_" * bool(place) + ITSELF
            )
        figures.count_axis(axes)
        if quantity == "gen_ppl":
            figures.count_axis(axes, "y")
        axes.set(xlabel="sampling steps", ylabel=words)
        figures.legend(axes, last=ITSELF)

    return paint


def _table(story: Story, judges: Mapping[str, str]) -> Table:
    """A row for every sampler, and for the text; columns that are the same everywhere are left out."""
    points: dict[tuple[Any, ...], dict[str, str]] = {}
    shown: dict[str, str] = {}
    for row in story.rows:
        if row.quantity not in COLUMNS or not (row.set == SAMPLES or row.more.get("sampler") == ITSELF):
            continue
        judge = judges.get(str(row.more.get("judge_hash")))
        name = COLUMNS[row.quantity] + (f" ({judge})" if judge else "")
        shown.setdefault(name, row.quantity)
        key = (row.more.get("sampler", "-"), row.more.get("temperature"), row.n)
        points.setdefault(key, {})[name] = measured(row.value, error_of(row.stderr, row.n))
    columns = sorted(shown, key=lambda name: list(COLUMNS).index(shown[name]))
    heats = len({heat for _, heat, _ in points if heat not in (None, 1.0)}) > 0
    rows = tuple(
        (
            sampler,
            *(["-" if heat is None else f"{heat:g}"] if heats else []),
            *(numbers.get(name, "-") for name in columns),
            f"{n:,}",
        )
        for (sampler, heat, n), numbers in points.items()
    )
    head = ("sampler", *(["temperature"] if heats else []), *columns, "n")
    return Table(head, rows, f"Samples of {story.name}.")
