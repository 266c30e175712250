"""The claims of the text study: each of them can be confirmed, refuted and open, by made-up cells."""

import math
from dataclasses import replace

import pytest
from synthetic_cells import synthetic_cell

from hopflow.reproduce.text.budgets import BUDGETS
from hopflow.reproduce.text.cell import MeasuredValue
from hopflow.reproduce.text.claims import CLAIMS, _correlation, _entropy, _gap, _judged_claim
from hopflow.reproduce.text.protocol import SEEDS
from hopflow.reproduce.text.statistics import over_seeds_and_within

VARIANTS = {variant.name: variant for variant in BUDGETS["full"].variants}
PAIRS = {
    1: ("dfm_b_exact_ema", "dfm_b"),
    2: ("dfm_b_exact_ema", "dfm_b"),
    3: ("dfm_mmf_exact_ema", "dfm_mmf"),
    4: ("dfm_mmf_exact_ema", "dfm_o"),
    5: ("dfm_o", "dfm_o_plain"),
    6: ("dfm_b_exact_ema", "dfm_b"),
    7: ("dfm_mmf_exact_ema", "dfm_mmf"),
    8: ("dfm_mmf", "dfm_o"),
    9: ("dfm_b_exact_ema", "dfm_mmf_exact_ema"),
    10: ("dfm_b_exact_ema", "dfm_b"),
    11: ("dfm_b_exact_ema", "dfm_b"),
}
"""The two variants of each claim about a difference, by its place in CLAIMS."""


def flat(seed):
    """A bag-of-words cell with equally good samples at every number of steps."""
    found = synthetic_cell("full", VARIANTS["dfm_b"], seed)
    return replace(found, samples=[replace(point, judges=found.samples[0].judges) for point in found.samples])


def shifted(cell, by):
    """All numbers of a cell moved by the same amount."""

    def moved(scores):
        return replace(scores, nats=[nats + by for nats in scores.nats])

    points = [
        replace(
            point,
            entropy_bits=point.entropy_bits + by,
            judges={judge: moved(scores) for judge, scores in point.judges.items()},
        )
        for point in cell.samples
    ]
    bounds = [replace(bound, nats=[nats + by for nats in bound.nats]) for bound in cell.bounds]
    jumps = replace(cell.transport["jumps"], value=cell.transport["jumps"].value + by)
    return replace(cell, bounds=bounds, samples=points, transport={**cell.transport, "jumps": jumps})


@pytest.mark.parametrize(("by", "status"), [(-30.0, "confirmed"), (30.0, "refuted"), (0.0, "open")])
@pytest.mark.parametrize("place", PAIRS)
def test_a_claim_about_a_difference_can_be_confirmed_refuted_and_open(place, by, status):
    ours, base = PAIRS[place]
    cells = {base: [flat(seed) for seed in SEEDS], ours: [shifted(flat(seed), by) for seed in SEEDS]}
    found = CLAIMS[place](cells)
    assert found.status == status
    assert CLAIMS[place]({name: group[:2] for name, group in cells.items()}).status == "open"


def test_fewer_steps_are_compared_with_the_most_steps_of_the_base():
    group = [synthetic_cell("full", VARIANTS["dfm_b"], seed) for seed in SEEDS]  # 9 % worse at 32 than at 1,024 steps
    same = {"dfm_b": group, "dfm_b_exact_ema": group}
    assert (CLAIMS[6](same).status, CLAIMS[10](same).status) == ("open", "refuted")


@pytest.mark.parametrize(
    ("by", "error", "status"),
    [(0.0, 0.01, "confirmed"), (0.2, 0.01, "refuted"), (-0.2, 0.01, "refuted"), (0.05, 0.01, "open"), (0, 0.1, "open")],
)
def test_entropies_are_equal_within_a_margin_or_not_or_it_is_open(by, error, status):
    base = [flat(seed) for seed in SEEDS]
    base = [replace(c, samples=[replace(p, entropy_bits_stderr=error) for p in c.samples]) for c in base]
    ours = [shifted(cell, by) for cell in base]
    assert _entropy("same", "dfm_b_exact_ema", "dfm_b", 32)({"dfm_b": base, "dfm_b_exact_ema": ours}).status == status


@pytest.mark.parametrize(
    ("share", "spread", "status"),
    [(0.8, 0.02, "refuted"), (0.2, 0.02, "confirmed"), (0.5, 0.02, "open"), (0.8, 0.5, "open")],
)
def test_the_gap_between_bags_and_masks_needs_a_share_that_its_error_keeps_from_one_half(share, spread, status):
    cells = {"dfm_o": [], "dfm_b": []}
    for seed in SEEDS:
        masks, bags = (synthetic_cell("full", VARIANTS[name], seed) for name in ("dfm_o", "dfm_b"))
        rows = masks.bound("test", "b0").nats
        nats = {
            "b0": [row + 20 for row in rows],
            "br": [row + 20 * (1 - share - spread * (seed - 1)) for row in rows],
            "bk": [row + 21 for row in rows],
        }
        bounds = [replace(one, nats=nats.get(one.quantity, one.nats)) for one in bags.bounds]
        cells["dfm_o"].append(masks)
        cells["dfm_b"].append(replace(bags, bounds=bounds))
    found = _gap(cells)
    assert found.status == status
    assert found.number.startswith(f"{share:.0%} ± ")
    assert _gap({name: group[:2] for name, group in cells.items()}).status == "open"


@pytest.mark.parametrize(("power", "status"), [(1.0, "confirmed"), (-1.0, "refuted")])
def test_bounds_and_judges_agree_if_the_interval_over_enough_variants_says_so(power, status):
    cells = {}
    for name in list(VARIANTS)[:16]:
        cell = synthetic_cell("full", VARIANTS[name], 0)
        level = sum(math.exp(sum(b.nats) / len(b.nats) / 128) for b in cell.bounds if b.quantity == "b0")
        scores = {"ar": replace(cell.samples[0].judges["ar"], nats=[100 * power * math.log(level)] * 8)}
        cells[name] = [replace(cell, samples=[replace(point, judges=scores) for point in cell.samples])]
    assert _correlation(cells).status == status
    assert _correlation(dict(list(cells.items())[:10])).status == "open"


def test_the_error_of_a_difference_is_not_below_that_within_the_seeds():
    each = [(0.1, 0.06), (0.1, 0.06), (0.1, 0.06)]
    assert over_seeds_and_within(each, same_rows=True) == (pytest.approx(0.1), pytest.approx(0.06), 3)
    assert over_seeds_and_within(each, same_rows=False)[1] == pytest.approx(0.06 / math.sqrt(3))
    assert over_seeds_and_within([(0.0, 0.01), (1.0, 0.01)], same_rows=True)[1] == pytest.approx(0.5)
    assert over_seeds_and_within([(0.1, 0.06)], same_rows=False) == (0.1, 0.06, 1)
    assert over_seeds_and_within([(0.0, math.nan), (1.0, math.nan)], same_rows=False)[1] == pytest.approx(0.5)


def test_seeds_whose_variants_were_scored_by_two_trainings_of_a_judge_are_named():
    base, ours = ([flat(seed) for seed in SEEDS] for _ in range(2))
    decide = _judged_claim("lower", "dfm_b_exact_ema", "dfm_b", 32)
    assert "trainings" not in decide({"dfm_b": base, "dfm_b_exact_ema": ours}).number
    other = {**ours[1].judges, "ar": {"identity": {"sha256": {"w": "0"}}}}
    ours[1] = replace(ours[1], judges=other)
    assert "two trainings of ar in seed 1)" in decide({"dfm_b": base, "dfm_b_exact_ema": ours}).number


def test_a_cell_without_hops_leaves_that_claim_open():
    cells = {name: [replace(flat(0), transport={"jumps": MeasuredValue(None, None)})] for name in PAIRS[11]}
    assert CLAIMS[11](cells).number == "not measured yet"
