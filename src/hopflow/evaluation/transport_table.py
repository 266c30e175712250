"""Transport table: hops and costs of samples beside what pairs predict, a line for each cost."""

from collections.abc import Mapping, Sequence

from ..estimate import plus_minus
from .rows import Row

COLUMNS = {
    "dynamic_cost_": "of samples",
    "kantorovich_cost_": "predicted",
    "excess_cost_": "excess",
    "independent_cost_": "independent pairs",
    "gain_": "saved by pairing",
}
"""How quantities begin, and the headings of their columns."""
HOPS = {
    "dynamic_cost_hamming": "jumps",
    "kantorovich_cost_hamming": "predicted_jumps",
    "excess_cost_hamming": "excess_jumps",
}
"""Each change of a token is one hop, and costs 1 by Hamming: these are the same numbers twice."""


def transport_table(rows: Sequence[Row], full: bool) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, lines, and what is said under them; a cost that is the same for every sequence is only said.

    What independent pairs cost follows from two other columns, and is left out unless the table is to be full.
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
        if _certain(found.get(f"dynamic_cost_{cost}"), found.get(f"kantorovich_cost_{cost}")):
            notes.append(f"{name}: {found[f'dynamic_cost_{cost}'].value:g} in every sequence and every pair.")
        else:
            lines.append([name, *(_cell(found.get(f"{part}{cost}"), part == "gain_") for part in columns)])
    return ["cost", *columns.values()], lines, [" ".join([*notes, *_origin(found)])]


def _certain(sampled: Row | None, predicted: Row | None) -> bool:
    """From masks every token hops once, whatever the pairs."""
    if sampled is None or predicted is None:
        return False
    return sampled.stderr == predicted.stderr == 0 and sampled.value == predicted.value


def _cell(row: Row | None, share: bool) -> str:
    if row is None:
        return "-"
    return f"{plus_minus(100 * row.value, 100 * row.stderr)} %" if share else plus_minus(row.value, row.stderr)


def _origin(found: Mapping[str, Row]) -> list[str]:
    sampled = next((row for name, row in found.items() if name == "jumps" or name.startswith("dynamic_")), None)
    said = []
    if sampled is not None:
        said.append(f"Samples: {sampled.more['sampler']}, n = {sampled.n:,}; embeddings: {sampled.more['embeddings']}.")
    if predicted := found.get("predicted_jumps"):
        more = predicted.more
        fewer = "" if more["ot_n"] == more["trained_ot_n"] else f" (training: {more['trained_ot_n']})"
        said.append(
            f"Predicted from n = {predicted.n:,} batches of {more['ot_n']} rows{fewer} of {more['text']}, paired by "
            f"{more['coupling']}. The excess is what samples cost beyond the prediction."
        )
    return said
