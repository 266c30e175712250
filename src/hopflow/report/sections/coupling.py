"""Section: what the coupling does to one batch of the training text, with pictures of the costs of its pairs."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...bounds.estimate import mean_and_error
from ...costs import Hamming, SequenceCost
from ...couplings import Coupling, ExactOT
from ...evaluation.measurement import Measurement
from ...network.network import Network, device_of
from ...runs.rng import stream
from ...system.safe_text import printable
from .. import figures
from ..blocks import Block, Figure, Paragraph, Section, TableBlock
from ..hop_counts import SECONDS, check_coupling_time
from ..numbers import StandardError, format_value
from ..run_data import RunData
from ..trained_run import TrainedRun, Unavailable, cached, results_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_ROWS, MAX_BATCHES, SEED = 64, 8, 0
"""Rows of a batch that are drawn, batches that are coupled at most, and their seed."""
BARS = 24
"""Bars of the histograms of costs at most."""
TITLE = "Coupling of one batch"
LEAD = "Costs of the pairs of a batch of the training text, before and after the coupling chooses which rows to pair."
MATRIX = (
    "Costs of all pairs of data rows (rows) and source rows (columns) in one batch, centered by row and column; dark "
    "is cheap. Left: source rows in random order. Right: source rows in the order of the coupling, so that its pairs "
    "are on the diagonal."
)
COSTS = "Costs of pairs in {batches} batches of {rows:,} rows: of all pairs, and of the pairs of the coupling."
HEAD = (
    *("run", "cost", "rows", "cost, independent", "cost, coupled", "saved"),
    *("equal tokens, independent", "equal tokens, coupled"),
)

MeanAndError = tuple[float, StandardError]
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class CoupledBatches:
    """Batches before and after a coupling, of the OT batch size of the run. The fields are those of the cache file."""

    coupling: str
    cost: str
    rows: int
    """Rows of a batch."""
    coupled: bool
    """Whether the run itself uses this coupling; otherwise it shows what exact transport would do."""
    batches: int
    before: MeanAndError
    """Mean cost of all pairs."""
    after: MeanAndError
    """Mean cost of the pairs of the coupling."""
    gain: MeanAndError
    """Share of the cost that the coupling saves."""
    equal_before: MeanAndError
    """Share of positions at which the rows of a pair are equal."""
    equal_after: MeanAndError
    drawn: Matrix
    """Centered costs of the first data rows (rows) and the first source rows (columns) of the first batch."""
    paired: Matrix
    """The same data rows, with their partners as columns: pairs are on the diagonal."""
    edges: tuple[float, ...]
    """Edges of the bars of both histograms."""
    all_pairs: tuple[float, ...]
    """Share of all pairs in each bar."""
    own_pairs: tuple[float, ...]
    """Share of the pairs of the coupling in each bar."""

    @property
    def all_equal(self) -> bool:
        """Whether all pairs have the same cost, as Hamming from a disjoint source: no coupling can save anything."""
        return self.before[0] == self.after[0] and not any(value for row in self.drawn for value in row)


@dataclass(frozen=True)
class RunPairs:
    """Run number k and its coupled batches."""

    k: int
    run: RunData
    found: CoupledBatches


def section(runs: Sequence[RunData]) -> Section | None:
    """A sentence per run, one table, and pictures of each coupling; None if no run has a network."""
    if all(run.checkpoint is None for run in runs):
        return None
    pairs, failures = results_of(runs, lambda k, run: RunPairs(k, run, run_pairs(run)), "no batch was coupled")
    if any(one.found.coupled for one in pairs):  # otherwise, what exact transport would do
        pairs = [one for one in pairs if one.found.coupled]
    blocks: list[Block] = [Paragraph(LEAD)] if pairs else []
    blocks += [Paragraph(_sentence(one.run, one.found)) for one in pairs]
    shown = [one for one in pairs if not one.found.all_equal]
    if shown:
        blocks.append(_table(shown))
    for equal in _equal_pictures(shown):
        blocks += [_cost_matrices(equal), _histogram(equal)]
    blocks += map(Paragraph, failures)
    return Section("coupling", TITLE, tuple(blocks)) if blocks else None


def run_pairs(run: RunData) -> CoupledBatches:
    """The coupled batches of a run, computed or from the cache."""
    trained = TrainedRun.load(run)
    key = {"weights": trained.weights, "rows": trained.ot_batch}
    key |= {"shown": SHOWN_ROWS, "batches": MAX_BATCHES, "seed": SEED}
    return cached(run.folder, "coupling", key, CoupledBatches, lambda: couple_batches(trained))


# -- coupled batches ---------------------------------------------------------------------------------------------------


def couple_batches(trained: TrainedRun) -> CoupledBatches:
    """Batches of the training text with the coupling of the run; exact OT if the run uses independent pairs."""
    independent = trained.flow.coupling.is_identity
    coupling: Coupling = ExactOT(Hamming()) if independent else trained.flow.coupling
    if coupling.pair_store is not None:
        raise Unavailable("it is trained on stored pairs, and batches of text are not coupled")
    rows = trained.ot_batch
    check_coupling_time(trained, rows)
    return coupled_costs(coupling, _batches(trained, rows), not independent, **trained.coupling_inputs(coupling))


def _batches(trained: TrainedRun, rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Source and data rows before the coupling, and labels if there are any: two, and more within the time limit."""
    started = time.perf_counter()
    for index in range(MAX_BATCHES):
        if index > 1 and time.perf_counter() - started > SECONDS:
            break
        x0 = trained.flow.source.sample(rows, trained.length, generator=stream(SEED, "report", index))
        labels = trained.labels(SEED, index * rows, rows)
        yield x0, trained.corpus.batch(SEED, index * rows, rows), *([] if labels is None else [labels])


def coupled_costs(
    coupling: Coupling,
    batches: Iterable[tuple[Tensor, ...]],
    coupled: bool = True,
    embedding: Float[Tensor, "V D"] | None = None,
    network: Network | None = None,
) -> CoupledBatches:
    """Costs of batches of source and data rows: of all pairs, and of the pairs of the coupling."""
    found = [_Batch.of(coupling, index, embedding, network, *rows) for index, rows in enumerate(batches)]
    before, after = _stack(batch.before for batch in found), _stack(batch.own.mean() for batch in found)
    gain = Measurement.ratio("gain", before - after, before, "") if bool(before.any()) else None
    every, own = torch.cat([batch.some for batch in found]), torch.cat([batch.own for batch in found])
    edges = _edges(torch.cat([every, own]))
    return CoupledBatches(
        type(coupling).__name__,
        type(_cost(coupling)).__name__,
        len(found[0].own),
        coupled,
        len(found),
        mean_and_error(before),
        mean_and_error(after),
        (0.0, 0.0) if gain is None else (gain.value, gain.stderr),
        mean_and_error(_stack(batch.equal_before for batch in found)),
        mean_and_error(_stack(batch.equal_after for batch in found)),
        _matrix(found[0].drawn),
        _matrix(found[0].paired),
        tuple(edges.tolist()),
        _shares(every, edges),
        _shares(own, edges),
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    """The numbers of one batch that are shown; all costs of a batch of 4,096 rows would be 16 million."""

    before: Float[Tensor, ""]
    own: Float[Tensor, " n"]
    """Costs of the pairs of the coupling."""
    some: Float[Tensor, " m"]
    """Costs of all pairs of the first rows."""
    equal_before: Float[Tensor, ""]
    equal_after: Float[Tensor, ""]
    drawn: Float[Tensor, "k k"]
    paired: Float[Tensor, "k k"]

    @classmethod
    def of(
        cls,
        coupling: Coupling,
        index: int,
        embedding: Float[Tensor, "V D"] | None,
        network: Network | None,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        group: Int[Tensor, " n"] | None = None,
    ) -> "_Batch":
        device = torch.device("cpu") if network is None else device_of(network)
        x0, x1 = x0.to(device), x1.to(device)
        table = None if embedding is None else embedding.to(device)
        with torch.no_grad():
            generator = stream(SEED, "report coupling", index)
            chosen = coupling.match_by_group(x0, x1, generator, group, embedding=table, network=network)
            costs = _cost(coupling).matrix(x0, x1, table, network).cpu().double()
        order = chosen.order.cpu()
        equal = 1 - Hamming().matrix(x0, x1).cpu().double() / x0.shape[1]
        rows, few = torch.arange(len(order)), torch.arange(min(SHOWN_ROWS, len(order)))
        centred = costs - costs.mean(1, keepdim=True) - costs.mean(0) + costs.mean()
        return cls(
            costs.mean(),
            costs[rows, order],
            costs[: 4 * SHOWN_ROWS, : 4 * SHOWN_ROWS].flatten(),
            equal.mean(),
            equal[rows, order].mean(),
            centred[few][:, few],
            centred[few][:, order[few]],
        )


def _edges(costs: Float[Tensor, " m"]) -> Float[Tensor, " e"]:
    """Edges of bars of equal width; if all costs are integers, each bar covers equally many integers."""
    low, high = float(costs.min()), float(costs.max())
    if bool((costs == costs.round()).all()):
        width = max(1, math.ceil((high - low + 1) / BARS))
        count = math.ceil((high - low + 1) / width)
        return low - 0.5 + width * torch.arange(count + 1, dtype=torch.float64)
    return torch.linspace(low, high if high > low else low + 1, BARS + 1, dtype=torch.float64)


def _cost(coupling: Coupling) -> SequenceCost:
    cost = getattr(coupling, "cost", None)
    return cost if isinstance(cost, SequenceCost) else Hamming()


def _stack(values: Iterable[Tensor]) -> Float[Tensor, " batches"]:
    return torch.stack(list(values))


def _matrix(values: Float[Tensor, "k k"]) -> Matrix:
    return tuple(tuple(round(value, 4) for value in row) for row in values.tolist())


def _shares(costs: Float[Tensor, " pairs"], edges: Float[Tensor, " E"]) -> tuple[float, ...]:
    counts = torch.bucketize(costs, edges[1:-1]).bincount(minlength=len(edges) - 1)
    return tuple((counts.double() / len(costs)).tolist())


# -- text and figures --------------------------------------------------------------------------------------------------


def _equal_pictures(pairs: Sequence[RunPairs]) -> list[list[RunPairs]]:
    """Groups of runs with the same pictures, such as runs that differ only in the seed."""
    groups: dict[tuple[object, ...], list[RunPairs]] = {}
    for one in pairs:
        same = one.found
        groups.setdefault((same.coupling, same.cost, same.rows, same.drawn, same.paired), []).append(one)
    return list(groups.values())


def _sentence(run: RunData, found: CoupledBatches) -> str:
    saved = _percent(*found.gain)
    if found.all_equal:
        text = f"{run.name}: all pairs of a batch have the same {found.cost} cost, so that no coupling can save hops."
        return text if found.coupled else f"{text} Every position hops."
    if not found.coupled:
        return (
            f"{run.name} uses independent pairs. With exact optimal transport on Hamming distances, {saved} of the "
            f"hops would be saved in batches of {found.rows:,} rows, the OT batch of the run. This is shown here."
        )
    what = "hops" if found.cost == "Hamming" else f"{found.cost} cost"
    return f"{run.name}: {found.coupling} saves {saved} of the {what} of independent pairs ({found.rows:,} rows)."


def _table(pairs: Sequence[RunPairs]) -> TableBlock:
    rows = tuple(
        (
            one.run.name,
            one.found.cost,
            f"{one.found.rows:,}",
            format_value(*one.found.before),
            format_value(*one.found.after),
            *(_percent(*share) for share in (one.found.gain, one.found.equal_before, one.found.equal_after)),
        )
        for one in pairs
    )
    counts = " or ".join(dict.fromkeys(f"{one.found.batches}" for one in pairs))
    caption = (
        f"Mean cost of a pair, and share of positions with equal tokens, for independent and for coupled pairs of the "
        f"training text; ± one standard error over n = {counts} batches. Rows: the OT batch of the run."
    )
    return TableBlock(HEAD, rows, caption)


def _percent(value: float, error: float) -> str:
    return f"{format_value(100 * value, 100 * error)} %"


def _cost_matrices(equal: Sequence[RunPairs]) -> Figure:
    k, found = equal[0].k, equal[0].found
    drawn, paired = (torch.tensor(matrix, dtype=torch.float64) for matrix in (found.drawn, found.paired))
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
        bar.set_label(f"{found.cost} cost, centered")
        bar.outline.set_visible(False)

    some = f"The first {len(drawn)} of {found.rows:,} rows" if found.rows > len(drawn) else f"{found.rows} rows"
    caption = f"{_names(equal)}: {MATRIX} {some}, sorted by how much the coupling saves on their pair."
    data = {one.run.name: asdict(one.found) for one in equal}
    return figures.draw_figure(f"coupling_{k}", caption, paint, panels=2, width=5.2, height=4.3, data=data)


def _names(equal: Sequence[RunPairs]) -> str:
    return ", ".join(one.run.name for one in equal)


def _histogram(equal: Sequence[RunPairs]) -> Figure:
    k, found = equal[0].k, equal[0].found

    def paint(axes: "Axes") -> None:
        pairs = (("all pairs", found.all_pairs, figures.SOFT), (found.coupling, found.own_pairs, figures.colour(k)))
        for name, shares, shade in pairs:
            axes.stairs(shares, found.edges, fill=True, color=shade, alpha=0.35)
            axes.stairs(shares, found.edges, color=shade, linewidth=1.4, label=printable(name))
        axes.set(xlabel=f"{found.cost} cost of a pair", ylabel="share of the pairs")
        figures.legend(axes)

    caption = f"{_names(equal)}: {COSTS.format(batches=found.batches, rows=found.rows)}"
    return figures.draw_figure(f"pair_costs_{k}", caption, paint)
