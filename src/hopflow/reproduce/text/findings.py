"""What the paper states in words, computed from the cells: steps saved, cost of OT, correlation, hops."""

import math
from collections.abc import Sequence

from ...evaluation.correlation import Correlation, correlations
from .markdown import section, show, table
from .paper_tables import JUDGE_NAMES, PAPER_JUDGES, paper_value
from .protocol import Protocol, StudyVariant
from .statistics import Cells, bound_mean, judged_mean, tightest_reversal, training_mean, transport_mean

BASES = {
    "dfm_b_sinkhorn": "dfm_b",
    "dfm_b_exact": "dfm_b",
    "dfm_b_exact_ema": "dfm_b",
    "dfm_mmf_sinkhorn": "dfm_mmf",
    "dfm_mmf_exact": "dfm_mmf",
    "dfm_mmf_exact_ema": "dfm_mmf",
    "dfm_mmf_exact_ot4096": "dfm_mmf",
    "dfm_mmf_256_exact_ema": "dfm_mmf_256",
    "dfm_mmf_learned_cost": "dfm_mmf",
    "dfm_b_exact_ema_small": "dfm_b_small",
}
"""Variants with OT, and the variant without it that each is compared with."""


def steps_to_match(cells: Cells, variant: str, judge: str, sampler_steps: Sequence[int]) -> int | None:
    """The fewest measured steps with which a variant is as good as its base with the most; None if it never is."""
    most = max(sampler_steps)
    target = judged_mean(cells.get(BASES[variant], ()), judge, most)
    if target is None:
        return None
    for steps in sorted(sampler_steps):
        found = judged_mean(cells.get(variant, ()), judge, steps)
        if found is not None and found.value <= target.value:
            return steps
    return None


def _paper_steps(variant: str, judge: str, sampler_steps: Sequence[int]) -> int | None:
    """The same from the paper's values."""
    keys = {"quantity": "gen_ppl", "judge": PAPER_JUDGES[judge]}
    target = paper_value(BASES[variant], steps=max(sampler_steps), **keys)
    for steps in sorted(sampler_steps):
        found = paper_value(variant, steps=steps, **keys)
        if found is not None and target is not None and found <= target:
            return steps
    return None


def steps_table(cells: Cells, protocol: Protocol) -> str:
    """How many steps each variant with OT needs to be as good as its base with the most steps."""
    rows = []
    for variant, base in BASES.items():
        if variant in cells and base in cells:
            shown = []
            for judge in protocol.judges:
                own = steps_to_match(cells, variant, judge, protocol.sampler_steps)
                paper = _paper_steps(variant, judge, protocol.sampler_steps)
                more = f"> {max(protocol.sampler_steps):,}"
                shown.append((f"{own:,}" if own else more) + (f" ({paper:,})" if paper else ""))
            rows.append((variant, base, *shown))
    names = [f"{judge} ({JUDGE_NAMES[PAPER_JUDGES[judge]]})" for judge in protocol.judges]
    note = (
        f"The fewest measured steps (η = 0) with which samples of the variant have at most the mean generative "
        f"perplexity of its base at {max(protocol.sampler_steps):,} steps; in parentheses, the same from the paper's "
        f"values."
    )
    return section("### Steps saved by OT", note, table(("variant", "base", *names), rows))


def cost_table(cells: Cells) -> str:
    """The time of a training step with OT, as a share of a step without it."""
    rows = []
    for variant, base in BASES.items():
        if variant not in cells or base not in cells:
            continue
        recipe = cells[variant][0].recipe
        alone = {name: [one for one in cells[name] if not one.machine.get("shared")] for name in (variant, base)}
        speeds = [training_mean(group, "late_tokens_per_second") for group in alone.values()]
        slower = "–" if None in speeds else f"{speeds[1].value / speeds[0].value - 1:+.1%}"  # type: ignore[union-attr]
        waiting = training_mean(alone[variant], "ot_wait_share")
        rows.append(
            (
                variant,
                f"{recipe.get('ot_batch') or recipe.get('batch', 0):,}",
                "–" if waiting is None else f"{waiting.value:.1%}",
                show(training_mean(alone[variant], "ot_seconds")),
                slower,
                {"dfm_b_sinkhorn": "3.4%", "dfm_mmf_exact_ot4096": "12%"}.get(variant, "–"),
            )
        )
    note = (
        "Second half of the training, of cells that had the device to themselves. Waiting: share of the time in which "
        "a step waits for its coupling. A coupling: seconds of one OT problem in a worker. Slower: tokens per second "
        "of the base over those of the variant, minus one; it includes the x0 head, and two runs without OT differ by "
        "as much as this number."
    )
    head = ("variant", "OT batch n", "waiting", "a coupling, s", "slower", "paper")
    return section("### Cost of OT", note, table(head, rows))


def correlation_of(cells: Cells, protocol: Protocol, judge: str, quantity: str) -> Correlation | None:
    """Pearson correlation over variants of log bound and log generative perplexity at the most steps."""
    pairs = []
    for name, group in cells.items():
        samples = judged_mean(group, judge, max(protocol.sampler_steps))
        if quantity == "zero-shot b0":
            bounds = [bound_mean(group, set, "b0") for set in protocol.zero_shot]
        elif quantity == "tightest":
            known = [bound_mean(group, "test", "b0"), tightest_reversal(group, "test", protocol.paths)]
            bounds = [min((one for one in known if one), key=lambda one: one.value, default=None)]
        else:
            bounds = [bound_mean(group, "test", quantity)]
        values = [one.value for one in bounds if one is not None and math.isfinite(one.value)]
        if name != "ar" and samples is not None and values and len(values) == len(bounds):
            pairs.append((math.log(sum(values) / len(values)), math.log(samples.value)))
    try:
        return correlations([x for x, _ in pairs], [y for _, y in pairs])[0]
    except ValueError:  # too few variants
        return None


def correlation_table(cells: Cells, protocol: Protocol) -> str:
    """Do bounds and judges rank the variants in the same order?"""
    rows = []
    for quantity, name in (
        ("zero-shot b0", "mean b0 of the zero-shot sets"),
        ("b0", "b0, test set"),
        ("tightest", "lower one of b0 and br, test set"),
    ):
        for judge in protocol.judges:
            found = correlation_of(cells, protocol, judge, quantity)
            if found is not None:
                interval = f"{found.low:.2f} to {found.high:.2f}"
                rows.append((name, judge, f"{found.value:.3f}", interval, str(found.n)))
    note = (
        f"Pearson correlation over variants of the logs of a bound and of the generative perplexity at "
        f"{max(protocol.sampler_steps):,} steps (η = 0), with its 95 % interval. The paper states 0.933 without logs "
        f"for 11 variants; its own tables give 0.914."
    )
    return section("### Bounds and judges", note, table(("bound", "judge", "Pearson", "95 %", "variants"), rows))


def hops_table(cells: Cells) -> str:
    """Hops and transport costs, predicted from pairs and counted along samples."""
    keys = {
        "predicted_jumps": "predicted hops",
        "jumps": "hops",
        "kantorovich_cost_squared_embedding": "Kantorovich cost",
        "dynamic_cost_squared_embedding": "dynamic cost",
        "gain_squared_embedding": "gain of OT",
    }
    rows = []
    for name, group in cells.items():
        values = [transport_mean(group, key) for key in keys]
        if any(value is not None for value in values):
            recipe = group[0].recipe
            size = 1 if recipe.get("coupling") == "independent" else recipe.get("ot_batch") or recipe.get("batch", 1)
            gain = "–" if values[-1] is None else f"{values[-1].value:.1%}"
            rows.append((name, f"{size:,}", *(show(value) for value in values[:-1]), gain))
    note = (
        "Predicted from pairs of training text (a perfect network at η = 0 has as many hops, Theorem 3.1 [theorem1]), "
        "and counted along 256 samples of the most steps. Costs are squared embedding distances in each network's own "
        "table, so only costs of one row may be compared. Table 14 [tab:transport_costs] of the paper: 6,507 "
        "(Kantorovich) and 6,575 (dynamic) without OT, 6,357 and 6,329 with it."
    )
    return section("### Hops and transport", note, table(("variant", "OT batch", *keys.values()), rows))


def size_table(variants: Sequence[StudyVariant], cells: Cells) -> str:
    """The gain of OT in bounds at two sizes of the network."""
    rows = []
    sizes = {variant.name: variant.protocol.size for variant in variants}
    for variant, base in (("dfm_b_exact_ema", "dfm_b"), ("dfm_b_exact_ema_small", "dfm_b_small")):
        for name in (base, variant):
            group = cells.get(name, ())
            numbers = [bound_mean(group, "test", quantity) for quantity in ("b0", "b1", "bk")]
            if group:
                tight = tightest_reversal(group, "test", group[0].protocol.get("paths", 1))
                rows.append((name, sizes.get(name, "–"), *(show(number) for number in (*numbers, tight))))
    has_both = any(name.endswith("_small") for name in cells)
    head = ("variant", "network", "b0", "b1", "bk", "br")
    return section("### A check of size", table(head, rows)) if has_both else ""
