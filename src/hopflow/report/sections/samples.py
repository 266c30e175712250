"""Sections: quality of samples by sampling steps (judge and entropy), and texts that were sampled during training."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...evaluation.rows import ITSELF, SAMPLES, Row
from ...system.safe_text import printable
from .. import figures
from ..blocks import Block, Figure, Paragraph, SampleTexts, Section, TableBlock
from ..numbers import format_value, is_known, standard_error
from ..run_data import RunData, judge_names
from .evaluation import steps_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
COLUMNS = {
    "gen_ppl": "generative perplexity",
    "entropy_bits": "entropy, bits",
    "jumps": "hops per sequence",
    "calls": "network calls",
}
LEAD = "How good the samples are for each number of sampling steps, and how many hops and network calls they take."
ENTROPY = (
    "Entropy is that of the token frequencies within a sample: a value far below that of the held-out text is a sign "
    "of repetitive samples."
)
CAUTION = "Lower is better if the entropy is not lower as well: repetitive text also has a low generative perplexity."
MAX_TEXTS = 8
"""Texts of each run that are shown."""
MAX_CHARACTERS = 20_000
"""Characters of a text; longer texts are cut, with a note."""


# -- quality -----------------------------------------------------------------------------------------------------------


def quality(runs: Sequence[RunData]) -> Section | None:
    """Curves over sampling steps and a table per run; None without a judge or a second number of steps."""
    judges = judge_names(runs)
    several = len(steps_of([row for run in runs for row in run.rows])) > 1
    if not (judges or several) or not any(_samples(run.rows) for run in runs):
        return None
    blocks: list[Block] = [Paragraph(f"{LEAD} {ENTROPY}")]
    if judges:
        names = " and ".join(judges.values())
        blocks.append(Paragraph(f"Generative perplexity is the perplexity of the samples under {names}. {CAUTION}"))
    if several:
        blocks += [_figure(runs, "gen_ppl", judge, f"quality-{judge[:6]}", name) for judge, name in judges.items()]
        blocks.append(_figure(runs, "entropy_bits", None, "entropy"))
    tables = (_table(run, judges) for run in runs if _samples(run.rows))
    return Section("quality", "Sample quality", (*blocks, *tables))


def _samples(rows: Sequence[Row], quantity: str | None = None, judge: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row.set == SAMPLES and quantity in (None, row.quantity) and judge in (None, row.more.get("judge_hash"))
    ]


def _figure(runs: Sequence[RunData], quantity: str, judge: str | None, name: str, judge_name: str = "") -> Figure:
    """A line for every run, η, sampler and temperature; the held-out text itself as a horizontal line."""
    lines = [
        (k, place, label, rows)
        for k, run in enumerate(runs)
        for place, (label, rows) in enumerate(_lines(run, quantity, judge, len(runs) > 1).items())
    ]
    levels = {
        f"{row.value:.4g}": row.value
        for run in runs
        for row in run.rows
        if row.quantity == quantity
        and row.more.get("sampler") == ITSELF
        and judge in (None, row.more.get("judge_hash"))
    }
    words = {"gen_ppl": "generative perplexity", "entropy_bits": "entropy of a sample, bits"}[quantity]
    counts = sorted({row.n for *_, rows in lines for row in rows})
    n = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"
    data = {label: [row.as_json() for row in rows] for _, _, label, rows in lines}
    by = f" (judge {judge_name})" if judge_name else ""
    caption = f"{words[0].upper()}{words[1:]}{by}, by sampling steps; ± one standard error, n = {n} samples per point."
    return figures.draw_figure(name, caption, _painter(lines, list(levels.values()), words, quantity), data=data)


def _lines(run: RunData, quantity: str, judge: str | None, several: bool) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(_samples(run.rows, quantity, judge), key=lambda row: row.more.get("steps") or 0):
        parts = [run.name] if several else []
        parts += [f"η = {row.eta:g}"] if row.eta is not None else ["left to right"]
        parts += [str(row.more["sampler_family"])] if "sampler_family" in row.more else []
        parts += [f"temperature {row.more['temperature']:g}"] if row.more.get("temperature", 1.0) != 1.0 else []
        found.setdefault(printable(", ".join(parts)), []).append(row)
    return found


def _painter(
    lines: list[tuple[int, int, str, list[Row]]], levels: list[float], words: str, quantity: str
) -> Callable[["Axes"], None]:
    def paint(axes: "Axes") -> None:
        for order, (k, place, label, rows) in enumerate(lines):
            style, marker = STYLES[place % 4], MARKERS[place % 4]
            by_steps = [row for row in rows if row.more.get("steps")]
            if by_steps:
                # small shifts, so that error bars of several lines do not overlap
                at = [row.more["steps"] * 1.03 ** (order - (len(lines) - 1) / 2) for row in by_steps]
                values, errors = (
                    [row.value for row in by_steps],
                    [row.stderr if is_known(row.stderr) else 0.0 for row in by_steps],
                )
                figures.points(axes, at, values, errors, k, label, style, marker)
            else:  # an autoregressive network has no sampling steps
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


def _table(run: RunData, judges: Mapping[str, str]) -> TableBlock:
    """One row per sampler, and one for the held-out text itself."""
    points: dict[tuple[Any, ...], dict[str, str]] = {}
    shown: dict[str, str] = {}
    for row in run.rows:
        if row.quantity not in COLUMNS or not (row.set == SAMPLES or row.more.get("sampler") == ITSELF):
            continue
        judge = judges.get(str(row.more.get("judge_hash")))
        name = COLUMNS[row.quantity] + (f" ({judge})" if judge else "")
        shown.setdefault(name, row.quantity)
        key = (row.more.get("sampler", "-"), row.more.get("temperature"), row.n)
        points.setdefault(key, {})[name] = format_value(row.value, standard_error(row.stderr, row.n))
    columns = sorted(shown, key=lambda name: list(COLUMNS).index(shown[name]))
    has_temperatures = len({temperature for _, temperature, _ in points if temperature not in (None, 1.0)}) > 0
    rows = tuple(
        (
            sampler,
            *(["-" if temperature is None else f"{temperature:g}"] if has_temperatures else []),
            *(numbers.get(name, "-") for name in columns),
            f"{n:,}",
        )
        for (sampler, temperature, n), numbers in points.items()
    )
    head = ("sampler", *(["temperature"] if has_temperatures else []), *columns, "n")
    return TableBlock(head, rows, f"Samples of {run.name}; ± one standard error over n samples.")


# -- texts -------------------------------------------------------------------------------------------------------------


def texts(runs: Sequence[RunData]) -> Section | None:
    """The first samples of each run, not selected; None if no run has any."""
    if not any(run.samples for run in runs):
        return None
    blocks: list[Block] = [Paragraph("Texts that the network sampled during training.")]
    for run in runs:
        if not run.samples:
            blocks.append(Paragraph(f"{run.name} has no samples."))
            continue
        first = run.samples[:MAX_TEXTS]
        step = first[0].get("step")
        at = f" after step {step + 1:,}" if isinstance(step, int) else ""
        facts = f"{run.name}: the first {len(first)} of {len(run.samples):,} samples{at}, not selected."
        shown = tuple(_cut(sample["text"]) for sample in first)
        blocks.append(SampleTexts(shown, facts, run.decoded(shown)))
    return Section("samples", "Samples", tuple(blocks))


def _cut(text: str) -> str:
    rest = len(text) - MAX_CHARACTERS
    return text if rest <= 0 else f"{text[:MAX_CHARACTERS]}… ({rest:,} characters more)"
