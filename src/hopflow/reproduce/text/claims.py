"""Claims of the paper about text, and the rule by which the cells confirm or refute each of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .cell import Cell
from .statistics import bound_mean, difference, judged_perplexity, over_seeds

ERRORS = 2.0
"""Standard errors over seeds that a difference must exceed."""
LEAST_SEEDS = 3
Cells = Mapping[str, Sequence[Cell]]


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


def _bound_claim(claim: str, ours: str, base: str, quantity: str, **keys: object) -> Callable[[Cells], ClaimResult]:
    rule = (
        f"paired difference in {quantity} on the test rows over {LEAST_SEEDS} seeds beyond {ERRORS:g} standard errors"
    )

    def decide(cells: Cells) -> ClaimResult:
        found = difference(cells.get(ours, ()), cells.get(base, ()), "test", quantity, **keys)
        if found is None:
            return ClaimResult(claim, "open", "not measured yet", rule)
        value, error, seeds = found
        of = "over seeds" if seeds > 1 else "over sequences, one seed"
        return ClaimResult(claim, _lower(value, error, seeds), f"{value:+.1%} ± {error:.1%} ({of}, n = {seeds})", rule)

    return decide


def _judged_claim(claim: str, ours: str, base: str, steps: int, eta: float) -> Callable[[Cells], ClaimResult]:
    rule = f"generative perplexity at {steps} steps lower by both judges beyond {ERRORS:g} standard errors over seeds"

    def decide(cells: Cells) -> ClaimResult:
        found = {judge: _judged(cells, ours, base, judge, steps, eta) for judge in ("ar", "smollm2")}
        known = {judge: pair for judge, pair in found.items() if pair is not None}
        if not known:
            return ClaimResult(claim, "open", "not measured yet", rule)
        verdicts = {_lower(*pair) for pair in known.values()}
        status = verdicts.pop() if len(verdicts) == 1 and len(known) == len(found) else "open"
        numbers = ", ".join(f"{judge} {pair[0]:+.1%} ± {pair[1]:.1%}" for judge, pair in known.items())
        return ClaimResult(claim, status, numbers, rule)

    return decide


def _judged(cells: Cells, ours: str, base: str, judge: str, steps: int, eta: float) -> tuple[float, float, int] | None:
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
    if not each:
        return None
    found = over_seeds(each)
    return found.value, found.stderr, found.seeds


def _gap(cells: Cells) -> ClaimResult:
    """How much of the gap between bag-of-words and masks is the bound."""
    claim = "bag-of-words is far worse than masks (perplexity 211 against 71 on WikiText-2 in the paper)"
    rule = "b0 of dfm_b, its tightest bound (br or bk, η = 0) and b0 of dfm_o on the same test rows; share of log gap"
    masks = bound_mean(cells.get("dfm_o", ()), "test", "b0")
    loose = bound_mean(cells.get("dfm_b", ()), "test", "b0")
    tight = [
        found
        for quantity in ("br", "bk")
        if (found := bound_mean(cells.get("dfm_b", ()), "test", quantity, **_deepest(quantity, cells)))
    ]
    if masks is None or loose is None or not tight:
        return ClaimResult(claim, "open", "not measured yet", rule)
    best = min(tight, key=lambda found: found.value)
    share = math.log(loose.value / best.value) / math.log(loose.value / masks.value)
    number = f"b0 {loose}, tightest bound {best}, masks {masks}: {share:.0%} of the gap is the bound"
    enough = min(masks.seeds, loose.seeds) >= LEAST_SEEDS
    return ClaimResult(claim, ("confirmed" if share < 0.5 else "refuted") if enough else "open", number, rule)


def _deepest(quantity: str, cells: Cells) -> dict[str, object]:
    if quantity != "br":
        return {}
    paths = [bound.paths for cell in cells.get("dfm_b", ()) for bound in cell.bounds if bound.quantity == "br"]
    return {"paths": max((count for count in paths if count is not None), default=None)}


CLAIMS: tuple[Callable[[Cells], ClaimResult], ...] = (
    _gap,
    _bound_claim("OT lowers the bound of bag-of-words flows (b0)", "dfm_b_exact_ema", "dfm_b", "b0"),
    _bound_claim("OT lowers the bound of bag-of-words flows (b1)", "dfm_b_exact_ema", "dfm_b", "b1"),
    _bound_claim("OT lowers the bound of multimask flows (b0)", "dfm_mmf_exact_ema", "dfm_mmf", "b0"),
    _bound_claim("a multimask source with OT has a lower bound than one mask", "dfm_mmf_exact_ema", "dfm_o", "b0"),
    _bound_claim("the loss on masked positions only (DFM-N) beats that on all (DFM-O)", "dfm_n", "dfm_o", "b0"),
    _judged_claim("OT lowers generative perplexity, bag-of-words, 32 steps", "dfm_b_exact_ema", "dfm_b", 32, 0.0),
    _judged_claim("OT lowers generative perplexity, multimask, 32 steps", "dfm_mmf_exact_ema", "dfm_mmf", 32, 0.0),
)


def verdicts(cells: Cells) -> list[ClaimResult]:
    return [claim(cells) for claim in CLAIMS]
