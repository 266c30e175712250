"""The table of hops and transport costs: of samples, and predicted from pairs; a line for each cost."""

from collections.abc import Mapping, Sequence

from ..bounds.estimate import plus_minus
from .rows import Row

COLUMNS = {
    "dynamic_cost_": "of samples",
    "kantorovich_cost_": "predicted",
    "excess_cost_": "excess",
    "independent_cost_": "independent pairs",
    "gain_": "saved by pairing",
}
"""Prefixes of quantities, and the headings of their columns."""
HOPS = {
    "dynamic_cost_hamming": "jumps",
    "kantorovich_cost_hamming": "predicted_jumps",
    "excess_cost_hamming": "excess_jumps",
}
"""A hop costs 1 under Hamming, so these pairs of quantities are the same number."""


def transport_table(rows: Sequence[Row], full: bool) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, lines, and notes; a cost that is the same for every sequence is stated in a note.

    The cost of independent pairs follows from two other columns, and is left out unless `full`.
    """
    left_out = set() if full else {"independent_cost_"}
    if all(str(row.more["coupling"]).startswith("Independent") for row in rows if "coupling" in row.more):
        left_out |= {"gain_"}  # independent pairs save nothing
    columns = {part: head for part, head in COLUMNS.items() if part not in left_out}
    found = {row.quantity: row for row in rows}
    for cost, hops in HOPS.items():
        if hops in found:
            found.setdefault(cost, found[hops])
    costs = dict.fromkeys(name.removeprefix(part) for name in found for part in COLUMNS if name.startswith(part))
    lines, notes = [], []
    for cost in costs:
        name = "hops (Hamming)" if cost == "hamming" else cost.replace("_", " ")
        if _is_constant(found.get(f"dynamic_cost_{cost}"), found.get(f"kantorovich_cost_{cost}")):
            notes.append(f"{name}: {found[f'dynamic_cost_{cost}'].value:g} in every sequence and every pair.")
        else:
            lines.append([name, *(_cell(found.get(f"{part}{cost}"), part == "gain_") for part in columns)])
    return ["cost", *columns.values()], lines, [" ".join([*notes, *_origin(found)])]


def _is_constant(sampled: Row | None, predicted: Row | None) -> bool:
    """Whether the cost has no spread: from masks every token hops once, whatever the pairs."""
    if sampled is None or predicted is None:
        return False
    return sampled.stderr == predicted.stderr == 0 and sampled.value == predicted.value


def _cell(row: Row | None, share: bool) -> str:
    if row is None:
        return "-"
    return f"{plus_minus(100 * row.value, 100 * row.stderr)} %" if share else plus_minus(row.value, row.stderr)


def _origin(found: Mapping[str, Row]) -> list[str]:
    sampled = next((row for name, row in found.items() if name == "jumps" or name.startswith("dynamic_")), None)
    notes = []
    if sampled is not None:
        notes.append(
            f"Samples: {sampled.more['sampler']}, n = {sampled.n:,}; embeddings: {sampled.more['embeddings']}."
        )
    if predicted := found.get("predicted_jumps"):
        more = predicted.more
        fewer = "" if more["ot_n"] == more["trained_ot_n"] else f" (training: {more['trained_ot_n']})"
        notes.append(
            f"Predicted from n = {predicted.n:,} batches of {more['ot_n']} rows{fewer} of {more['text']}, paired by "
            f"{more['coupling']}. The excess is what samples cost beyond the prediction."
        )
    return notes
