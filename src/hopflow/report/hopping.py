"""Section: sequences on their way from source to text, and their hops compared with the prediction of the coupling."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from . import figures
from .expected import Expected, expect
from .film import stills
from .journey import SEED, STEPS, Journey, draw
from .kept import kept
from .legible import legible
from .means import BINS, Means
from .numbers import measured, plain
from .section import Block, Player, Prose, Samples, Section, Table
from .story import Story
from .trained import Trained, because, told_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, EXPECTED = "Tokens that hop", "expected"
STILLS = (0.0, 0.5, 1.0)
LEAD = (
    "Each token starts as a source token and hops until it is a token of the text. The coupling decides how often, "
    "before training: a perfect network makes as many hops as the rows of a pair differ (Cor. 3.2 [coro1])."
)
LINES = "Solid: counted, ± one standard error (band) over n = {n} sequences. Dashed: expected of a perfect network."
WHEN = "Hops of a sequence in each step of the sampler, η = 0."
WHERE = "Hops of each position, η = 0."


@dataclass(frozen=True)
class Told:
    """The hops of the k-th run, counted and expected; `reason` says why none are expected."""

    k: int
    story: Story
    journey: Journey
    expected: Expected | None
    reason: str = ""

    @classmethod
    def of(cls, k: int, story: Story) -> "Told":
        journey, expected, reason = hops(story)
        return cls(k, story, journey, expected, reason)


@lru_cache(maxsize=16)
def hops(story: Story) -> tuple[Journey, Expected | None, str]:
    """Drawn and predicted now, or read from an earlier report on the same checkpoint."""
    trained = Trained.load(story)
    key = {"weights": trained.weights, "steps": STEPS, "seed": SEED, "bins": BINS}
    journey = kept(story.folder, "hops", key, Journey, lambda: draw(trained))
    key |= {"steps": len(journey.times) - 1, "rows": trained.ot_batch}
    try:
        return journey, kept(story.folder, "expected", key, Expected, lambda: expect(trained, journey.times)), ""
    except (ValueError, OSError) as error:
        return journey, None, because(error)


def section(stories: Sequence[Story]) -> Section | None:
    """Players, counts and curves of every run with a network, a sentence on each of the others; None where none has."""
    if all(story.checkpoint is None for story in stories):
        return None
    told, silent = told_of(stories, Told.of, "no sequence was drawn")
    if not told:
        return Section("hops", TITLE, tuple(map(Prose, silent)))
    blocks: list[Block] = [Prose(LEAD)]
    for one in told:
        blocks += _player(one, named=len(stories) > 1)
    silent = [f"{one.story.name}: no hops are predicted, since {one.reason}." for one in told if one.reason] + silent
    return Section("hops", TITLE, (*blocks, _table(told), *_figures(told), *map(Prose, silent)))


def _player(told: Told, named: bool) -> list[Block]:
    found = told.journey
    said = (
        f"{f'{told.story.name}: ' if named else ''}{len(found.film['sequences'])} of {found.n} sequences, "
        f"{found.sampler}, η = 0, weights of step {told.story.checkpoint:,} in {found.dtype}."
    )
    shown = _stills(found.film, told.story)
    return [Prose(said), Player(f"player-{told.k}", found.film, shown, shown[-1].readings)]


def _stills(film: dict[str, Any], story: Story) -> tuple[Samples, ...]:
    """The sequences at a few times, for paper and markdown; the last ones are also decoded."""
    found = []
    for t in STILLS:
        row = stills(film, t)
        texts = tuple(still.text for still in row)
        readings = story.readings(texts) if t == 1 else ()
        found.append(Samples(texts, f"t = {t:g}: {sum(still.jumps for still in row):,} hops", readings))
    return tuple(found)


def _table(told: Sequence[Told]) -> Table:
    head = ("run", "hops, counted", "hops, expected", "tokens", "sampler", "OT batch")
    rows = tuple(
        (
            one.story.name,
            measured(*one.journey.jumps, one.journey.n),
            _expected(one.expected),
            f"{one.journey.length:,}",
            one.journey.sampler,
            f"{one.expected.rows:,}" if one.expected and one.expected.batches else "-",
        )
        for one in told
    )
    types = " and ".join(dict.fromkeys(one.journey.dtype for one in told))
    caption = f"Hops per sequence. Counted: n sequences, the network in {types}."
    if any(one.expected and one.expected.batches for one in told):
        caption += " Expected: n OT batches of the training text, coupled as in the training."
    if any(one.expected and not one.expected.batches for one in told):
        caption += " From masks every token hops once, for any coupling."
    return Table(head, rows, caption)


def _expected(found: Expected | None) -> str:
    if found is None:
        return "unknown"
    return measured(*found.jumps, found.batches) if found.batches else f"{found.jumps[0]:,g} (exact)"


def _figures(told: Sequence[Told]) -> list[Block]:
    lines = LINES.format(n=", ".join(dict.fromkeys(f"{one.journey.n:,}" for one in told)))
    bins = sorted({one.journey.bin for one in told if one.journey.bin > 1})
    averaged = f" A point is the mean of {' or '.join(map(str, bins))} positions." if bins else ""
    when, where = ({one.story.name: _numbers(one, name) for one in told} for name in ("by_step", "by_position"))
    found: list[Block] = [figures.drawn("jumps_by_step", f"{WHEN} {lines}", lambda axes: _when(axes, told), data=when)]
    levels = {value for one in told for value in one.journey.by_position.mean}
    if len(levels) == 1:  # from masks: a level line
        return [*found, Prose(f"Every position hops {plain(levels.pop())} times in each sequence.")]
    drawn = figures.drawn(
        "jumps_by_position", f"{WHERE} {lines}{averaged}", lambda axes: _where(axes, told), data=where
    )
    return [*found, drawn]


def _numbers(told: Told, name: str) -> dict[str, Any]:
    at = {"by_step": told.journey.times, "by_position": told.journey.positions}[name]
    expected = None if told.expected is None else asdict(getattr(told.expected, name))
    return {"at": at, "n": told.journey.n, "counted": asdict(getattr(told.journey, name)), "expected": expected}


def _when(axes: "Axes", told: Sequence[Told]) -> None:
    for one in told:
        times = one.journey.times
        middles = [(a + b) / 2 for a, b in pairwise(times)]
        _lines(axes, one, middles, one.journey.by_step, one.expected.by_step if one.expected else None)
    axes.set(xlabel="time t", ylabel="hops per step", xlim=(0, 1))
    _finish(axes, told)


def _where(axes: "Axes", told: Sequence[Told]) -> None:
    for one in told:
        expected = one.expected.by_position if one.expected else None
        _lines(axes, one, one.journey.positions, one.journey.by_position, expected)
    axes.set(xlabel="position", ylabel="hops per position")
    _finish(axes, told)


def _lines(axes: "Axes", told: Told, x: Sequence[float], counted: Means, expected: Means | None) -> None:
    shade, marker = figures.colour(told.k), "o" if len(x) == 1 else None
    low, high = zip(*((m - e, m + e) for m, e in zip(counted.mean, counted.stderr, strict=True)), strict=True)
    axes.fill_between(x, low, high, color=shade, alpha=0.2, linewidth=0)
    axes.plot(x, counted.mean, color=shade, marker=marker, label=legible(told.story.name))
    if expected is not None:
        axes.plot(x, expected.mean, color=shade, linestyle="--", marker=marker, linewidth=1.2)


def _finish(axes: "Axes", told: Sequence[Told]) -> None:
    """From zero, so that heights can be compared."""
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    if any(one.expected for one in told):
        axes.plot([], [], color=figures.SOFT, linestyle="--", linewidth=1.2, label=EXPECTED)
    figures.legend(axes, last=EXPECTED)
