"""Hopping: sequences on their way from source to text, and how often they hop beside what the coupling predicts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import figures
from .expected import Expected, expect
from .film import stills
from .journey import SEED, STEPS, Journey, draw
from .kept import kept
from .legible import legible
from .means import BINS, Means
from .numbers import measured
from .section import Block, Figure, Player, Prose, Samples, Section, Table
from .story import Story
from .trained import Trained, because, told_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, EXPECTED = "Tokens that hop", "expected"
STILLS = (0.0, 0.5, 1.0)
LEAD = (
    "Every token starts as one of the source and hops, once or several times, until it belongs to the text. How often "
    "is decided before any training, by the pairs that the coupling makes of source and data: a perfect network hops "
    "as often as the two rows of a pair differ (Cor. 3.2 [coro1])."
)
WHEN = (
    "Jumps of a sequence in each step of the sampler, η = 0. Solid: counted, ± one standard error (band) over "
    "sequences. Dashed: expected of a perfect network, the gain of k in the step times the distance of the pairs."
)
WHERE = (
    "Jumps of each position on the way from source to text, η = 0. Solid: counted, ± one standard error (band) over "
    "sequences. Dashed: expected of a perfect network, how often pairs of the coupling differ there."
)


@dataclass(frozen=True)
class Told:
    """What is known of the k-th run; where nothing is expected, why."""

    k: int
    story: Story
    journey: Journey
    expected: Expected | None
    reason: str = ""

    @classmethod
    def of(cls, k: int, story: Story) -> "Told":
        """Drawn now, or when the newest checkpoint was reported on before."""
        trained = Trained.load(story)
        key = {"weights": trained.weights, "steps": STEPS, "seed": SEED, "bins": BINS}
        journey = kept(story.folder, "hops", key, Journey, lambda: draw(trained))
        key["steps"] = len(journey.times) - 1
        try:
            expected = kept(story.folder, "expected", key, Expected, lambda: expect(trained, journey.times))
            return cls(k, story, journey, expected)
        except (ValueError, OSError) as error:
            return cls(k, story, journey, None, because(error))


def section(stories: Sequence[Story]) -> Section | None:
    """Players, counts and curves of every run with a network, a sentence on each of the others; None where none has."""
    if all(story.checkpoint is None for story in stories):
        return None
    told, silent = told_of(stories, Told.of, "nothing was drawn")
    if not told:
        return Section("hops", TITLE, tuple(map(Prose, silent)))
    blocks: list[Block] = [Prose(LEAD)]
    for one in told:
        blocks += _player(one, named=len(stories) > 1)
    silent = [f"{one.story.name}: no jumps are expected, since {one.reason}." for one in told if one.reason] + silent
    return Section("hops", TITLE, (*blocks, _table(told), *_figures(told), *map(Prose, silent)))


def _player(told: Told, named: bool) -> list[Block]:
    found = told.journey
    said = (
        f"{f'{told.story.name}: ' if named else ''}{len(found.film['sequences'])} of {found.n} sequences, "
        f"{found.sampler}, η = 0, weights of step {told.story.checkpoint:,} in {found.dtype}."
    )
    return [Prose(said), Player(f"player-{told.k}", found.film, _stills(found.film))]


def _stills(film: dict[str, Any]) -> tuple[Samples, ...]:
    """For paper and markdown."""
    shown = [(t, stills(film, t)) for t in STILLS]
    return tuple(
        Samples(tuple(still.text for still in row), f"t = {t:g}: {sum(still.jumps for still in row):,} jumps")
        for t, row in shown
    )


def _table(told: Sequence[Told]) -> Table:
    head = ("run", "counted", "expected of a perfect network", "tokens", "sampler")
    rows = tuple(
        (
            one.story.name,
            _counted(one.journey),
            _expected(one.expected),
            f"{one.journey.length:,}",
            one.journey.sampler,
        )
        for one in told
    )
    types = " and ".join(dict.fromkeys(one.journey.dtype for one in told))
    caption = f"Jumps per sequence. Counted: n sequences, the network in {types}."
    coupled = [one for one in told if one.expected and one.expected.batches]
    if sizes := dict.fromkeys(str(one.expected.rows) for one in coupled if one.expected):
        caption += f" Expected: n batches of {' or '.join(sizes)} rows of the training text, coupled."
    for one in coupled:
        if one.expected and one.expected.rows < one.expected.trained:
            caption += f" {one.story.name} was trained with batches of {one.expected.trained:,}, which save more."
    return Table(head, rows, caption)


def _counted(found: Journey) -> str:
    """One sequence has no error."""
    return measured(*found.jumps, found.n) if found.n > 1 else f"{found.jumps[0]:,g} (n = 1)"


def _expected(found: Expected | None) -> str:
    if found is None:
        return "unknown"
    if not found.batches:
        return f"{found.jumps[0]:,g}, whatever the pairs: no source token is a data token"
    return measured(*found.jumps, found.batches)


def _figures(told: Sequence[Told]) -> list[Figure]:
    n = f" n = {', '.join(dict.fromkeys(f'{one.journey.n:,}' for one in told))}."
    bins = sorted({one.journey.bin for one in told if one.journey.bin > 1})
    averaged = f" A point is the mean of {' or '.join(map(str, bins))} neighbours." if bins else ""
    when, where = ({one.story.name: _numbers(one, name) for one in told} for name in ("by_step", "by_position"))
    return [
        figures.drawn("jumps_by_step", WHEN + n, lambda axes: _when(axes, told), data=when),
        figures.drawn("jumps_by_position", WHERE + n + averaged, lambda axes: _where(axes, told), data=where),
    ]


def _numbers(told: Told, name: str) -> dict[str, Any]:
    at = {"by_step": told.journey.times, "by_position": told.journey.positions}[name]
    expected = None if told.expected is None else asdict(getattr(told.expected, name))
    return {"at": at, "n": told.journey.n, "counted": asdict(getattr(told.journey, name)), "expected": expected}


def _when(axes: "Axes", told: Sequence[Told]) -> None:
    for one in told:
        times = one.journey.times
        middles = [(a + b) / 2 for a, b in pairwise(times)]
        _lines(axes, one, middles, one.journey.by_step, one.expected.by_step if one.expected else None)
    axes.set(xlabel="time t", ylabel="jumps per step", xlim=(0, 1))
    _finish(axes, told)


def _where(axes: "Axes", told: Sequence[Told]) -> None:
    for one in told:
        expected = one.expected.by_position if one.expected else None
        _lines(axes, one, one.journey.positions, one.journey.by_position, expected)
    axes.set(xlabel="position", ylabel="jumps per position")
    _finish(axes, told)


def _lines(axes: "Axes", told: Told, x: Sequence[float], counted: Means, expected: Means | None) -> None:
    shade, marker = figures.colour(told.k), "o" if len(x) == 1 else None
    low, high = zip(*((m - e, m + e) for m, e in zip(counted.mean, counted.stderr, strict=True)), strict=True)
    axes.fill_between(x, low, high, color=shade, alpha=0.2, linewidth=0)
    axes.plot(x, counted.mean, color=shade, marker=marker, label=legible(told.story.name))
    if expected is not None:
        axes.plot(x, expected.mean, color=shade, linestyle="--", marker=marker, linewidth=1.2)


def _finish(axes: "Axes", told: Sequence[Told]) -> None:
    """From zero: how much a coupling saves is to be seen."""
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    if any(one.expected for one in told):
        axes.plot([], [], color=figures.SOFT, linestyle="--", linewidth=1.2, label=EXPECTED)
    figures.legend(axes, last=EXPECTED)
