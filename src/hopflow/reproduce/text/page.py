"""The page of the text study, docs/results/text.md: every number from the cells, on a CPU in seconds."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ...recipes.paper_numbers import paper_values
from .cell import Cell, read_all
from .claims import verdicts
from .protocol import BUDGETS, Budget, Protocol
from .queue import missing
from .statistics import Mean, bound_mean, judged_perplexity, over_seeds

COMMAND = "hopflow reproduce text --table"
PAPER_SETS = {"wikitext-2": "wikitext2", "wikitext-103": "wikitext103"}
"""How the paper's numbers name the sets."""


def by_variant(cells: Iterable[Cell], budget: Budget) -> dict[str, list[Cell]]:
    """The cells of a budget by variant, in the order of its table, seeds ascending."""
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.budget == budget.name:
            found[cell.variant].append(cell)
    names = [variant.name for variant in budget.variants]
    return {name: sorted(found[name], key=lambda cell: cell.seed) for name in names if found[name]}


def page(folder: Path, budget: str = "full") -> str:
    """The whole page as markdown."""
    chosen = BUDGETS[budget]
    cells = by_variant(read_all(folder), chosen)
    every = [cell for group in cells.values() for cell in group]
    for cell in every:
        own = next(variant.protocol for variant in chosen.variants if variant.name == cell.variant)
        if cell.protocol_sha256 != own.sha256:
            raise ValueError(f"{cell.name} was measured by another protocol; delete it or restore the protocol")
    protocol = chosen.variants[0].protocol
    parts = [
        "# Results: the paper's claims about text",
        _claims(cells),
        _protocol(protocol, chosen, folder, every),
        "## Bounds on held-out novels",
        _bounds(cells, protocol),
        _zero_shot(cells, protocol),
        "## Generative perplexity",
        *(_judged(cells, protocol, judge, eta) for judge in protocol.judges for eta in protocol.etas),
        "## Hops and transport",
        _hops(cells),
        "## Cells",
        _list(cells),
        _samples(cells),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _show(found: Mean | None) -> str:
    return "–" if found is None else str(found)


def _claims(cells: dict[str, list[Cell]]) -> str:
    rows = [(v.claim, f"**{v.status}**", v.number, v.rule) for v in verdicts(cells)]
    return _table(("claim of the paper", "here", "number", "rule"), rows)


def _protocol(protocol: Protocol, budget: Budget, folder: Path, cells: Sequence[Cell]) -> str:
    left = missing(budget, folder)
    names = ", ".join(f"{variant.name} seed {seed}" for variant, seed in left) or "none"
    tokens = protocol.steps * protocol.batch * protocol.length
    return (
        f"Data: {protocol.data}, {protocol.tokens} tokens, sequences of {protocol.length}. Network: {protocol.size}; "
        f"{protocol.steps:,} steps of {protocol.batch} sequences ({tokens / 1e6:.0f} M tokens), learning rate "
        f"{protocol.lr:g} after {protocol.warmup} steps, weight average {protocol.weight_ema:g}, no dropout. The "
        f"paper trains 12 × 768 for 400,000 steps of 512 × 128 on OpenWebText: its values are for orientation only. "
        f"Predictions are Evidence; the paper's are Plain, or Carry for masks. All bounds hold for independent pairs. "
        f"Errors are over seeds where a variant has several, else over sequences. "
        f"Protocol `{protocol.sha256}`; cells measured: {len(cells)}; missing: {names}.\n\n"
        f"This page is written by `{COMMAND}`."
    )


def _bounds(cells: dict[str, list[Cell]], protocol: Protocol) -> str:
    columns: list[tuple[str, Callable[[list[Cell]], Mean | None]]] = [
        ("b0 (η = 0)", lambda c: bound_mean(c, "test", "b0")),
        ("b1 (η = 1)", lambda c: bound_mean(c, "test", "b1")),
        ("bk (η = 0)", lambda c: bound_mean(c, "test", "bk")),
    ]
    for paths in dict.fromkeys((1, protocol.paths)):
        columns.append((f"br, K = {paths}", lambda c, k=paths: _tightest(c, k)))  # type: ignore[misc]
    for steps in protocol.bound_steps:
        columns.append((f"bn, {steps} steps", lambda c, n=steps: bound_mean(c, "test", "bn", steps=n)))  # type: ignore[misc]
    columns.append(("exact", lambda c: bound_mean(c, "test", "nll")))
    rows = [(name, str(len(group)), *(_show(column(group)) for _, column in columns)) for name, group in cells.items()]
    note = (
        f"Perplexity bounds on {protocol.rows} sequences of {protocol.test_set}. br is that of "
        f"{protocol.reversal_steps} steps, with the proposal (context or x0 head) that has the lower mean over the "
        f"seeds. From masks b0 is tight, and b1, bk and br are not measured.\n\n"
    )
    return note + _table(("variant", "seeds", *(name for name, _ in columns)), rows)


def _tightest(cells: list[Cell], paths: int) -> Mean | None:
    found = [bound_mean(cells, "test", "br", paths=paths, proposal=proposal) for proposal in ("context", "x0 head")]
    return min((one for one in found if one is not None), key=lambda one: one.value, default=None)


def _zero_shot(cells: dict[str, list[Cell]], protocol: Protocol) -> str:
    if not protocol.zero_shot:
        return ""
    rows = []
    for name, group in cells.items():
        exact = "nll" if name == "ar" else "b0"
        own = [_show(bound_mean(group, set, exact)) for set in protocol.zero_shot]
        rows.append((name, *own, " / ".join(_paper(name, set) for set in protocol.zero_shot)))
    note = (
        f"Zero-shot perplexity (b0; exact for ar), {protocol.zero_shot_rows} sequences each, and the paper's values in "
        f"the same order. The novels are far from these sets.\n\n"
    )
    return "### Zero-shot\n\n" + note + _table(("variant", *protocol.zero_shot, "paper"), rows)


def _paper(recipe: str, set: str) -> str:
    """The paper's perplexity of a recipe on a set; of rows with OT it is not a bound."""
    asked = PAPER_SETS.get(set, set)
    found = [fact["value"] for fact in paper_values() if fact["recipe"] == recipe and fact.get("set") in (set, asked)]
    return f"{found[0]:g}" if found else "–"


def _judged(cells: dict[str, list[Cell]], protocol: Protocol, judge: str, eta: float) -> str:
    def at(group: list[Cell], steps: int) -> Mean | None:
        values = [
            judged_perplexity(point.judges[judge])
            for cell in group
            for point in cell.samples
            if (point.steps, point.eta) == (steps, eta) and judge in point.judges
        ]
        return over_seeds(values) if values else None

    rows = [
        (name, *(_show(at(group, steps)) for steps in protocol.sampler_steps))
        for name, group in cells.items()
        if name != "ar"
    ]
    title = f"Judge {judge}, sampler with η = {eta:g}, {protocol.samples} samples per cell, by sampling steps:\n\n"
    return title + _table(("variant", *map(str, protocol.sampler_steps)), rows)


def _hops(cells: dict[str, list[Cell]]) -> str:
    keys = ("predicted_jumps", "jumps", "kantorovich_cost_hamming", "independent_cost_hamming", "gain_hamming")
    present = [key for key in keys if any(key in cell.transport for group in cells.values() for cell in group)]
    rows = []
    for name, group in cells.items():
        values = [_transport(group, key) for key in present]
        if any(value != "–" for value in values):
            rows.append((name, *values))
    return _table(("variant", *(key.replace("_", " ") for key in present)), rows)


def _transport(cells: list[Cell], key: str) -> str:
    found = [cell.transport[key] for cell in cells if key in cell.transport]
    values = [(one.value, math.nan if one.stderr is None else one.stderr) for one in found if one.value is not None]
    return _show(over_seeds(values)) if values else "–"


def _list(cells: dict[str, list[Cell]]) -> str:
    rows = []
    for name, group in cells.items():
        for cell in group:
            peak = cell.training.get("peak_bytes")
            rows.append(
                (
                    f"{name}, seed {cell.seed}",
                    f"{cell.seconds.get('training', 0):.0f} s",
                    f"{sum(cell.seconds.values()):.0f} s",
                    f"{(cell.training.get('tokens_per_second') or 0) / 1e6:.2f} M",
                    "–" if peak is None else f"{peak / 2**30:.1f} GiB",
                    str(cell.machine.get("device")),
                    str(cell.machine.get("torch")),
                    str(cell.commit),
                )
            )
    return _table(("cell", "training", "in all", "tokens/s", "peak memory", "device", "torch", "commit"), rows)


def _samples(cells: dict[str, list[Cell]]) -> str:
    """The first sample of every variant at the most steps, as it was drawn."""
    lines = ["### First samples, uncurated", ""]
    for name, group in cells.items():
        point = max(group[0].samples, key=lambda one: (one.steps or 0, -(one.eta or 0)))
        text = " ".join(point.texts[0].split()).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"- **{name}** ({point.steps or 'left to right'} steps): {text}")
    return "\n".join(lines)
