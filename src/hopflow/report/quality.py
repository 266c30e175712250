"""Quality: what more sampling steps buy, by a judge and by how varied the samples are."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import Row
from . import figures
from .legible import legible
from .numbers import measured
from .section import Block, Figure, Prose, Section, Table
from .story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ITSELF = "the text itself"
STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
COLUMNS = {
    "gen_ppl": "generative perplexity",
    "entropy_bits": "entropy, bits",
    "jumps": "jumps",
    "calls": "network calls",
}


def section(stories: Sequence[Story]) -> Section | None:
    """Curves over steps and the numbers below them; None where no samples were measured."""
    if not any(_samples(story.rows) for story in stories):
        return None
    judges = dict.fromkeys(str(row.more["judge_hash"]) for s in stories for row in s.rows if "judge_hash" in row.more)
    blocks: list[Block] = [_protocol(stories, list(judges))]
    if len({row.more.get("steps") for story in stories for row in _samples(story.rows)}) > 1:
        blocks += [_figure(stories, "gen_ppl", judge, f"quality-{judge[:6]}") for judge in judges]
        blocks.append(_figure(stories, "entropy_bits", None, "entropy"))
    else:
        blocks.append(Prose("Only one number of steps was measured; `hopflow eval RUN steps=8,16,32` makes a curve."))
    return Section("quality", "Steps against quality", (*blocks, *(_table(story) for story in stories if story.rows)))


def _samples(rows: Sequence[Row], quantity: str | None = None, judge: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row.set == SAMPLES and quantity in (None, row.quantity) and judge in (None, row.more.get("judge_hash"))
    ]


def _protocol(stories: Sequence[Story], judges: Sequence[str]) -> Prose:
    """What the numbers are of, and by whom."""
    named = {row.more["judge_hash"]: judge_name(row) for story in stories for row in story.rows if "judge" in row.more}
    said = [f"The judge {named.get(judge, 'unknown')} ({judge[:6]}) reads the samples" for judge in judges]
    if not said:
        said = ["No judge has read the samples; `hopflow eval RUN judge=…` asks one"]
    return Prose(
        f"{'. '.join(said)}. A low generative perplexity alone is easily had by repeating oneself: read it beside the "
        f"entropy of the tokens within a sample, and beside the text itself."
    )


def judge_name(row: Row) -> str:
    """As far as the row tells."""
    judge = row.more.get("judge")
    return str(judge.get("name", "unknown")) if isinstance(judge, dict) else "unknown"


def _figure(stories: Sequence[Story], quantity: str, judge: str | None, name: str) -> Figure:
    """A line for every run, η and temperature; the text itself as a level to reach."""
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
    caption = f"{words[0].upper()}{words[1:]} by sampling steps; ± one standard error, n = {n} samples a point."
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
                # a little apart, so that error bars of several lines can be told from each other
                at = [row.more["steps"] * 1.03 ** (order - (len(lines) - 1) / 2) for row in by_steps]
                values, errors = [row.value for row in by_steps], [row.stderr for row in by_steps]
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


def _table(story: Story) -> Table:
    """A line for every sampler, and for the text."""
    points: dict[tuple[Any, ...], dict[str, str]] = {}
    shown: dict[str, str] = {}
    order = [row for row in story.rows if row.set == SAMPLES or row.more.get("sampler") == ITSELF]
    for row in order:
        if row.quantity not in COLUMNS:
            continue
        mark = f" [{row.more['judge_hash'][:6]}]" if "judge_hash" in row.more else ""
        shown.setdefault(row.quantity + mark, COLUMNS[row.quantity] + mark)
        key = (row.more.get("sampler", "-"), row.more.get("temperature"), row.n)
        points.setdefault(key, {})[row.quantity + mark] = measured(row.value, row.stderr)
    columns = sorted(shown, key=lambda name: list(COLUMNS).index(name.partition(" ")[0]))
    rows = tuple(
        (sampler, "-" if heat is None else f"{heat:g}", *(numbers.get(name, "-") for name in columns), f"{n:,}")
        for (sampler, heat, n), numbers in points.items()
    )
    return Table(("sampler", "temperature", *(shown[name] for name in columns), "n"), rows, f"Samples of {story.name}.")
