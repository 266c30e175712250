"""The page of the study of rectified pairs, docs/results/rectified.md: every number from the cells."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..text.cell import BoundValues, Cell
from ..text.cell_bounds import CONTEXT, X0_HEAD
from ..text.markdown import section, show, table
from ..text.page import study_cells
from ..text.protocol import Budget, Protocol
from ..text.queue import missing
from ..text.statistics import (
    Cells,
    Mean,
    entropy_mean,
    hops_mean,
    judged_mean,
    mean,
    over_seeds_and_within,
    perplexity,
    tightest_reversal,
    transport_mean,
)
from .variants import AFTER_OT, BASE, CONTINUED, ONCE, OT, RECTIFIED_BUDGETS

COMMAND = "hopflow reproduce rectified --table"
TITLES = {
    "morse": "Shakespeare in Morse code",
    "novels": "Novels, GPT-2 tokens",
    "morse_laptop": "Shakespeare in Morse code, a small network",
    "characters_laptop": "Shakespeare by characters, a small network",
}
SURE = 2
"""Standard errors from which a difference is stated."""
SEEDS_NEEDED = 3
COMPARED = ((ONCE, CONTINUED), (AFTER_OT, CONTINUED), (AFTER_OT, OT))
"""Variants whose differences are stated first."""
Number = Callable[[Sequence[Cell]], Mean | None]
"""A number of some cells of one variant."""


def page(folder: Path) -> str:
    """The complete page as markdown."""
    parts = ["# Results: rectified pairs", INTRODUCTION]
    for budget in RECTIFIED_BUDGETS:
        parts += _study(budget, study_cells(folder, budget.name), folder)
    return "\n\n".join([*parts, f"This page is written by `{COMMAND}`."]) + "\n"


INTRODUCTION = """\
A trained flow, the teacher, turns noise x0 into a text x1. A second flow, the student, is trained on these pairs and
makes fewer hops ([Training](../training.md#rectified-pairs)). This study measures how many hops it saves, and how that
changes the quality of samples with few and many sampler steps.

| variant | starts from the weights of | trained on |
|---|---|---|
| `independent` | – | independent pairs of text and noise |
| `exact_ot` | – | pairs of text and noise by exact OT |
| `continued` | `independent` | independent pairs, for as many steps as the other students |
| `rectified` | `independent` | pairs drawn by `independent` |
| `rectified_twice` | `rectified` | pairs drawn by `rectified` |
| `rectified_after_ot` | `exact_ot` | pairs drawn by `exact_ot` |
| `rectified_fresh_0p3`, `rectified_fresh_0p6` | `independent` | as `rectified`, but 30 % or 60 % of the pairs are \
real text with independent noise |

So `rectified` and `continued` differ only in their pairs.

- `br` bounds the perplexity of held-out text for the sampler with the number of steps in the column. It averages over
  8 paths from text back to noise, drawn by the network's prediction or by its x0 head, whichever gives the lower mean.
- A *judge* is another language model that scores samples; `ar` is an autoregressive network trained on the same text.
  Its perplexity is low for good samples, but also for repetitive ones, which have a low entropy.
- ± is the standard error over seeds, or over sequences if there is only one seed."""


def _study(budget: Budget, cells: Cells, folder: Path) -> list[str]:
    """The sections of one text."""
    protocol = budget.variants[0].protocol
    steps = protocol.sampler_steps
    picture = f"![Judged perplexity against hops](../pictures/rectified_{budget.name}.svg)"
    parts = [
        f"## {TITLES[budget.name]}",
        *_findings(cells, protocol),
        _protocol(budget, _missing(budget, folder)),
        picture if cells else "",
        section("### Hops per sequence", _hops(cells, steps)),
        *(
            section(
                f"### Perplexity of samples under the judge {judge}", _table(cells, steps, judged_mean, judge=judge)
            )
            for judge in protocol.judges
        ),
        section(
            "### br: bound on the perplexity of held-out text",
            _table(cells, steps, tightest_reversal, set="test", paths=protocol.paths),
        ),
        section("### Entropy of samples, bits per token", _table(cells, steps, entropy_mean)),
        section(f"### Differences from `{CONTINUED}`", DIFFERENCES, _differences(cells, protocol)),
        section("### Runs", _runs(cells)),
    ]
    return [part for part in parts if part]


DIFFERENCES = (
    f"In percent, paired by seed, and for br also by sequence. The error is that over seeds or that within a seed, "
    f"whichever is larger. **Bold**: the difference exceeds {SURE} standard errors, with at least {SEEDS_NEEDED} "
    f"seeds. Fewer hops, a lower perplexity and a lower br are better."
)


def _missing(budget: Budget, folder: Path) -> str:
    """The runs that have no file, by variant."""
    seeds: dict[str, list[str]] = {}
    for variant, seed in missing(budget, folder):
        seeds.setdefault(variant.name, []).append(str(seed))
    if sum(map(len, seeds.values())) == len(budget.cells()):
        return "all"
    return ", ".join(f"{name} (seed {', '.join(own)})" for name, own in seeds.items()) or "none"


def _protocol(budget: Budget, left: str) -> str:
    protocol = budget.variants[0].protocol
    student = next(variant for variant in budget.variants if variant.teacher is not None)
    assert student.teacher is not None
    return (
        f"Network `{protocol.size}`, tokenizer `{protocol.tokens}`, sequences of {protocol.length} tokens. Training: "
        f"{protocol.steps:,} steps of {protocol.batch} sequences; students {student.protocol.steps:,} further steps, "
        f"on {student.teacher.pairs:,} pairs drawn with {student.teacher.steps} sampler steps; learning rate "
        f"{protocol.lr:g}. Measured: {protocol.samples} samples for each number of sampler steps, and {protocol.rows} "
        f"held-out sequences. Missing runs: {left}."
    )


def _hops(cells: Cells, steps: Sequence[int]) -> str:
    rows = [
        [name, str(len(group)), show(transport_mean(group, "predicted_jumps"))]
        + [show(hops_mean(group, count)) for count in steps]
        for name, group in cells.items()
    ]
    return table(["variant", "seeds", "predicted", *(f"{count} steps" for count in steps)], rows)


def _table(cells: Cells, steps: Sequence[int], number: Callable[..., Mean | None], **of: object) -> str:
    """A number of every variant by the number of sampler steps."""
    rows = [[name, *(show(number(group, steps=count, **of)) for count in steps)] for name, group in cells.items()]
    return table(["variant", *(f"{count} steps" for count in steps)], rows)


def _bound_of(paths: int, steps: int, cell: Cell) -> BoundValues | None:
    """br of one cell, by the proposal with the lower mean."""
    keys = {"steps": steps, "paths": paths}
    found = [cell.bound("test", "br", proposal=proposal, **keys) for proposal in (CONTEXT, X0_HEAD)]
    return min((one for one in found if one is not None), key=lambda one: perplexity(one)[0], default=None)


@dataclass(frozen=True)
class Quantity:
    """A number that is compared."""

    value: Number
    rows: Callable[[Cell], BoundValues | None] | None = None
    """For a bound: its values for each sequence, which are the same sequences in every cell."""

    def error(self, ours: Cell, theirs: Cell) -> float:
        """The error of the ratio of two cells, over their sequences; relative to the ratio."""
        if self.rows is None:
            a, b = self.value([ours]), self.value([theirs])
            assert a is not None
            assert b is not None
            return math.hypot(a.stderr / a.value, b.stderr / b.value)
        x, y = self.rows(ours), self.rows(theirs)
        assert x is not None
        assert y is not None
        apart = [a - b for a, b in zip(x.nats, y.nats, strict=True) if a is not None and b is not None]
        return mean(apart)[1] / x.length


def relative(cells: Sequence[Cell], base: Sequence[Cell], quantity: Quantity) -> Mean | None:
    """By how many per cent a number of `cells` differs from that of `base`, paired by seed, and a bound by sequence."""
    by_seed = {cell.seed: cell for cell in base}
    each: list[tuple[float, float]] = []
    for cell in cells:
        other = by_seed.get(cell.seed)
        ours, theirs = quantity.value([cell]), None if other is None else quantity.value([other])
        if other is None or ours is None or theirs is None:
            continue
        if math.isfinite(ours.value) and math.isfinite(theirs.value):
            ratio = ours.value / theirs.value
            each.append((100 * (ratio - 1), 100 * ratio * quantity.error(cell, other)))
    return Mean(*over_seeds_and_within(each, same_rows=quantity.rows is not None)) if each else None


def _is_sure(found: Mean | None) -> bool:
    return found is not None and found.seeds >= SEEDS_NEEDED and abs(found.value) > SURE * found.stderr


def _numbers(protocol: Protocol) -> dict[str, dict[int, Quantity]]:
    """What is compared at every number of steps, by its name."""
    steps, paths = protocol.sampler_steps, protocol.paths
    judges = {
        f"judge {judge}": {n: Quantity(partial(judged_mean, judge=judge, steps=n)) for n in steps}
        for judge in protocol.judges
    }
    return {
        "hops": {n: Quantity(partial(hops_mean, steps=n)) for n in steps},
        **judges,
        "br": {
            n: Quantity(partial(tightest_reversal, set="test", paths=paths, steps=n), partial(_bound_of, paths, n))
            for n in steps
        },
    }


def _differences(cells: Cells, protocol: Protocol) -> str:
    base = cells.get(CONTINUED, ())
    rows = []
    for name, group in cells.items():
        if name in (BASE, CONTINUED):
            continue
        for what, by_steps in _numbers(protocol).items():
            found = [relative(group, base, number) for number in by_steps.values()]
            shown = [f"**{show(one)}**" if _is_sure(one) else show(one) for one in found]
            if any(one is not None for one in found):
                rows.append([name, what, *shown])
    return table(["variant", "number", *(f"{count} steps" for count in protocol.sampler_steps)], rows)


def _findings(cells: Cells, protocol: Protocol) -> list[str]:
    """What rectification saves and costs: each comparison as a list with one sentence for each number."""
    if not cells.get(ONCE) or not cells.get(CONTINUED):
        return ["Not measured yet."]
    parts = []
    for ours, base in COMPARED:
        if cells.get(ours) and cells.get(base):
            lines = [f"`{ours}` against `{base}`:", ""]
            for what, by_steps in _numbers(protocol).items():
                found = {steps: relative(cells[ours], cells[base], number) for steps, number in by_steps.items()}
                lines.append(f"- **{what}**: {_in_words(found)}")
            parts.append("\n".join(lines))
    rule = (
        f"In brackets: where the difference exceeds {SURE} standard errors, with at least {SEEDS_NEEDED} seeds. `{OT}` "
        f"is trained for fewer steps than `{CONTINUED}` and the other students. In theory one round after independent "
        f"pairs saves 1/e of the hops, {100 / math.e:.1f} %, for a perfect network, independent tokens, and noise with "
        f"the frequencies of the text."
    )
    return [*parts, rule]


def _in_words(found: Mapping[int, Mean | None]) -> str:
    """The difference at the fewest and at the most steps, and the numbers of steps at which it is sure."""
    sure = {steps: one.value for steps, one in found.items() if one is not None and _is_sure(one)}
    lower, higher = ([str(steps) for steps, value in sure.items() if sign * value > 0] for sign in (-1, 1))
    parts = [f"{word} at {', '.join(at)} steps" for word, at in (("lower", lower), ("higher", higher)) if at]
    ends = ", ".join(f"{show(found[steps])} % at {steps} steps" for steps in (min(found), max(found)))
    seeds = max((one.seeds for one in found.values() if one is not None), default=0)
    few = f"only {seeds} seed{'s' * (seeds != 1)}: not tested"
    unsure = "not significant at any number of steps" if seeds >= SEEDS_NEEDED else few
    return f"{ends} ({', '.join(parts) or unsure})"


def _runs(cells: Cells) -> str:
    rows = [
        [
            f"{name}, seed {cell.seed}",
            f"{sum(cell.seconds.values()):.0f} s",
            f"{cell.training_loss[-1][1]:.4f}",
            str(cell.machine.get("device", "")),
            cell.commit or "–",
        ]
        for name, group in cells.items()
        for cell in group
    ]
    return table(("run", "time", "last loss", "device", "commit"), rows)
