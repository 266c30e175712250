"""Matching: the coupling on a batch of the run's own text, before and after, as pictures."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from . import figures
from .kept import kept
from .legible import legible
from .matched import BATCHES, ROWS, SEED, Matched, pair
from .numbers import measured
from .section import Block, Figure, Prose, Section, Table
from .story import Story
from .trained import Trained, told_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "The coupling on a batch"
MATRIX = (
    "What it costs to lead each source row (column) to each data row (row) of one batch, less the means of its row and "
    "its column, which no pairing changes; dark is cheap. Left: source rows as drawn, pairs are the diagonal. Right: "
    "in the order that the coupling gives them, its pairs are the diagonal. Data rows in the order of what they save."
)
COSTS = "Costs of the pairs of {batches} batches: all pairs, which are what independence pays, and the coupling's own."

Told = tuple[int, Story, Matched]


def section(stories: Sequence[Story]) -> Section | None:
    """One table; of each run its first batch, or why there is none. None where no run has a network."""
    if all(story.checkpoint is None for story in stories):
        return None
    told, silent = told_of(stories, lambda k, story: (k, story, matched(story)), "no batch was paired")
    blocks: list[Block] = [Prose(_lead(story, found)) for _, story, found in told]
    seen = [one for one in told if not one[2].flat]
    if seen:
        blocks.append(_table(seen))
    for k, story, found in seen:
        blocks += [_picture(k, story, found), _histogram(k, story, found)]
    blocks += map(Prose, silent)
    return Section("coupling", TITLE, tuple(blocks))


def matched(story: Story) -> Matched:
    """Paired now, or when the newest checkpoint was reported on before."""
    trained = Trained.load(story)
    key = {"weights": trained.weights, "rows": ROWS, "batches": BATCHES, "seed": SEED}
    return kept(story.folder, "coupling", key, Matched, lambda: pair(trained))


def _lead(story: Story, found: Matched) -> str:
    saved = _percent(*found.gain)
    if not found.trained and found.flat:
        return (
            f"{story.name} takes its pairs as they come. By their Hamming distance no pair is better than another: the "
            f"source shares no token with the text, and every position hops."
        )
    if not found.trained:
        return (
            f"{story.name} takes its pairs as they come. Exact optimal transport of {found.rows} rows by their "
            f"Hamming distance would save {saved} of the jumps; it is shown here."
        )
    more = f" In batches of {found.trained:,}, as it was trained, it saves more." if found.trained > found.rows else ""
    return (
        f"{story.name}: {found.coupling} by {found.cost} saves {saved} of the cost of independent pairs, in batches of "
        f"{found.rows} rows.{more}"
    )


def _table(told: Sequence[Told]) -> Table:
    head = ("run", "cost", "paid before", "paid after", "saved", "equal before", "equal after")
    rows = tuple(
        (
            story.name,
            found.cost,
            measured(*found.before),
            measured(*found.after),
            *(_percent(*share) for share in (found.gain, found.equal_before, found.equal_after)),
        )
        for _, story, found in told
    )
    caption = (
        f"Cost of a pair before and after the coupling, and the part of its positions at which both rows hold the same "
        f"token; ± over n = {BATCHES} batches of the training text."
    )
    return Table(head, rows, caption)


def _percent(value: float, error: float) -> str:
    return f"{measured(100 * value, 100 * error)} %"


def _picture(k: int, story: Story, found: Matched) -> Figure:
    matrix, order = torch.tensor(found.matrix, dtype=torch.float64), torch.tensor(found.order)
    matrix = matrix - matrix.mean(1, keepdim=True) - matrix.mean(0) + matrix.mean()
    rows = (matrix.diagonal() - matrix[torch.arange(len(order)), order]).argsort(descending=True, stable=True)
    drawn, given = matrix[rows][:, rows], matrix[rows][:, order[rows]]

    def paint(before: "Axes", after: "Axes") -> None:
        low, high = float(matrix.min()), float(matrix.max())
        for axes, content, title in ((before, drawn, "as drawn"), (after, given, f"paired: {found.coupling}")):
            image = axes.imshow(content.numpy(), cmap="viridis", interpolation="none", vmin=low, vmax=high)
            axes.set_title(title)
            axes.set(xlabel="source row", ylabel="data row")
            axes.grid(visible=False)
        bar = after.figure.colorbar(image, ax=(before, after), shrink=0.8, pad=0.02)
        bar.set_label(f"{found.cost} cost, centred")
        bar.outline.set_visible(False)

    name = f"coupling_{k}"
    caption = f"{story.name}: {MATRIX} {found.rows} rows."
    return figures.drawn(name, caption, paint, panels=2, width=5.2, height=4.3, data={story.name: asdict(found)})


def _histogram(k: int, story: Story, found: Matched) -> Figure:
    def paint(axes: "Axes") -> None:
        pairs = (("all pairs", found.all_pairs, figures.SOFT), (found.coupling, found.own_pairs, figures.colour(k)))
        for name, shares, shade in pairs:
            axes.stairs(shares, found.edges, fill=True, color=shade, alpha=0.35)
            axes.stairs(shares, found.edges, color=shade, linewidth=1.4, label=legible(name))
        axes.set(xlabel=f"{found.cost} cost of a pair", ylabel="share of the pairs")
        figures.legend(axes)

    caption = f"{story.name}: {COSTS.format(batches=found.batches)} Means {measured(*found.before)}"
    return figures.drawn(f"pair_costs_{k}", f"{caption} and {measured(*found.after)}, n = batches.", paint)
