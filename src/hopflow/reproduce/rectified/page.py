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
from .variants import BASE, CONTINUED, ONCE, OT, RECTIFIED_BUDGETS

COMMAND = "hopflow reproduce rectified --table"
TITLES = {
    "morse": "Shakespeare in Morse code",
    "novels": "Novels, GPT-2 tokens",
    "morse_laptop": "Shakespeare in Morse code, a small network",
}
SURE = 2
"""Standard errors from which a difference is stated."""
SEEDS_NEEDED = 3
Cells = Mapping[str, Sequence[Cell]]
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
hops less ([Training](../training.md#rectified-pairs)). This study measures how many hops it saves, and what that
does to the quality of samples with few and many steps.

All students start from the weights of their teacher. `continued` is trained as long, but on independent pairs, so that
it differs from `rectified` in the pairs only. `rectified_twice` is trained on the pairs of
`rectified`, `rectified_after_ot` on those of `exact_ot`. In `rectified_fresh_0p3`, 30 % of the pairs are real text with
independent noise. `br` bounds the samples with that number of steps (8 reversed paths, the proposal with the lower
mean). A judge is another language model; its perplexity of samples is low for good texts, and for repetitive ones,
which have a low entropy. Errors are over seeds, or over sequences where there is one seed."""


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
            section(f"### Perplexity of samples, judge {judge}", _judged(cells, judge, steps))
            for judge in protocol.judges
        ),
        section("### br of held-out text", _table(cells, steps, _br, protocol.paths)),
        section("### Entropy of samples, bits per token", _table(cells, steps, _entropy)),
        section(f"### Differences from `{CONTINUED}`", DIFFERENCES, _differences(cells, protocol)),
        section("### Runs", _runs(cells)),
    ]
    return [part for part in parts if part]


DIFFERENCES = (
    f"In per cent, paired by seed, br by sequence too; the error is the larger one of that over seeds and that within "
    f"a seed. **Bold**: beyond {SURE} standard errors, with at least {SEEDS_NEEDED} seeds. Fewer hops, a lower "
    f"perplexity and a lower br are better."
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
        f"Network {protocol.size}, {protocol.tokens} tokens, length {protocol.length}; {protocol.steps:,} steps of "
        f"{protocol.batch} sequences, students {student.protocol.steps:,} more on {student.teacher.pairs:,} pairs that "
        f"were drawn in {student.teacher.steps} steps. Learning rate {protocol.lr:g}, {protocol.samples} samples of "
        f"each number of steps, {protocol.rows} held-out rows. Missing runs: {left}."
    )


def _hops(cells: Cells, steps: Sequence[int]) -> str:
    rows = [
        [name, str(len(group)), show(transport_mean(group, "predicted_jumps"))]
        + [show(hops_mean(group, count, 0.0)) for count in steps]
        for name, group in cells.items()
    ]
    return table(["variant", "seeds", "predicted", *(f"{count} steps" for count in steps)], rows)


def _judged(cells: Cells, judge: str, steps: Sequence[int]) -> str:
    return _table(cells, steps, _perplexity, judge)


def _table(cells: Cells, steps: Sequence[int], number: Callable[..., Mean | None], *of: object) -> str:
    rows = [[name, *(show(number(*of, count, group)) for count in steps)] for name, group in cells.items()]
    return table(["variant", *(f"{count} steps" for count in steps)], rows)


def _perplexity(judge: str, steps: int, group: Sequence[Cell]) -> Mean | None:
    return judged_mean(group, judge, steps, 0.0)


def _br(paths: int, steps: int, group: Sequence[Cell]) -> Mean | None:
    return tightest_reversal(group, "test", paths, steps=steps)


def _entropy(steps: int, group: Sequence[Cell]) -> Mean | None:
    return entropy_mean(group, steps, 0.0)


def _hops_at(steps: int, group: Sequence[Cell]) -> Mean | None:
    return hops_mean(group, steps, 0.0)


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
        f"judge {judge}": {n: Quantity(partial(_perplexity, judge, n)) for n in steps} for judge in protocol.judges
    }
    return {
        "hops": {n: Quantity(partial(_hops_at, n)) for n in steps},
        **judges,
        "br": {n: Quantity(partial(_br, paths, n), partial(_bound_of, paths, n)) for n in steps},
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
    """What rectification buys and costs, in one sentence for each number."""
    once, base, ot = (cells.get(name, ()) for name in (ONCE, CONTINUED, OT))
    if not once or not base:
        return ["Not measured yet."]
    lines = []
    for what, by_steps in _numbers(protocol).items():
        found = {steps: relative(once, base, number) for steps, number in by_steps.items()}
        lower = [str(steps) for steps, one in found.items() if one is not None and _is_sure(one) and one.value < 0]
        higher = [str(steps) for steps, one in found.items() if one is not None and _is_sure(one) and one.value > 0]
        most = max(by_steps)
        lines.append(
            f"- **{what}** of `{ONCE}` against `{CONTINUED}`: {show(found[most])} % at {most} steps. Lower at "
            f"{', '.join(lower) or 'no number of'} steps, higher at {', '.join(higher) or 'no number of'} steps."
        )
    gained = relative(once, ot, Quantity(partial(_hops_at, max(protocol.sampler_steps))))
    lines.append(f"- **hops** of `{ONCE}` against `{OT}`: {show(gained)} % at {max(protocol.sampler_steps)} steps.")
    rule = (
        f"Lower and higher: beyond {SURE} standard errors, with at least {SEEDS_NEEDED} seeds. For a perfect network, "
        f"independent tokens and noise with their frequencies, hops fall by 1/e, {100 / math.e:.1f} %."
    )
    return ["\n".join(lines), rule]


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
