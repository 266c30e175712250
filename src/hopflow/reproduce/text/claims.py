"""Claims of the paper about text, and the rule by which the cells confirm or refute each of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .cell import Cell
from .findings import correlation_of
from .protocol import FULL, Protocol
from .statistics import (
    Cells,
    bound_mean,
    difference,
    judged_perplexity,
    nan_if_none,
    over_seeds_and_within,
    share_of_gap,
    tightest,
)

ERRORS = 2.0
"""Standard errors over seeds that a difference must exceed."""
LEAST_SEEDS = 3
NOT_MEASURED = "not measured yet"
Difference = tuple[float, float, int]
"""(value, error over seeds, seeds)"""
Claim = Callable[..., "ClaimResult"]
"""Decides a claim from the cells of a study and its protocol, which is that of the full study by default."""


@dataclass(frozen=True)
class ClaimResult:
    """What the cells say of a claim: confirmed, refuted or open, with the number that decides."""

    claim: str
    status: str
    number: str
    rule: str


def _lower(value: float, error: float, seeds: int) -> str:
    """Confirmed if a difference is negative beyond the error, over enough seeds."""
    if seeds < LEAST_SEEDS or math.isnan(error):
        return "open"
    if value < -ERRORS * error:
        return "confirmed"
    return "refuted" if value > ERRORS * error else "open"


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "1 seed, error over sequences"


def _bound_claim(claim: str, ours: str, base: str, quantity: str, **keys: int) -> Claim:
    at = "".join(f" ({value:,} {key})" for key, value in keys.items())
    rule = f"{quantity}{at} of {ours} against {base} on the test rows, paired by row and seed: {_RULE}"

    def decide(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
        found = difference(cells.get(ours, ()), cells.get(base, ()), "test", quantity, **keys)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        value, error, seeds = found
        return ClaimResult(claim, _lower(value, error, seeds), f"{value:+.1%} ± {error:.1%} ({_seeds(seeds)})", rule)

    return decide


_RULE = f"confirmed below 0, refuted above 0, beyond {ERRORS:g} standard errors, with at least {LEAST_SEEDS} seeds"


def _judged_claim(claim: str, ours: str, base: str, steps: int, base_steps: int | None = None) -> Claim:
    at = f"at {steps:,} steps" if base_steps is None else f"({steps:,} against {base_steps:,} steps)"
    compared = f"generative perplexity of {ours} against {base} {at}, η = 0, paired by seed: {_RULE}"

    def decide(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
        judges = protocol.judges
        rule = f"{compared}, by {'both judges' if len(judges) == 2 else f'the judge {judges[0]}'}"
        found = {
            judge: _judged(cells.get(ours, ()), cells.get(base, ()), judge, (steps, base_steps or steps))
            for judge in judges
        }
        known = {judge: pair for judge, pair in found.items() if pair is not None}
        if not known:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        verdicts = {_lower(*pair) for pair in known.values()}
        status = verdicts.pop() if len(verdicts) == 1 and len(known) == len(found) else "open"
        numbers = ", ".join(f"{judge} {pair[0]:+.1%} ± {pair[1]:.1%}" for judge, pair in known.items())
        apart = "".join(_other_weights(cells.get(ours, ()), cells.get(base, ()), judge) for judge in known)
        return ClaimResult(claim, status, f"{numbers} ({_seeds(min(pair[2] for pair in known.values()))}{apart})", rule)

    return decide


def _judged(cells: Sequence[Cell], base: Sequence[Cell], judge: str, steps: tuple[int, int]) -> Difference | None:
    """Relative difference of generative perplexities at these steps of the two variants, paired by seed."""
    first, second = (
        {
            cell.seed: judged_perplexity(point.judges[judge])
            for cell in group
            for point in cell.samples
            if (point.steps, point.eta) == (count, 0.0) and judge in point.judges
        }
        for group, count in zip((cells, base), steps, strict=True)
    )
    each = []
    for seed in sorted(first.keys() & second.keys()):
        (a, a_error), (b, b_error) = first[seed], second[seed]
        each.append((a / b - 1, a / b * math.hypot(a_error / a, b_error / b)))
    return over_seeds_and_within(each, same_rows=False) if each else None


def _other_weights(cells: Sequence[Cell], base: Sequence[Cell], judge: str) -> str:
    """The seeds in which the two variants were scored by judges of the same name with different weights, as text."""

    def weights(cell: Cell) -> object:
        return cell.judges.get(judge, {}).get("identity", {}).get("sha256")

    theirs = {cell.seed: weights(cell) for cell in base}
    seeds = [str(cell.seed) for cell in cells if cell.seed in theirs and weights(cell) != theirs[cell.seed]]
    return f"; two trainings of {judge} in seed {', '.join(seeds)}" if seeds else ""


def _paired(
    cells: Cells, ours: str, base: str, value: Callable[[Cell], tuple[float | None, float | None]]
) -> Difference | None:
    """Difference of a number of the cells, which comes with its error, paired by seed."""
    first, second = ({cell.seed: value(cell) for cell in cells.get(name, ())} for name in (ours, base))
    each = []
    for seed in sorted(first.keys() & second.keys()):
        (a, a_error), (b, b_error) = first[seed], second[seed]
        if a is not None and b is not None:
            each.append((a - b, math.hypot(nan_if_none(a_error), nan_if_none(b_error))))
    return over_seeds_and_within(each, same_rows=False) if each else None


def _gap(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
    """How much of the gap between bag-of-words and masks is the bound."""
    claim = "bag-of-words is far worse than masks (perplexity 211 against 71 on WikiText-2 in the paper)"
    rule = (
        f"share of the log gap between b0 of dfm_b and b0 of dfm_o that the tightest bound of dfm_b (br or bk, η = 0) "
        f"closes, same test rows: confirmed below 50 %, refuted above, beyond {ERRORS:g} standard errors, with at "
        f"least {LEAST_SEEDS} seeds"
    )
    bags, masks = cells.get("dfm_b", ()), cells.get("dfm_o", ())
    tight = tightest(bags, "test", protocol.paths)
    each = [] if tight is None else _shares(bags, masks, *tight)
    if tight is None or not each:
        return ClaimResult(claim, "open", NOT_MEASURED, rule)
    share, error, seeds = over_seeds_and_within(each, same_rows=True)
    loose, best = bound_mean(bags, "test", "b0"), bound_mean(bags, "test", tight[0], **tight[1])
    number = (
        f"{share:.0%} ± {error:.0%} of the gap is the bound (b0 {loose}, tightest bound {best}, masks "
        f"{bound_mean(masks, 'test', 'b0')}; {_seeds(seeds)})"
    )
    return ClaimResult(claim, _lower(share - 0.5, error, seeds), number, rule)


def _shares(
    bags: Sequence[Cell], masks: Sequence[Cell], quantity: str, keys: Mapping[str, object]
) -> list[tuple[float, float]]:
    """The share of the gap that this bound closes, with its error over sequences, for each seed of both variants."""
    below = {cell.seed: cell.bound("test", "b0") for cell in masks}
    found = []
    for cell in bags:
        three = cell.bound("test", "b0"), cell.bound("test", quantity, **keys), below.get(cell.seed)
        share = None if None in three else share_of_gap(*three)  # type: ignore[arg-type]
        found += [] if share is None else [share]
    return found


def _hops(claim: str, ours: str, base: str) -> Claim:
    rule = f"hops of {ours} against {base} along samples of 1,024 steps, η = 0, paired by seed: {_RULE}"

    def hops(cell: Cell) -> tuple[float | None, float | None]:
        found = cell.transport.get("jumps")
        return (None, None) if found is None else (found.value, found.stderr)

    def decide(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
        found = _paired(cells, ours, base, hops)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        return ClaimResult(claim, _lower(*found), f"{found[0]:+.1f} ± {found[1]:.1f} hops ({_seeds(found[2])})", rule)

    return decide


SAME_ENTROPY = 0.05
"""Bits; the paper's tables differ by at most 0.02."""


def _entropy(claim: str, ours: str, base: str, steps: int) -> Claim:
    rule = (
        f"entropy of samples of {ours} minus {base} at {steps} steps, paired by seed: confirmed if within "
        f"± {SAME_ENTROPY} bits by {ERRORS:g} standard errors, refuted if outside by as many, with at least "
        f"{LEAST_SEEDS} seeds"
    )

    def bits(cell: Cell) -> tuple[float | None, float | None]:
        points = [point for point in cell.samples if (point.steps, point.eta) == (steps, 0.0)]
        return (points[0].entropy_bits, points[0].entropy_bits_stderr) if points else (None, None)

    def decide(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
        found = _paired(cells, ours, base, bits)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        value, error, seeds = found
        status = "open"
        if seeds >= LEAST_SEEDS and abs(value) + ERRORS * error < SAME_ENTROPY:
            status = "confirmed"
        elif seeds >= LEAST_SEEDS and abs(value) - ERRORS * error > SAME_ENTROPY:
            status = "refuted"
        return ClaimResult(claim, status, f"{value:+.3f} ± {error:.3f} bits ({_seeds(seeds)})", rule)

    return decide


CORRELATED = 0.8
LEAST_VARIANTS = 11
"""The number of variants in the paper's correlation."""


def _correlation(cells: Cells, protocol: Protocol = FULL) -> ClaimResult:
    claim = "bounds and generative perplexity agree (Pearson 0.933 in the paper)"
    rule = (
        f"Pearson of log mean zero-shot b0 and log perplexity by ar, over at least {LEAST_VARIANTS} variants: "
        f"confirmed if its 95 % interval is above {CORRELATED}, refuted if below"
    )
    found = correlation_of(cells, protocol, "ar", "zero-shot b0")
    if found is None:
        return ClaimResult(claim, "open", NOT_MEASURED, rule)
    status = "confirmed" if found.low > CORRELATED else "refuted" if found.high < CORRELATED else "open"
    status = status if found.n >= LEAST_VARIANTS else "open"
    return ClaimResult(claim, status, f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f}, n = {found.n})", rule)


CLAIMS: tuple[Claim, ...] = (
    _gap,
    _bound_claim("OT lowers the bound of bag-of-words flows (b0)", "dfm_b_exact_ema", "dfm_b", "b0"),
    _bound_claim("OT lowers the bound of bag-of-words flows (b1)", "dfm_b_exact_ema", "dfm_b", "b1"),
    _bound_claim("OT lowers the bound of multimask flows (b0)", "dfm_mmf_exact_ema", "dfm_mmf", "b0"),
    _bound_claim("many masks with OT have a lower bound than one mask", "dfm_mmf_exact_ema", "dfm_o", "b0"),
    _bound_claim(
        "the loss on masked positions (DFM-N, here dfm_o) beats that on all (DFM-O, here dfm_o_plain)",
        "dfm_o",
        "dfm_o_plain",
        "bn",
        steps=1024,
    ),
    _judged_claim("OT improves samples of bag-of-words at 32 steps", "dfm_b_exact_ema", "dfm_b", 32),
    _judged_claim("OT improves samples of multimask at 32 steps", "dfm_mmf_exact_ema", "dfm_mmf", 32),
    _judged_claim("many masks give better samples than one, 1,024 steps", "dfm_mmf", "dfm_o", 1024),
    _judged_claim("bag-of-words beats multimask at 8 steps", "dfm_b_exact_ema", "dfm_mmf_exact_ema", 8),
    _judged_claim("OT needs 32 times fewer steps, bag-of-words", "dfm_b_exact_ema", "dfm_b", 32, 1024),
    _hops("OT saves hops, bag-of-words", "dfm_b_exact_ema", "dfm_b"),
    _entropy("OT keeps the entropy of samples, bag-of-words", "dfm_b_exact_ema", "dfm_b", 32),
    _correlation,
)


def verdicts(cells: Cells, protocol: Protocol = FULL) -> list[ClaimResult]:
    """What the cells say of each claim that the protocol can decide, in the order of CLAIMS."""
    return [claim(cells, protocol) for claim in CLAIMS if protocol.zero_shot or claim is not _correlation]


def summary(results: Sequence[ClaimResult]) -> list[str]:
    """One line for each status, every claim with its number; claims without one come last."""
    lines = []
    for status in ("confirmed", "refuted", "open"):
        own = [result for result in results if result.status == status]
        found = [f"{result.claim}: {result.number}" for result in own if result.number != NOT_MEASURED]
        unknown = [result.claim for result in own if result.number == NOT_MEASURED]
        if unknown:
            found.append(f"{NOT_MEASURED}: {'; '.join(unknown)}")
        lines.append(f"**{status.capitalize()}** ({len(own)}): {''.join(f'<br>• {one}' for one in found) or 'none'}")
    return lines
