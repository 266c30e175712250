"""The pages of the text study, docs/results/text*.md: every number from the cells, on a CPU in seconds."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from ..morse_tables import tables
from .budgets import BUDGETS
from .cell import REPEATED, Cell, read_all
from .claims import ERRORS, summary, verdicts
from .failures import read_failures
from .findings import correlation_table, cost_table, hops_table, size_table, steps_table
from .markdown import section, show, table
from .paper_tables import ablation_tables, bound_tables, entropy_table, generative_tables
from .protocol import Budget, Protocol
from .queue import missing
from .statistics import (
    Mean,
    bound_mean,
    difference,
    entropy_mean,
    hops_mean,
    judged_mean,
    tightest_reversal,
    two_runs_apart,
)

PAPER_BUDGET = "12 × 768, 400,000 steps of 512 × 128 tokens of OpenWebText, learning rate 3e-4, dropout 0.1, one run"


CLAIMS_NOTE = (
    "A claim is open between confirmed and refuted. The standard error of a difference is the larger one of that over "
    "seeds and that over the sequences of a seed: over three seeds alone, 2 standard errors are an 82 % interval. The "
    "margins of 50 %, 0.05 bits and 0.8 are ours. With Evidence a token that is no mask is certain, so that dfm_n and "
    "dfm_o are the same flow: the paper's DFM-O is dfm_o_plain."
)


def by_variant(cells: Iterable[Cell], budget: Budget) -> dict[str, list[Cell]]:
    """The cells of a budget by variant, in the order of its table, seeds ascending."""
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.budget == budget.name:
            found[cell.variant].append(cell)
    names = [variant.name for variant in budget.variants]
    return {name: sorted(found[name], key=lambda cell: cell.seed) for name in names if found[name]}


def study_cells(folder: Path, budget: str = "full") -> dict[str, list[Cell]]:
    """The cells of a folder by variant; a ValueError names one that was measured by another protocol."""
    chosen = BUDGETS[budget]
    cells = by_variant(read_all(folder), chosen)
    for name, group in cells.items():
        own = next(variant.protocol for variant in chosen.variants if variant.name == name)
        for cell in group:
            if cell.protocol_sha256 != own.sha256:
                raise ValueError(f"{cell.name} was measured by another protocol; delete it or restore the protocol")
    return cells


def page(folder: Path, budget: str = "full") -> str:
    """The complete page as markdown."""
    chosen = BUDGETS[budget]
    cells, protocol = study_cells(folder, budget), chosen.variants[0].protocol
    own_size = {name: group for name, group in cells.items() if not name.endswith("_small")}
    results = verdicts(own_size, protocol)
    rows = [(r.claim, f"**{r.status}**", r.number, r.rule) for r in results]
    parts = [
        f"# Results: {chosen.title}",
        chosen.introduction,
        *summary(results),
        _protocol(protocol, chosen, folder, sum(map(len, cells.values()))),
        section("## Claims and rules", CLAIMS_NOTE, table(("claim of the paper", "here", "number", "rule"), rows)),
        section("## Bounds on held-out text", _picture(chosen, "bounds"), _bounds(cells, protocol)),
        _tables(cells, protocol, folder),
        "## What the paper states in words",
        _picture(chosen, "samples"),
        steps_table(cells, protocol),
        cost_table(cells),
        correlation_table(own_size, protocol),
        hops_table(cells),
        _picture(chosen, "hops"),
        size_table(chosen.variants, cells),
        "## Cells",
        _list(cells),
        _failures(folder, budget, cells),
        _repeated(folder, chosen, cells, protocol),
        _judges(cells),
        _samples(cells),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture(budget: Budget, name: str) -> str:
    """A link to a picture that `--table` draws, for a study that is published."""
    captions = {
        "bounds": "Perplexity bounds of each variant on the test set",
        "samples": "Generative perplexity against sampling steps",
        "hops": "Hops per sequence against the OT batch, predicted and counted",
    }
    return f"![{captions[name]}](../pictures/{picture_name(budget, name)})" if budget.page else ""


def picture_name(budget: Budget, name: str) -> str:
    """The file of a picture of this study, in docs/pictures."""
    return f"{Path(budget.page or 'text').stem}_{name}.svg"


def _protocol(protocol: Protocol, budget: Budget, folder: Path, count: int) -> str:
    left = defaultdict(list)
    for variant, seed in missing(budget, folder):
        left[variant.name].append(str(seed))
    names = "; ".join(f"{name} seed {', '.join(seeds)}" for name, seeds in left.items()) or "none"
    tokens = protocol.steps * protocol.batch * protocol.length
    plain = [variant.name for variant in budget.variants if ("prediction", "plain") in variant.keys]
    variants = f" (Plain in {' and '.join(plain)})" if plain else ""
    command = f"hopflow reproduce text{'' if budget.name == 'full' else f' budget={budget.name}'} --table"
    return (
        f"Data: {protocol.data}, {protocol.tokens} tokens, sequences of {protocol.length}. Network: {protocol.size}; "
        f"{protocol.steps:,} steps of {protocol.batch} sequences ({tokens / 1e6:.0f} M tokens), learning rate "
        f"{protocol.lr:g} after {protocol.warmup} steps, chosen once on dfm_o, weight average {protocol.weight_ema:g}, "
        f"no dropout. All variants of a seed see the same text in the same order, and the same test rows.\n\n"
        f"The paper: {PAPER_BUDGET}. Its values are for orientation only. Predictions are Evidence here{variants}; "
        f"the paper's are Plain for DFM-O and DFM-B, and Carry for DFM-N, DFM-S and DFM-MMF. All bounds hold for "
        f"independent pairs. "
        f"Errors are over seeds where a variant has several, else over sequences.\n\n"
        f"Protocol `{protocol.sha256}`; cells measured: {count}; missing: {names}. "
        f"This page is written by `{command}`."
    )


def _tables(cells: dict[str, list[Cell]], protocol: Protocol, folder: Path) -> str:
    """The paper's tables, or a table of the samples where the study has none of the paper's test sets."""
    if not protocol.zero_shot:
        return section("## Samples", _sampled(cells, protocol))
    parts = [
        "## The paper's tables",
        "Rows are in the paper's order; – is not measured yet. [Morse](morse.md) has smaller runs.",
        section("### Hops on small vocabularies", tables(folder.parent / "morse")),
        section("### Perplexity bounds", bound_tables(cells, protocol)),
        section("### Generative perplexity", generative_tables(cells, protocol)),
        entropy_table(cells, protocol),
        section("### Ablations", ablation_tables(cells, protocol)),
    ]
    return "\n\n".join(part for part in parts if part)


def _sampled(cells: dict[str, list[Cell]], protocol: Protocol) -> str:
    """Judged perplexity of the samples with η = 0 for every number of steps, entropy and hops for the most."""
    judge, counts = protocol.judges[0], protocol.sampler_steps
    rows = []
    for variant, group in cells.items():
        drawn = [None] if group[0].samples[0].steps is None else [*counts]
        judged = [show(judged_mean(group, judge, steps)) for steps in drawn]
        last = show(entropy_mean(group, drawn[-1])), show(hops_mean(group, drawn[-1]))
        rows.append((variant, *["–"] * (len(counts) - len(judged)), *judged, *last))
    note = (
        f"Perplexity of {protocol.samples} samples of each seed by the judge {judge}, η = 0; entropy and hops for "
        f"{counts[-1]:,} steps. Samples of ar are drawn left to right."
    )
    return section(note, table(("variant", *(f"{count:,} steps" for count in counts), "entropy, bits", "hops"), rows))


def _bounds(cells: dict[str, list[Cell]], protocol: Protocol) -> str:
    columns: list[tuple[str, Callable[[list[Cell]], Mean | None]]] = [
        ("b0 (η = 0)", lambda c: bound_mean(c, "test", "b0")),
        ("b1 (η = 1)", lambda c: bound_mean(c, "test", "b1")),
        ("bk (η = 0)", lambda c: bound_mean(c, "test", "bk")),
    ]
    for paths in dict.fromkeys((1, protocol.paths)):
        columns.append((f"br, K = {paths}", lambda c, k=paths: tightest_reversal(c, "test", k)))  # type: ignore[misc]
    for steps in protocol.bound_steps:
        columns.append((f"bn, {steps} steps", lambda c, n=steps: bound_mean(c, "test", "bn", steps=n)))  # type: ignore[misc]
    columns.append(("exact", lambda c: bound_mean(c, "test", "nll")))
    rows = [(name, str(len(group)), *(show(column(group)) for _, column in columns)) for name, group in cells.items()]
    note = (
        f"Perplexity bounds on {protocol.rows} sequences of {protocol.test_set}. br is that of "
        f"{protocol.reversal_steps} steps, with the proposal (context or x0 head) that has the lower mean over the "
        f"seeds. From masks with Evidence b0 is tight, and b1, bk and br are not measured. With Plain b0, b1 and "
        f"bk are infinite.\n\n"
    )
    return note + table(("variant", "seeds", *(name for name, _ in columns)), rows)


def _list(cells: dict[str, list[Cell]]) -> str:
    rows = []
    for name, group in cells.items():
        for cell in group:
            peak = cell.training.get("peak_bytes")
            rows.append(
                (
                    f"{name}, seed {cell.seed}",
                    *(f"{cell.seconds.get(part, 0):.0f} s" for part in ("training", "bounds", "samples", "transport")),
                    f"{sum(cell.seconds.values()):.0f} s",
                    f"{(cell.training.get('tokens_per_second') or 0) / 1e6:.3g} M",
                    "–" if peak is None else f"{peak / 2**30:.1f} GiB",
                    cell.x0_head or "–",
                    f"{cell.machine.get('device')}, torch {cell.machine.get('torch')}",
                    str(cell.commit),
                )
            )
    head = ("cell", "training", "bounds", "samples", "transport", "in all", "tokens/s", "peak memory")
    return table((*head, "x0 head", "device", "commit"), rows)


def _failures(folder: Path, budget: str, cells: dict[str, list[Cell]]) -> str:
    """Every cell that failed, also if a later try succeeded."""
    rows = []
    for failure in read_failures(folder, budget):
        later = any(cell.seed == failure.seed for cell in cells.get(failure.variant, ()))
        error = failure.error.replace("|", "\\|").replace("<", "&lt;")
        found = ("measured by a later try" if later else "missing", str(failure.commit))
        rows.append((f"{failure.variant}, seed {failure.seed}", error, *found))
    listed = table(("cell", "error", "now", "commit"), rows) or "None."
    return section("### Failed cells", listed)


def _repeated(folder: Path, budget: Budget, cells: dict[str, list[Cell]], protocol: Protocol) -> str:
    """Cells that were run twice: how far the second run is from the first."""
    rows = []
    for name, group in by_variant(read_all(folder / REPEATED), budget).items():
        for cell in group:
            first = [one for one in cells.get(name, ()) if one.seed == cell.seed]
            quantity = "nll" if name == "ar" else "b0"
            found = difference([cell], first, "test", quantity)
            if found is None:
                continue
            values = [show(bound_mean([one], "test", quantity)) for one in (*first, cell)]
            spread = two_runs_apart(cells[name], quantity)
            agrees = "yes" if abs(found[0]) <= ERRORS * max(found[1], spread or 0.0) else "no"
            apart = f"{found[0]:+.2%} ± {found[1]:.2%}", "–" if spread is None else f"± {spread:.2%}", agrees
            most = max(protocol.sampler_steps)
            judged = [show(judged_mean([one], protocol.judges[-1], most)) for one in (*first, cell)]
            rows.append((f"{name}, seed {cell.seed}", quantity, *values, *apart, " and ".join(judged)))
    note = (
        f"Differences are paired by row. The runs agree if theirs is within {ERRORS:g} standard errors: over rows, or "
        f"of the difference of two seeds."
    )
    head = ("cell", "bound", "first run", "second run", "difference", "two seeds", "agree", "samples, both runs")
    return section("### Repeated on another machine", note, table(head, rows))


def _judges(cells: dict[str, list[Cell]]) -> str:
    """Every judge of the cells, by the hash of its weights: cells of different judges have different scales."""
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for name, group in cells.items():
        for cell in group:
            for judge, facts in cell.judges.items():
                hashes = facts["identity"].get("sha256", {})
                key = judge, " ".join(str(value)[:12] for value in hashes.values())
                value, error = facts.get("test_nll"), facts.get("test_nll_stderr")
                own = "–" if value is None else f"{value:.2f} ± {error:.2f}" if error is not None else f"{value:.2f}"
                found.setdefault(key, (own, []))[1].append(f"{name} seed {cell.seed}")
    rows = [
        (judge, f"`{weights}`", own, names[0] if len(names) == 1 else f"{len(names)}, first {names[0]}")
        for (judge, weights), (own, names) in found.items()
    ]
    return section("### Judges", table(("judge", "sha256 of its weights", "its perplexity, test set", "cells"), rows))


def _samples(cells: dict[str, list[Cell]]) -> str:
    """The first sample of every variant at the most steps, as it was drawn."""
    lines = ["### First samples, uncurated", ""]
    for name, group in cells.items():
        point = max(group[0].samples, key=lambda one: (one.steps or 0, -(one.eta or 0)))
        text = " ".join(point.texts[0].split()).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"- **{name}** ({point.steps or 'left to right'} steps): {text}")
    return "\n".join(lines)
