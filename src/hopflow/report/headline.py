"""The result of a report in one sentence, from measured numbers and their errors only.

Two numbers are called equal within errors if they differ by less than 2 standard errors. A difference without a known
error is never called equal, and no run is called better because of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..evaluation.compare import BITS, Line
from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import Row
from .comparison import compared
from .hopping import hops
from .looks import looks
from .numbers import error_of, known, measured
from .prediction import prediction
from .story import Story

ERRORS = 2
"""Standard errors from which on two numbers differ."""
NAMED = 2
"""Bounds that are named one by one where they differ."""
SHOWN = 3
"""Groups that are compared with the first."""
LOGGED = {
    "b0": ("perplexity", "bound b0; η = 0, continuous time"),
    "bn": ("perplexity", "bound bn; η = 0, {steps} steps"),
    "nll": ("nats", "exact"),
}
"""Likelihoods that training logs: unit, kind and sampler."""
BY_SEED = ("seed", "model.weights")
"""Parts of a run's identity that change with its seed."""


@dataclass(frozen=True)
class Number:
    """A value and its standard error; None for an unknown one."""

    value: int | float
    stderr: int | float | None

    @property
    def differs(self) -> bool:
        """Whether it is not 0 within errors; without an error nothing is known."""
        return known(self.stderr) and abs(self.value) > ERRORS * self.stderr

    def less(self, other: "Number") -> "Number":
        """The difference to an independent number."""
        return Number(self.value - other.value, _hypot(self.stderr, other.stderr))

    def saved(self, other: "Number") -> "Number":
        """1 - self/other in percent, its error by the delta method."""
        share = self.value / other.value
        scaled = None if not known(other.stderr) else share * other.stderr
        error = _hypot(self.stderr, scaled)
        return Number(100 * (1 - share), None if error is None else 100 * error / other.value)

    def __str__(self) -> str:
        return measured(self.value, self.stderr)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in nothing but their seeds."""

    stories: tuple[Story, ...]

    @cached_property
    def name(self) -> str:
        first, *others = (story.name for story in self.stories)
        return f"{first} ({len(others) + 1} seeds)" if others else first

    def mean(self, numbers: Mapping[Story, Number]) -> Number:
        """Over its runs; of one run its own number."""
        found = [numbers[story] for story in self.stories]
        if len(found) == 1:
            return found[0]
        values = [number.value for number in found]
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return Number(mean, math.sqrt(spread / len(values)))


def headline(stories: Sequence[Story]) -> str:
    """The result in one sentence; empty where nothing was measured."""
    groups = grouped(stories)
    if len(stories) == 1:
        return _sentence([_likelihood(stories[0]), _own_hops(stories)])
    if len(groups) == 1:
        parts = [_mean_bound(groups[0]), _own_hops(stories)]
        return _sentence(parts, f"{len(stories)} runs with different seeds: ")
    first, *others = groups
    said = [_sentence([_hops(first, one), _bounds(first, one)], f"{one.name}: ") for one in others[:SHOWN]]
    if len(others) > SHOWN:
        said.append(f"{len(others) - SHOWN} more are compared below.")
    return " ".join(filter(None, said))


def grouped(stories: Sequence[Story]) -> list[Group]:
    """Runs with the same settings but for the seed belong together; a run without a recipe stays alone."""
    found: dict[object, list[Story]] = {}
    for story in stories:
        own = {key: str(value) for key, value in story.identity.items() if key not in BY_SEED}
        found.setdefault(tuple(sorted(own.items())) or id(story), []).append(story)
    return [Group(tuple(group)) for group in found.values()]


# -- one run, or runs that differ in the seed --------------------------------------------------------------------------


def _likelihood(story: Story) -> str:
    """The lowest bound that was evaluated, or the last one of the training."""
    rows = [row for row in story.rows if _is_likelihood(row)]
    if rows:
        here = [row for row in rows if row.set == rows[0].set]
        row = min(here, key=lambda row: row.value)
        kind = "exact" if row.more.get("exact") else f"bound {row.quantity}"
        unit, number = _in_bits(row)
        return f"{number} {unit} on {row.set} text ({kind}; {row.more.get('sampler', '-')}; n = {row.n:,})"
    for quantity, (unit, kind) in LOGGED.items():
        if found := looks(story, quantity):
            last, steps = found[-1], story.recipe.get("eval_steps", "a few")
            n = "" if last.n is None else f"; n = {last.n:,}"
            said = f"{kind.format(steps=steps)}{n}; step {last.step:,}"
            return f"{measured(last.value, last.stderr)} {unit} per token on held-out text ({said})"
    return ""


def _in_bits(row: Row) -> tuple[str, Number]:
    """Bits per character where they are known; otherwise the perplexity per token."""
    bits, error = row.more.get("bits_per_char"), row.more.get("bits_per_char_stderr")
    if isinstance(bits, int | float):
        return "bits per character", Number(float(bits), error_of(error, row.n))
    return "perplexity per token", Number(row.value, error_of(row.stderr, row.n))


def _mean_bound(group: Group) -> str:
    """The first likelihood that all runs share, averaged over runs."""
    found = compared(group.stories)
    if found is None or len(found.sides) < len(group.stories):
        return ""
    for line in found.lines:
        rows = list(line.rows.values())
        if len(rows) == len(group.stories) and all(map(_is_likelihood, rows)) and not line.refused and _one_n(line):
            numbers = {story: Number(row.value, row.stderr) for story, row in zip(group.stories, rows, strict=True)}
            said = f"{rows[0].quantity}; {rows[0].more.get('sampler', '-')}; n = {len(rows)} runs"
            return f"perplexity {group.mean(numbers)} per token on {rows[0].set} text ({said})"
    return ""


def _own_hops(stories: Sequence[Story]) -> str:
    counted, sampler = counted_hops(stories)
    if not counted:
        return ""
    group = Group(tuple(stories))
    said = f"{group.mean(counted)} hops per sample ({sampler})"
    predicted = {story: found for story in stories if (found := prediction(story))}
    if len(predicted) < len(stories):
        return said
    mean = group.mean({story: Number(found.value, found.stderr) for story, found in predicted.items()})
    exact = all(not found.batches for found in predicted.values())
    return f"{said}, {f'{mean.value:,g}' if exact else mean} predicted"


# -- groups against the first ------------------------------------------------------------------------------------------


def _hops(first: Group, other: Group) -> str:
    """Fewer or more hops than the first, and what the couplings predict."""
    stories = (*first.stories, *other.stories)
    counted, _ = counted_hops(stories)
    if not counted or first.mean(counted).value <= 0:
        return ""
    saved = other.mean(counted).saved(first.mean(counted))
    if not saved.value and not saved.stderr:
        return f"as many hops as {first.name}"
    said = f"{_fewer(saved)} than {first.name}"
    if known(saved.stderr) and not saved.differs:
        said = f"hops equal within errors to those of {first.name} ({_fewer(saved)})"
    predicted = {story: found for story in stories if (found := prediction(story))}
    if len(predicted) < len(stories) or len({found.length for found in predicted.values()}) > 1:
        return said
    numbers = {story: Number(found.value, found.stderr) for story, found in predicted.items()}
    forecast = other.mean(numbers).saved(first.mean(numbers))
    alike = saved.differs and saved.value * forecast.value > 0
    return f"{said}, {_percent(forecast) if alike else _fewer(forecast)} predicted"


def _fewer(saved: Number) -> str:
    if not saved.value and not saved.stderr:
        return "as many hops"
    return f"{_percent(saved)} {'fewer' if saved.value >= 0 else 'more'} hops"


def _percent(number: Number) -> str:
    return f"{measured(abs(number.value), number.stderr)} %"


def counted_hops(stories: Sequence[Story]) -> tuple[dict[Story, Number], str]:
    """Hops per sample of every run by the same sampler, η = 0, and which; nothing where there is none."""
    by_steps = [
        {
            (row.more.get("steps"), row.more.get("length")): row
            for row in story.rows
            if (row.set, row.quantity, row.eta) == (SAMPLES, "jumps", 0.0)
            and row.more.get("temperature", 1.0) in (None, 1.0)
        }
        for story in stories
    ]
    if common := set.intersection(*(set(rows) for rows in by_steps)):
        at = max(common, key=lambda place: place[0] or 0)
        rows = [found[at] for found in by_steps]
        numbers = {s: Number(row.value, error_of(row.stderr, row.n)) for s, row in zip(stories, rows, strict=True)}
        return numbers, str(rows[0].more.get("sampler", "η = 0"))
    try:
        drawn = [hops(story)[0] for story in stories]
    except (ValueError, OSError):
        return {}, ""
    if len({(one.sampler, one.length) for one in drawn}) > 1:
        return {}, ""
    numbers = {s: Number(one.jumps[0], error_of(one.jumps[1], one.n)) for s, one in zip(stories, drawn, strict=True)}
    return numbers, f"η = 0, {drawn[0].sampler}"


def _bounds(first: Group, other: Group) -> str:
    """Which bounds are lower by how much; equal within errors where none differs."""
    found = compared((*first.stories, *other.stories))
    if found is None or len(found.sides) < len(first.stories) + len(other.stories):
        return _last_bounds(first, other)
    lines = [line for line in found.lines if len(line.rows) == len(found.sides)]
    for is_one in (_is_likelihood, _is_per_character):
        likelihoods = [line for line in lines if all(map(is_one, line.rows.values()))]
        single = len(first.stories) == len(other.stories) == 1  # their difference is of the sequences that both have
        if allowed := [line for line in likelihoods if not line.refused and (single or _one_n(line))]:
            return _compare([(_label(line), _difference(line, first, other)) for line in allowed])
    refused = [reason for line in lines for reason in line.refused.values()]
    return f"bounds are not comparable: {refused[0]}" if refused else ""


def _difference(line: Line, first: Group, other: Group) -> Number:
    """Of two single runs as compared, which may be paired; of groups the difference of their means."""
    if len(first.stories) == len(other.stories) == 1:
        one = line.differences[0]
        ns = {line.rows[run].n for run in line.rows}
        return Number(one.value, None if 1 in ns and not one.stderr else one.stderr)
    numbers = {
        story: Number(line.rows[story.name].value, error_of(line.rows[story.name].stderr, line.rows[story.name].n))
        for story in (*first.stories, *other.stories)
    }
    return other.mean(numbers).less(first.mean(numbers))


def _one_n(line: Line) -> bool:
    """Whether all runs were evaluated on as many sequences: means over runs are of the same ones."""
    return len({row.n for row in line.rows.values()}) == 1


def _last_bounds(first: Group, other: Group) -> str:
    """By the last evaluation of the training, where the runs took the same steps."""
    apart = []
    for quantity in LOGGED:
        found = {story: looks(story, quantity) for group in (first, other) for story in group.stories}
        if all(found.values()) and len({each[-1].step for each in found.values()}) == 1:
            numbers = {story: Number(each[-1].value, each[-1].stderr) for story, each in found.items()}
            apart.append((quantity, other.mean(numbers).less(first.mean(numbers))))
    return _compare(apart) if apart else ""


def _compare(apart: Sequence[tuple[str, Number]]) -> str:
    word = "bound" if len(apart) == 1 else "bounds"
    unknown = [name for name, number in apart if not known(number.stderr)]
    if len(unknown) == len(apart):
        whose = "its error is" if len(apart) == 1 else "their errors are"
        return f"{word} not compared, since {whose} unknown"
    differing = [(name, number) for name, number in apart if number.differs]
    if not differing:
        return f"{word} equal within errors"
    if len(differing) <= NAMED:
        said = [f"{name} {_lower(number)}" for name, number in differing]
        rest = len(apart) - len(differing) - len(unknown)
        return ", ".join([*said, *(["other bounds equal within errors"] if rest else [])])
    low = sum(number.value < 0 for _, number in differing)
    counts = [f"{count} {side}" for count, side in ((low, "lower"), (len(differing) - low, "higher")) if count]
    return f"of {len(apart)} bounds {' and '.join(counts)} by more than {ERRORS} standard errors"


def _lower(number: Number) -> str:
    return f"{'lower' if number.value < 0 else 'higher'} by {measured(abs(number.value), number.stderr)}"


def _label(line: Line) -> str:
    row = next(iter(line.rows.values()))
    unit = ", bits per character" if _is_per_character(row) else ""
    return f"{row.quantity.removesuffix(BITS)} ({row.more.get('sampler', '-')}{unit})"


def _is_likelihood(row: Row) -> bool:
    """Whether it is a bound or an exact value per token."""
    return row.unit == "ppl" and row.set != SAMPLES and _is_valid(row)


def _is_per_character(row: Row) -> bool:
    """Whether it is the same per character, which runs with different tokenizers can be compared by."""
    return row.quantity.endswith(BITS) and _is_valid(row)


def _is_valid(row: Row) -> bool:
    return (row.is_bound or bool(row.more.get("exact"))) and "ot_n" not in row.more


def _hypot(one: int | float | None, other: int | float | None) -> float | None:
    return math.hypot(one, other) if known(one) and known(other) else None


def _sentence(parts: Sequence[str], start: str = "") -> str:
    said = "; ".join(filter(None, parts))
    if not said:
        return ""
    whole = f"{start}{said}"
    return f"{whole[0].upper() if not start else whole[0]}{whole[1:]}."
