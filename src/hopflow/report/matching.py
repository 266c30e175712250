"""Section: what the coupling does to a batch of the training text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from . import figures
from .kept import kept
from .legible import legible
from .matched import BATCHES, SEED, SHOWN, Matched, pair
from .numbers import measured
from .section import Block, Figure, Prose, Section, Table
from .story import Story
from .trained import Trained, told_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "The coupling on a batch"
MATRIX = (
    "Costs of pairs of data rows (rows) and source rows (columns) in one batch, centred by row and column; dark is "
    "cheap. Left: source rows in random order. Right: each column is the partner that the coupling chose, so that its "
    "pairs are the diagonal."
)
COSTS = "Costs of pairs in {batches} batches of {rows:,} rows: all pairs, and the pairs of the coupling."
HEAD = ("run", "cost", "rows", "independent", "coupled", "saved", "equal, independent", "equal, coupled")


@dataclass(frozen=True)
class Told:
    """The k-th run and its batches."""

    k: int
    story: Story
    found: Matched


def section(stories: Sequence[Story]) -> Section | None:
    """A sentence per run, one table, and pictures of each coupling that differs; None where no run has a network."""
    if all(story.checkpoint is None for story in stories):
        return None
    told, silent = told_of(stories, lambda k, story: Told(k, story, matched(story)), "no batch was coupled")
    if any(one.found.coupled for one in told):  # what a coupling would do is shown where no run has one
        told = [one for one in told if one.found.coupled]
    blocks: list[Block] = [Prose(_lead(one.story, one.found)) for one in told]
    seen = [one for one in told if not one.found.flat]
    if seen:
        blocks.append(_table(seen))
    for alike in _alike(seen):
        blocks += [_picture(alike), _histogram(alike)]
    blocks += map(Prose, silent)
    return Section("coupling", TITLE, tuple(blocks)) if blocks else None


def matched(story: Story) -> Matched:
    """Coupled now, or read from an earlier report on the same checkpoint."""
    trained = Trained.load(story)
    key = {"weights": trained.weights, "rows": trained.ot_batch, "shown": SHOWN, "batches": BATCHES, "seed": SEED}
    return kept(story.folder, "coupling", key, Matched, lambda: pair(trained))


def _alike(told: Sequence[Told]) -> list[list[Told]]:
    """Runs whose pictures would be the same, such as runs that differ in the seed only."""
    found: dict[tuple[object, ...], list[Told]] = {}
    for one in told:
        same = one.found
        found.setdefault((same.coupling, same.cost, same.rows, same.drawn, same.paired), []).append(one)
    return list(found.values())


def _lead(story: Story, found: Matched) -> str:
    saved = _percent(*found.gain)
    if found.flat:
        alike = f"{story.name}: all pairs of a batch have the same {found.cost} cost, so that no coupling can save any."
        return alike if found.coupled else f"{alike} Every position hops."
    if not found.coupled:
        return (
            f"{story.name} uses independent pairs. Exact optimal transport on Hamming distances would save {saved} of "
            f"the hops in batches of {found.rows:,} rows, the batch of the run. It is shown here."
        )
    what = "hops" if found.cost == "Hamming" else f"{found.cost} cost"
    return f"{story.name}: {found.coupling} saves {saved} of the {what} of independent pairs ({found.rows:,} rows)."


def _table(told: Sequence[Told]) -> Table:
    rows = tuple(
        (
            one.story.name,
            one.found.cost,
            f"{one.found.rows:,}",
            measured(*one.found.before),
            measured(*one.found.after),
            *(_percent(*share) for share in (one.found.gain, one.found.equal_before, one.found.equal_after)),
        )
        for one in told
    )
    counts = " or ".join(dict.fromkeys(f"{one.found.batches}" for one in told))
    caption = (
        f"Mean cost of a pair and share of positions with equal tokens, for independent and for coupled pairs of the "
        f"training text; ± over n = {counts} batches. Rows: the OT batch of the run."
    )
    return Table(HEAD, rows, caption)


def _percent(value: float, error: float) -> str:
    return f"{measured(100 * value, 100 * error)} %"


def _picture(alike: Sequence[Told]) -> Figure:
    k, found = alike[0].k, alike[0].found
    drawn, paired = (torch.tensor(square, dtype=torch.float64) for square in (found.drawn, found.paired))
    rows = (drawn.diagonal() - paired.diagonal()).argsort(descending=True, stable=True)
    drawn, paired = drawn[rows][:, rows], paired[rows][:, rows]

    def paint(before: "Axes", after: "Axes") -> None:
        both = torch.stack([drawn, paired])
        low, high = float(both.min()), float(both.max())
        for axes, content, title in ((before, drawn, "random order"), (after, paired, f"coupled: {found.coupling}")):
            image = axes.imshow(content.numpy(), cmap="viridis", interpolation="none", vmin=low, vmax=high)
            axes.set_title(title)
            axes.set(xlabel="source row", ylabel="data row")
            axes.grid(visible=False)
        bar = after.figure.colorbar(image, ax=(before, after), shrink=0.8, pad=0.02)
        bar.set_label(f"{found.cost} cost, centred")
        bar.outline.set_visible(False)

    some = f"The first {len(drawn)} of {found.rows:,} rows" if found.rows > len(drawn) else f"{found.rows} rows"
    caption = f"{_names(alike)}: {MATRIX} {some}, sorted by what their pair saves."
    data = {one.story.name: asdict(one.found) for one in alike}
    return figures.drawn(f"coupling_{k}", caption, paint, panels=2, width=5.2, height=4.3, data=data)


def _names(alike: Sequence[Told]) -> str:
    return ", ".join(one.story.name for one in alike)


def _histogram(alike: Sequence[Told]) -> Figure:
    k, found = alike[0].k, alike[0].found

    def paint(axes: "Axes") -> None:
        pairs = (("all pairs", found.all_pairs, figures.SOFT), (found.coupling, found.own_pairs, figures.colour(k)))
        for name, shares, shade in pairs:
            axes.stairs(shares, found.edges, fill=True, color=shade, alpha=0.35)
            axes.stairs(shares, found.edges, color=shade, linewidth=1.4, label=legible(name))
        axes.set(xlabel=f"{found.cost} cost of a pair", ylabel="share of the pairs")
        figures.legend(axes)

    caption = f"{_names(alike)}: {COSTS.format(batches=found.batches, rows=found.rows)}"
    return figures.drawn(f"pair_costs_{k}", caption, paint)
