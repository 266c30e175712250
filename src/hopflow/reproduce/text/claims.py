"""Claims of the paper about text, and the rule by which the cells confirm or refute each of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .cell import Cell
from .findings import correlation_of, steps_to_match
from .protocol import FULL
from .statistics import bound_mean, difference, judged_perplexity, over_seeds, tightest_reversal

ERRORS = 2.0
"""Standard errors over seeds that a difference must exceed."""
LEAST_SEEDS = 3
NOT_MEASURED = "not measured yet"
Cells = Mapping[str, Sequence[Cell]]
Difference = tuple[float, float, int]
"""(value, error over seeds, seeds)"""


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
    return _number_of(count) if count > 1 else "1 seed, error over sequences"


def _number_of(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds != 1)}"


def _bound_claim(claim: str, ours: str, base: str, quantity: str, **keys: object) -> Callable[[Cells], ClaimResult]:
    rule = f"{quantity} of {ours} against {base} on the test rows, paired by row and seed: {_RULE}"

    def decide(cells: Cells) -> ClaimResult:
        found = difference(cells.get(ours, ()), cells.get(base, ()), "test", quantity, **keys)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        value, error, seeds = found
        return ClaimResult(claim, _lower(value, error, seeds), f"{value:+.1%} ± {error:.1%} ({_seeds(seeds)})", rule)

    return decide


_RULE = f"confirmed below 0, refuted above 0, beyond {ERRORS:g} standard errors over at least {LEAST_SEEDS} seeds"


def _judged_claim(claim: str, ours: str, base: str, steps: int, eta: float) -> Callable[[Cells], ClaimResult]:
    rule = f"generative perplexity of {ours} against {base} at {steps:,} steps, η = {eta:g}: {_RULE}, by both judges"

    def decide(cells: Cells) -> ClaimResult:
        found = {judge: _judged(cells, ours, base, judge, steps, eta) for judge in FULL.judges}
        known = {judge: pair for judge, pair in found.items() if pair is not None}
        if not known:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        verdicts = {_lower(*pair) for pair in known.values()}
        status = verdicts.pop() if len(verdicts) == 1 and len(known) == len(found) else "open"
        numbers = ", ".join(f"{judge} {pair[0]:+.1%} ± {pair[1]:.1%}" for judge, pair in known.items())
        return ClaimResult(claim, status, f"{numbers} ({_seeds(min(pair[2] for pair in known.values()))})", rule)

    return decide


def _judged(cells: Cells, ours: str, base: str, judge: str, steps: int, eta: float) -> Difference | None:
    """Relative difference of generative perplexities, paired by seed."""

    def by_seed(name: str) -> dict[int, tuple[float, float]]:
        return {
            cell.seed: judged_perplexity(point.judges[judge])
            for cell in cells.get(name, ())
            for point in cell.samples
            if (point.steps, point.eta) == (steps, eta) and judge in point.judges
        }

    first, second = by_seed(ours), by_seed(base)
    each = []
    for seed in sorted(first.keys() & second.keys()):
        (a, a_error), (b, b_error) = first[seed], second[seed]
        each.append((a / b - 1, a / b * math.hypot(a_error / a, b_error / b)))
    return _over(each)


def _paired(cells: Cells, ours: str, base: str, value: Callable[[Cell], float | None]) -> Difference | None:
    """Difference of a number of the cells, paired by seed."""
    first, second = ({cell.seed: value(cell) for cell in cells.get(name, ())} for name in (ours, base))
    each = []
    for seed in sorted(first.keys() & second.keys()):
        a, b = first[seed], second[seed]
        if a is not None and b is not None:
            each.append((a - b, math.nan))
    return _over(each)


def _over(each: Sequence[tuple[float, float]]) -> Difference | None:
    if not each:
        return None
    found = over_seeds(each)
    return found.value, found.stderr, found.seeds


def _gap(cells: Cells) -> ClaimResult:
    """How much of the gap between bag-of-words and masks is the bound."""
    claim = "bag-of-words is far worse than masks (perplexity 211 against 71 on WikiText-2 in the paper)"
    rule = (
        f"share of the log gap between b0 of dfm_b and b0 of dfm_o that the tightest bound of dfm_b (br or bk, η = 0) "
        f"closes, same test rows: confirmed below 50 %, refuted above, with at least {LEAST_SEEDS} seeds"
    )
    masks = bound_mean(cells.get("dfm_o", ()), "test", "b0")
    loose = bound_mean(cells.get("dfm_b", ()), "test", "b0")
    bags = cells.get("dfm_b", ())
    paths = max((bound.paths or 1 for cell in bags for bound in cell.bounds if bound.quantity == "br"), default=1)
    tight = [one for one in (tightest_reversal(bags, "test", paths), bound_mean(bags, "test", "bk")) if one is not None]
    if masks is None or loose is None or not tight:
        return ClaimResult(claim, "open", NOT_MEASURED, rule)
    best = min(tight, key=lambda found: found.value)
    share = math.log(loose.value / best.value) / math.log(loose.value / masks.value)
    number = f"{share:.0%} of the gap is the bound (b0 {loose}, tightest bound {best}, masks {masks})"
    enough = min(masks.seeds, loose.seeds) >= LEAST_SEEDS
    return ClaimResult(claim, ("confirmed" if share < 0.5 else "refuted") if enough else "open", number, rule)


def _fewer_steps(claim: str, ours: str, base: str, most: int) -> Callable[[Cells], ClaimResult]:
    rule = (
        f"steps with which {ours} has at most the mean generative perplexity of {base} at 1,024 steps: confirmed if at "
        f"most {most} by both judges, refuted if more by both, with at least {LEAST_SEEDS} seeds"
    )

    def decide(cells: Cells) -> ClaimResult:
        if not cells.get(ours) or not cells.get(base):
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        found = {judge: steps_to_match(cells, ours, judge, FULL.sampler_steps) for judge in FULL.judges}
        number = ", ".join(f"{judge} {steps:,}" if steps else f"{judge} > 1,024" for judge, steps in found.items())
        enough = min(len(cells[ours]), len(cells[base])) >= LEAST_SEEDS
        reached = {steps is not None and steps <= most for steps in found.values()}
        status = "open" if not enough or len(reached) > 1 else "confirmed" if reached.pop() else "refuted"
        return ClaimResult(claim, status, f"steps: {number}", rule)

    return decide


def _hops(claim: str, ours: str, base: str) -> Callable[[Cells], ClaimResult]:
    rule = f"hops of {ours} against {base} along samples of 1,024 steps, η = 0, paired by seed: {_RULE}"

    def decide(cells: Cells) -> ClaimResult:
        found = _paired(cells, ours, base, lambda cell: cell.transport["jumps"].value if cell.transport else None)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        number = f"{found[0]:+.1f} ± {'?' if math.isnan(found[1]) else f'{found[1]:.1f}'} hops ({_number_of(found[2])})"
        return ClaimResult(claim, _lower(*found), number, rule)

    return decide


SAME_ENTROPY = 0.05
"""Bits; the paper's tables differ by at most 0.02."""


def _entropy(claim: str, ours: str, base: str, steps: int) -> Callable[[Cells], ClaimResult]:
    rule = (
        f"entropy of samples of {ours} minus {base} at {steps} steps, paired by seed: confirmed if within "
        f"± {SAME_ENTROPY} bits by {ERRORS:g} standard errors, refuted if outside"
    )

    def bits(cell: Cell) -> float | None:
        return next((p.entropy_bits for p in cell.samples if (p.steps, p.eta) == (steps, 0.0)), None)

    def decide(cells: Cells) -> ClaimResult:
        found = _paired(cells, ours, base, bits)
        if found is None:
            return ClaimResult(claim, "open", NOT_MEASURED, rule)
        value, error, seeds = found
        shown = "?" if math.isnan(error) else f"{error:.3f}"
        status = "open"
        if seeds >= LEAST_SEEDS and abs(value) + ERRORS * error < SAME_ENTROPY:
            status = "confirmed"
        elif seeds >= LEAST_SEEDS and abs(value) - ERRORS * error > SAME_ENTROPY:
            status = "refuted"
        return ClaimResult(claim, status, f"{value:+.3f} ± {shown} bits ({_number_of(seeds)})", rule)

    return decide


def _correlation(cells: Cells) -> ClaimResult:
    claim = "bounds and generative perplexity agree (Pearson 0.933 in the paper)"
    rule = "Pearson of log mean zero-shot b0 and log perplexity by ar, over variants: 95 % interval above or below 0.8"
    found = correlation_of(cells, FULL, "ar", "zero-shot b0")
    if found is None:
        return ClaimResult(claim, "open", NOT_MEASURED, rule)
    status = "confirmed" if found.low > 0.8 else "refuted" if found.high < 0.8 else "open"
    return ClaimResult(claim, status, f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f}, n = {found.n})", rule)


CLAIMS: tuple[Callable[[Cells], ClaimResult], ...] = (
    _gap,
    _bound_claim("OT lowers the bound of bag-of-words flows (b0)", "dfm_b_exact_ema", "dfm_b", "b0"),
    _bound_claim("OT lowers the bound of bag-of-words flows (b1)", "dfm_b_exact_ema", "dfm_b", "b1"),
    _bound_claim("OT lowers the bound of multimask flows (b0)", "dfm_mmf_exact_ema", "dfm_mmf", "b0"),
    _bound_claim("many masks with OT have a lower bound than one mask", "dfm_mmf_exact_ema", "dfm_o", "b0"),
    _bound_claim("the loss on masked positions (DFM-N) beats that on all (DFM-O)", "dfm_n", "dfm_o", "b0"),
    _judged_claim("OT improves samples of bag-of-words at 32 steps", "dfm_b_exact_ema", "dfm_b", 32, 0.0),
    _judged_claim("OT improves samples of multimask at 32 steps", "dfm_mmf_exact_ema", "dfm_mmf", 32, 0.0),
    _judged_claim("many masks give better samples than one, 1,024 steps", "dfm_mmf", "dfm_o", 1024, 0.0),
    _judged_claim("bag-of-words beats multimask at 8 steps", "dfm_b_exact_ema", "dfm_mmf_exact_ema", 8, 0.0),
    _fewer_steps("OT needs 32 times fewer steps, bag-of-words", "dfm_b_exact_ema", "dfm_b", 32),
    _hops("OT saves hops, bag-of-words", "dfm_b_exact_ema", "dfm_b"),
    _entropy("OT keeps the entropy of samples, bag-of-words", "dfm_b_exact_ema", "dfm_b", 32),
    _correlation,
)


def verdicts(cells: Cells) -> list[ClaimResult]:
    return [claim(cells) for claim in CLAIMS]


def summary(results: Sequence[ClaimResult]) -> list[str]:
    """One line for each status, every claim with its number; claims without one come last."""
    lines = []
    for status in ("confirmed", "refuted", "open"):
        own = [result for result in results if result.status == status]
        found = [f"{result.claim}: {result.number}" for result in own if result.number != NOT_MEASURED]
        unknown = [result.claim for result in own if result.number == NOT_MEASURED]
        if unknown:
            found.append(f"{NOT_MEASURED}: {', '.join(unknown)}")
        lines.append(f"**{status.capitalize()}** ({len(own)}): {'; '.join(found) or 'none'}.")
    return lines
